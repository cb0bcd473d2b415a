"""The canonical form: what an agent sends next begins with what it has sent, so that the engine reads it once.

Rules: bodies are looked at in memory and never stored; a failure says where they part, not what they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.dialects.canonical import segments
from tests.agents.clients import BILLED, CODEX, Client, Task
from tests.agents.stage import ANSWER, Box, Sent, box

pytestmark = [pytest.mark.anyio, pytest.mark.agents]

PROMPTS = ("Where is the pear?", "And where is the fig, the other one?")


def shared(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """How many segments two requests begin with in common."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def canonical(sent: Sent) -> list[bytes]:
    """The segments of one request."""
    return list(segments(sent.body))


async def told(here: Box, client: Client, task: Task, desk: str = "desk") -> list[list[bytes]]:
    """Run one task; the canonical form of each request that the engine got for it."""
    before = len(here.sent())
    async with here.run(client, task, here.desk(client, desk)) as run:
        result = await run.result()
    assert (result.code, result.stdout.strip()) == (0, ANSWER), result.told()
    return [canonical(sent) for sent in here.sent()[before:]]


async def test_each_request_begins_with_the_one_before(agent: Client, tmp_path: Path) -> None:
    # given: a turn with a tool call, and a second turn of the same conversation
    knobs = {"tool_rules": (agent.rule("echo fig"),)}
    async with box(tmp_path, [agent], knobs) as here:
        requests = [
            *await told(here, agent, Task(PROMPTS[0])),
            *await told(here, agent, Task(PROMPTS[1], again=True)),
        ]
        received = [line["body_bytes"] for line in await here.over(agent)]
        forwarded = [len(sent.raw) for sent in here.sent()]
    # then: Claude Code's billing line and Codex's tools of its vendor are all that a request loses on its way
    assert len(requests) == 4
    lost = [before - after for before, after in zip(received, forwarded, strict=True)]
    most = {BILLED: 300, CODEX: 1000}.get(agent, 1)
    least = 20 if most > 1 else 0
    assert all(least <= size <= most for size in lost), lost
    for before, after in pairwise(requests):
        assert shared(before, after) == len(before) < len(after)


async def test_a_second_run_shares_all_but_what_the_person_said(agent: Client, tmp_path: Path) -> None:
    # given: two conversations in one folder
    async with box(tmp_path, [agent]) as here:
        (first,) = await told(here, agent, Task(PROMPTS[0]))
        (second,) = await told(here, agent, Task(PROMPTS[1]))
    # then: they part in the segment that holds the person's words, and right at these words
    at = shared(first, second)
    one, other = first[at], second[at]
    assert len(first) == len(second)
    assert at >= len(first) - 2
    texts = [prompt.encode() for prompt in PROMPTS]
    assert one.replace(texts[0], b"") == other.replace(texts[1], b"")
    assert one.count(texts[0]) == other.count(texts[1]) == 1
