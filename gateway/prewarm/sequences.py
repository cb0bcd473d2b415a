"""llama.cpp's sequences, each with a cache of its own: which of them may be used, and one prefix into several.

Touches the engine over HTTP and the folder that it saves into. Rules:
- A prefix that one sequence holds is of no use to the others: it is saved to a file and restored into them.
- The file holds text as KV. It is there for as long as the copying takes, in a folder that only we may enter, and
  removed whatever happens. Conversations of people are never saved.
- A sequence that holds a conversation of the last minutes is not overwritten. Whose it is, nobody tells; how many
  requests the engine took since then is known, and they are in those that were used last.

Source: facts/engine-embedded.md section 5; xllamacpp 2026.10.11549, measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

FILE = "prewarm.bin"
STEP_S = 30.0
"""For one step; saving 2,000 tokens of the demo model takes about 30 ms."""


@dataclass(frozen=True, slots=True)
class SequenceState:
    """One sequence. `last_task`: of its latest prompt, grows with each; -1 = it never had one."""

    id: int
    last_task: int


def parsed(answer: Any) -> tuple[SequenceState, ...]:
    """The sequences in an answer of GET /slots; () when it is none."""
    rows = answer if isinstance(answer, list) else []
    found = [
        SequenceState(row["id"], row["id_task"] if isinstance(row.get("id_task"), int) else -1)
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("id"), int)
    ]
    return tuple(found) if len(found) == len(rows) else ()


def free(states: Sequence[SequenceState], served: int, held: Collection[int]) -> tuple[int, ...]:
    """Which sequences may be overwritten, the one that was used longest ago first. `served`: requests that the engine
    took from people of late; `held`: sequences with what we read."""
    others = [state for state in states if state.id not in held]
    by_use = sorted(others, key=lambda state: state.last_task)
    return tuple(state.id for state in by_use[: max(0, len(by_use) - served)])


def share(free_sequences: int, prefixes_left: int) -> int:
    """How many copies a prefix gets that is read already, when `prefixes_left` others are to have as many."""
    return max(0, (free_sequences + 1) // (prefixes_left + 1) - 1)


async def look(client: httpx.AsyncClient) -> tuple[SequenceState, ...]:
    """All sequences; () when the engine does not tell. `client` has its URL and key."""
    try:
        answer = await client.get("/slots", timeout=STEP_S)
        return parsed(answer.json()) if answer.status_code == 200 else ()
    except (httpx.HTTPError, ValueError):
        return ()


async def copy(
    client: httpx.AsyncClient, folder: Path, source: int, targets: Sequence[int], go_on: Callable[[], bool]
) -> tuple[int, ...]:
    """What `source` holds into `targets`, one after the other for as long as `go_on()`; those that have it now.
    `folder` is where the engine saves. Raises OSError when the file cannot be removed.

    No step is cut: the engine would finish it all the same, and leave its file behind us.
    """
    done: list[int] = []
    try:
        if targets and go_on() and await _act(client, source, "save") and (folder / FILE).exists():
            for target in targets:
                if not go_on() or not await _act(client, target, "restore"):
                    break
                done.append(target)
    finally:
        tidy(folder)
    return tuple(done)


def tidy(folder: Path) -> None:
    """Remove the file, which a process that was killed may have left. Raises OSError."""
    (folder / FILE).unlink(missing_ok=True)


async def _act(client: httpx.AsyncClient, sequence: int, action: str) -> bool:
    try:
        answer = await client.post(
            f"/slots/{sequence}", params={"action": action}, json={"filename": FILE}, timeout=STEP_S
        )
    except httpx.HTTPError:
        return False
    return answer.status_code == 200
