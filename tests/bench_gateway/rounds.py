"""The measurement: who runs when, and what is noted. Touches the sockets of client.py and /proc.

Order inside a round: direct, nginx, gateway, gateway, nginx. So each of the two has a neighbour of the other, and
none is always first.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from tests.bench_gateway import procfs, wire
from tests.bench_gateway.client import Heard, StreamError, connect, together
from tests.bench_gateway.contenders import Contender
from tests.bench_gateway.figures import Run, Samples

MANY = 16
BODY_BYTES = 1_500_000
BURST_CHUNKS = 2
BURST_INTERVAL_MS = 8
"""Long enough that no stream ends while another still waits for its first chunk."""
BURSTS_PER_SAMPLE = 6
ABORT_AFTER_CHUNKS = 4
PREFILL_S = 0.1
SETTLE_S = 0.02
ABORT_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    seconds_per_run: float = 2.0
    rounds: int = 4
    samples: int = 8
    streams: int = 4
    interval_ms: int = 25

    @property
    def chunks(self) -> int:
        """Content chunks of one stream of a run."""
        return max(8, round(self.seconds_per_run * 1000 / self.interval_ms))


class Reports:
    """What the upstream says on its stdout: which requests were closed, and when (monotonic ns)."""

    def __init__(self, upstream: subprocess.Popen[bytes]) -> None:
        assert upstream.stdout is not None
        self._fd = upstream.stdout.fileno()
        self._rest = b""
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._fd, False)
        self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Stop reading."""
        self._loop.remove_reader(self._fd)

    async def gone(self, id: int) -> int:
        """When the connection of request `id` was closed. Raises StreamError when it is not, within 5 s."""
        try:
            async with asyncio.timeout(ABORT_LIMIT_S):
                return await self._of(id)
        except TimeoutError:
            raise StreamError(f"the upstream did not see a close within {ABORT_LIMIT_S:.0f} s") from None

    def _of(self, id: int) -> asyncio.Future[int]:
        return self._waiting.setdefault(id, self._loop.create_future())

    def _read(self) -> None:
        data = os.read(self._fd, 65536)
        if not data:
            self.close()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            _, id, stamp = line.split()
            future = self._of(int(id))
            if not future.done():
                future.set_result(int(stamp))


class Bench:
    """Runs a plan. `samples` holds what was seen, by contender."""

    def __init__(
        self, plan: Plan, contenders: list[Contender], reports: Reports, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.samples = {contender.name: Samples() for contender in contenders}
        self._plan = plan
        self._contenders = contenders
        self._reports = reports
        self._say = say
        self._ids = count(1)

    async def run(self) -> None:
        """Everything. Raises StreamError when a stream was not whole."""
        plan = self._plan
        for contender in self._contenders:
            await self._streams(contender, plan.streams, 8, 5)  # warm up; not noted
        for number in range(plan.rounds):
            self._say(f"round {number + 1} of {plan.rounds}: {plan.streams} streams")
            for contender in self._turns():
                run = await self._streams(contender, plan.streams, plan.chunks, plan.interval_ms)
                self.samples[contender.name].few.append(run)
        self._say(f"{MANY} streams")
        for contender in self._turns():
            run = await self._streams(contender, MANY, plan.chunks, plan.interval_ms)
            self.samples[contender.name].many.append(run)
        self._say("first chunks, large bodies, aborts")
        for _ in range(plan.samples):
            await self._bursts()
            await self._bodies()
            await self._aborts()
        for contender in self._contenders:
            if contender.pid is not None:
                self.samples[contender.name].rss_mb = procfs.rss_mb(contender.pid)

    def _turns(self) -> Iterator[Contender]:
        yield from self._contenders
        yield from (contender for contender in reversed(self._contenders) if contender.pid is not None)

    def _request(
        self, contender: Contender, seat: int, chunks: int, interval_ms: int, **more: int
    ) -> tuple[int, bytes]:
        id = next(self._ids)
        order = wire.Order(id, chunks, interval_ms, more.get("silent_ms", 0))
        key = contender.keys[seat % len(contender.keys)]
        return id, wire.request_of(wire.body_of(order, more.get("pad_bytes", 0)), contender.port, key)

    async def _streams(self, contender: Contender, streams: int, chunks: int, interval_ms: int) -> Run:
        requests = [self._request(contender, seat, chunks, interval_ms)[1] for seat in range(streams)]
        limit_s = 10 + 3 * chunks * interval_ms / 1000
        await asyncio.sleep(SETTLE_S)
        before_ns = procfs.cpu_ns(contender.pid) if contender.pid is not None else 0
        heard = await together(contender.port, requests, chunks, limit_s)
        await asyncio.sleep(SETTLE_S)  # the proxy's own end of the request, its log line
        after_ns = procfs.cpu_ns(contender.pid) if contender.pid is not None else 0
        return _run_of(heard, after_ns - before_ns)

    async def _bursts(self) -> None:
        for _ in range(BURSTS_PER_SAMPLE):
            for contender in self._contenders:
                run = await self._streams(contender, self._plan.streams, BURST_CHUNKS, BURST_INTERVAL_MS)
                self.samples[contender.name].bursts.append(run)

    async def _bodies(self) -> None:
        for contender in self._contenders:
            _, request = self._request(contender, 0, 1, 0, pad_bytes=BODY_BYTES)
            heard = await together(contender.port, [request], 1, 30.0)
            self.samples[contender.name].bodies_ns.append(heard[0].ttft_ns)

    async def _aborts(self) -> None:
        for contender in self._contenders:
            if contender.pid is None:
                continue
            samples = self.samples[contender.name]
            id, request = self._request(contender, 0, 4000, self._plan.interval_ms)
            heard = await (await connect(contender.port, request, ABORT_AFTER_CHUNKS)).over
            samples.abort_ns.append(await self._reports.gone(id) - heard.closed_ns)
            id, request = self._request(contender, 0, 1, 0, silent_ms=20_000)
            stream = await connect(contender.port, request)
            await asyncio.sleep(PREFILL_S)
            stream.leave()
            heard = await stream.over
            samples.abort_prefill_ns.append(await self._reports.gone(id) - heard.closed_ns)


def _run_of(heard: list[Heard], cpu_ns: int) -> Run:
    return Run(
        chunks=sum(len(one.delays_ns) for one in heard),
        cpu_ns=cpu_ns,
        ttft_ns=tuple(one.ttft_ns for one in heard),
        delay_ns=tuple(ns for one in heard for ns in one.later_delays_ns),
    )
