"""Which of the engine's sequences takes what is read, where each has a cache of its own (sequences.py).

Touches the engine, through sequences.py. Rules:
- What we read goes into a sequence that holds nothing of value; where there is none, it is not read.
- A sequence that somebody's request has taken over since is ours no more.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx

from gateway.prewarm.pieces import Pieces
from gateway.prewarm.sequences import SequenceState, copy, free, look, share


class Placing:
    """One start of an engine. `url`, `key`: the engine's; `folder`: where it saves; `served()`: requests that it took
    from people in the last minutes. `go_on()`: nobody has come since the read began."""

    def __init__(
        self, url: str, key: str | None, folder: Path, served: Callable[[], int], go_on: Callable[[], bool]
    ) -> None:
        self._url = url
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._folder = folder
        self._served = served
        self._go_on = go_on
        self._held: dict[int, int] = {}
        """Sequences with what we read -> their latest task then."""
        self._tried: dict[str, int] = {}
        self._pieces = Pieces()

    async def place(self, key: str) -> int | None:
        """The sequence for what is called `key`, the same as before if it was cut; None = there is none to spare."""
        async with self._client() as client:
            spare = self._free(await look(client))
        if not spare:
            return None
        tried = self._tried.get(key)
        place = tried if tried is not None and tried in spare else spare[0]
        self._tried[key] = place
        return place

    async def approach(self, key: str, path: str, body: bytes, sequence: int) -> int:
        """Have most of it read so that whoever comes does not wait; tokens that were not there before."""
        async with self._client() as client:
            return await self._pieces.read(client, key, path, body, sequence)

    async def was_read(self, *, copied: bool, prefixes_left: int) -> int:
        """Note which sequence holds what was just read. `copied`: copy it into its share of those that are free, as
        `prefixes_left` others are to have theirs; how many hold it besides. Raises OSError."""
        async with self._client() as client:
            states = await look(client)
            if not states or not self._go_on():
                return 0
            source = max(states, key=lambda state: state.last_task)
            self._held[source.id] = source.last_task
            if not copied:
                return 0
            spare = self._free(states)
            targets = spare[: share(len(spare), prefixes_left)]
            copies = await copy(client, self._folder, source.id, targets, self._go_on)
        tasks = {state.id: state.last_task for state in states}
        self._held |= {id: tasks[id] for id in copies}
        return len(copies)

    def _client(self) -> httpx.AsyncClient:
        """No connection is used twice: llama.cpp may have closed it meanwhile."""
        once = httpx.Limits(max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self._url, headers=self._headers, limits=once, trust_env=False)

    def _free(self, states: tuple[SequenceState, ...]) -> tuple[int, ...]:
        tasks = {state.id: state.last_task for state in states}
        self._held = {id: task for id, task in self._held.items() if tasks.get(id) == task}
        return free(states, self._served(), self._held)
