"""Asks an engine whether it lives, and whether it works. Talks HTTP to the engine, looks for its socket, reads the
clock.

Three questions; the decisions about the last two are progress_watch.py's:
1. Its health path, all the time, over a connection of its own, as whoever comes next: five answers in a row that did
   not come are a loss. So an engine whose socket was removed is lost: it works, and nobody reaches it any more.
2. Its counters at /metrics, once it serves, beside what the gateway says that it has running.
3. One token, idle or under suspicion. The prompt is constant and shorter than any block of a cache, so that it neither
   finds nor leaves anything there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import httpx

from appliance.engine import progress_watch, unix_socket
from appliance.engine.adapter import Launch
from appliance.engine.connect import engine_client
from appliance.engine.probe_forms import CHAT
from appliance.engine.probe_stream import metrics
from appliance.engine.progress_watch import Act, Counts, Limits, Watch
from appliance.printable import printable
from gateway.state import Cause

HEALTH_S = 2.0
"""Time limit of one health probe, and the pause between two while the engine is READY."""
HEALTH_STARTING_S = 0.2
HEALTH_MISSES_MAX = 5
METRICS_S = 5.0
"""Between two looks at the counters: the process that answers is the one that sends everybody's tokens on."""
COMPLETIONS = "/v1/completions"
PROMPT = "One"


@dataclass(frozen=True, slots=True)
class Serving:
    """What a warm engine is asked for a token by: its model, and the request paths that it answers, None = unknown."""

    model: str
    dialects: tuple[str, ...] | None = None


@dataclass(slots=True)
class Health:
    """One run's. `streams`: what the gateway has running, as far as it answers; `longest_prefill_s`: by what was
    measured on this box, None = not known. `started`: whether there is a process to believe. `ok` is called at the
    first healthy answer, `lost` with the cause. `unreachable`: the cause for an engine that is not ours. `transport`:
    for tests."""

    launch: Launch
    key: str | None
    streams: Callable[[], int]
    longest_prefill_s: Callable[[], float | None]
    started: Callable[[], bool]
    ok: Callable[[], None]
    lost: Callable[[Cause], None]
    unreachable: Callable[[float], Cause] | None = None
    transport: httpx.AsyncBaseTransport | None = None
    healthy: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: asyncio.Future[Serving] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def serves(self, serving: Serving) -> None:
        """The warm-up is over: questions 2 and 3 begin."""
        if not self._serving.done():
            self._serving.set_result(serving)

    async def run(self) -> None:
        """Ask until it is lost."""
        async with asyncio.TaskGroup() as group:
            working = group.create_task(self._watch_work())
            await self._watch_health()
            working.cancel()

    async def _watch_health(self) -> None:
        misses = 0
        async with engine_client(self.launch.url, self.key, HEALTH_S, transport=self.transport, reuse=False) as client:
            while True:
                pause_s = HEALTH_S if self.healthy.is_set() else HEALTH_STARTING_S
                try:
                    (await client.get(self.launch.health_path)).raise_for_status()
                except httpx.HTTPError as error:
                    misses += self.healthy.is_set()
                    if isinstance(error, httpx.TimeoutException):  # it took HEALTH_S already
                        pause_s = 0.0
                    if misses == HEALTH_MISSES_MAX:
                        self.lost(self._unhealthy(error))
                        return
                else:
                    misses = 0
                    if self.started() and not self.healthy.is_set():
                        self.healthy.set()
                        self.ok()
                await asyncio.sleep(pause_s)

    def _unhealthy(self, error: httpx.HTTPError) -> Cause:
        missed_s = HEALTH_MISSES_MAX * HEALTH_S
        if self.unreachable is not None:
            return self.unreachable(missed_s)
        path = unix_socket.path_of(self.launch.url)
        if path is not None and not path.exists():
            return _unreached(path)
        why = str(error) or type(error).__name__
        return Cause(
            id="engine.hung",
            title=f"The engine did not answer its health probe for {missed_s:g} s ({why}).",
            remedy="moe-appliance status (shows its last log lines)",
        )

    async def _watch_work(self) -> None:
        serving = await self._serving
        if self.launch.metrics is None and not self.launch.canary_s:
            return
        watch, looked_s = Watch(), self._now_s
        async with engine_client(self.launch.url, self.key, HEALTH_S, transport=self.transport, reuse=False) as client:
            while True:
                await asyncio.sleep(METRICS_S)
                watch, looked_s = await self._look(client, watch, looked_s)
                limits = self._limits()
                doing = progress_watch.act(watch, limits)
                if doing is Act.ASK:
                    if await self._token(client, serving):
                        watch, looked_s = progress_watch.answered(watch), self._now_s
                        continue
                    after, looked_s = await self._look(client, watch, looked_s)
                    watch, doing = progress_watch.unanswered(watch, after, limits)
                if doing is Act.HUNG:
                    self.lost(progress_watch.hung(watch, limits))
                    return

    def _limits(self) -> Limits:
        declared_s = self.launch.hang_s if self.launch.metrics is not None else 0.0
        return Limits(progress_watch.hang_limit_s(declared_s, self.longest_prefill_s()), self.launch.canary_s)

    async def _look(self, client: httpx.AsyncClient, watch: Watch, looked_s: float) -> tuple[Watch, float]:
        counts = await self._counts(client)
        now_s = self._now_s
        counted = self.launch.metrics is not None
        return progress_watch.looked(watch, counts, self.streams(), now_s - looked_s, counted=counted), now_s

    async def _counts(self, client: httpx.AsyncClient) -> Counts | None:
        if self.launch.metrics is None:
            return None
        return progress_watch.counts_of(await metrics(client, HEALTH_S), self.launch.metrics)

    async def _token(self, client: httpx.AsyncClient, serving: Serving) -> bool:
        """Whether it answers, with whatever."""
        body: dict[str, object] = {"model": serving.model, "max_tokens": 1}
        if serving.dialects is None or COMPLETIONS in serving.dialects:
            path, body = COMPLETIONS, body | {"prompt": PROMPT}
        else:
            path, body = CHAT, body | {"messages": [{"role": "user", "content": PROMPT}]}
        try:
            async with asyncio.timeout(self.launch.canary_s):
                await client.post(path, json=body, timeout=self.launch.canary_s)
        except (httpx.HTTPError, TimeoutError):
            return False
        return True


def _unreached(path: Path) -> Cause:
    """`engine.socket_gone`: the engine may live; its socket cannot be made again from outside."""
    shown = printable(str(path))
    return Cause(
        id="engine.socket_gone",
        title=f"The engine's socket {shown} is missing: somebody removed it, and nobody reaches the engine.",
        remedy=f"ls -la {quote(printable(str(path.parent)))} (the restart makes it anew; when it goes again, see what "
        "cleans that folder, or set another runtime_dir)",
    )
