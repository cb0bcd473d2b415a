"""The benchmark of the gateway runs, sees every chunk of every stream, and says what it promises. No speeds here."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bench_gateway import wire
from tests.bench_gateway.client import Stream, StreamError, together
from tests.bench_gateway.contenders import find_nginx
from tests.bench_gateway.figures import Run, Samples, quantile, summary, table
from tests.bench_gateway.upstream import Connection

ROOT = Path(__file__).parents[1]
QUICK = ["--seconds-per-run", "0.2", "--rounds", "1", "--samples", "1", "--interval-ms", "10", "--no-realtime"]
COMMAND = [sys.executable, "-m", "tests.bench_gateway", *QUICK]
NUMBERS = (
    "ttft_added_p50_ms",
    "ttft_added_p99_ms",
    "chunk_delay_added_p50_ms",
    "chunk_delay_added_p99_ms",
    "body_1_5mb_added_ms",
    "rss_mb",
    "abort_ms",
    "abort_prefill_ms",
)


def bench(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


# The whole


def test_json_is_one_object_with_all_figures() -> None:
    done = bench("--json")
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    for key in NUMBERS:
        assert isinstance(figures[key], float), key
    ratio = figures["cpu_ratio_vs_nginx"]
    if find_nginx() is None:
        assert ratio is None
        assert "apt-get install nginx-light" in done.stderr
    else:
        assert ratio > 0
    assert figures["abort_ms"] >= 0
    assert figures["contenders"]["gateway"]["cpu_ms_per_1000_chunks"] > 0
    turns = 2 * len(figures["contenders"]) - 1  # direct once, the others twice
    assert figures["chunks"] == turns * (4 + 16) * 20
    assert figures["versions"]["python"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_in_mid_run_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    command = [*COMMAND, "--seconds-per-run", "30"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env={"TMPDIR": str(tmp_path)}, text=True)
    assert process.stderr is not None
    try:
        while "round 1" not in process.stderr.readline():
            assert process.poll() is None
        children = _children_of(process.pid)
        process.send_signal(number)
        rest = process.communicate(timeout=20)[1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    assert len(children) >= 2
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.iterdir())


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# Its parts


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(lambda: Connection({}), "127.0.0.1", 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


def request_for(port: int, order: wire.Order, pad_bytes: int = 0) -> bytes:
    return wire.request_of(wire.body_of(order, pad_bytes), port, "none")


def test_streams_come_whole_and_timed() -> None:
    async def run() -> None:
        async with serving() as port:
            requests = [request_for(port, wire.Order(id, 5, id)) for id in range(4)]  # id 0: all at once
            heard = await together(port, requests, 5, 10)
        for one in heard:
            assert len(one.delays_ns) == 5
            assert min(one.delays_ns) >= 0
            assert 0 < one.ttft_ns < time.monotonic_ns()
            assert one.done

    asyncio.run(run())


def test_a_stream_with_too_few_chunks_is_an_error() -> None:
    async def run() -> None:
        async with serving() as port:
            with pytest.raises(StreamError, match="5 chunks came of 6"):
                await together(port, [request_for(port, wire.Order(1, 5, 0))], 6, 10)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n", "429"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", "DONE"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + wire.framed(wire.content_event(1, 1)),
            "chunk 1 came",
        ),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
    ],
)
def test_a_broken_reply_is_an_error(reply: bytes, reason: str) -> None:
    async def run() -> None:
        stream = Stream(b"")
        stream.data_received(reply)
        with pytest.raises(StreamError, match=reason):
            await stream.over

    asyncio.run(run())


def test_the_order_is_read_whatever_the_gateway_splices_in() -> None:
    order = wire.Order(7, 80, 25, 100)
    body = wire.body_of(order, 5000)
    assert wire.order_of(body) == (order, False)
    assert wire.order_of(body.replace(b"{", b'{"stream_options":{"include_usage":true},', 1)) == (order, True)
    assert wire.order_of(b"{}") is None


@pytest.mark.parametrize(("number", "stamp_ns"), [(0, 1), (79, 123_456_789_012_345)])
def test_a_content_event_has_the_size_of_a_real_one(number: int, stamp_ns: int) -> None:
    event = wire.content_event(number, stamp_ns)
    assert len(event) == wire.CHUNK_BYTES
    assert wire.STAMP.findall(event) == [(b"%d" % number, b"%d" % stamp_ns)]


def test_figures_are_ratios_of_neighbours_and_differences_to_direct() -> None:
    def samples(cpu_ns: list[int], ms: int) -> Samples:
        runs = [Run(1000, cpu, (ms * 1_000_000,), (ms * 1_000_000,) * 3) for cpu in cpu_ns]
        return Samples(runs, runs, runs, [ms * 1_000_000], [1_000_000], [2_000_000], 50.0)

    given = {"direct": samples([0], 1), "nginx": samples([100, 300], 2), "gateway": samples([250, 600], 4)}
    figures = summary(given)
    assert figures["cpu_ratio_vs_nginx"] == 2.25  # median of 2.5 and 2
    assert figures["ttft_added_p50_ms"] == figures["chunk_delay_added_p99_ms"] == 3.0
    assert "2.25 x nginx" in table(figures)
    alone = summary({name: found for name, found in given.items() if name != "nginx"})
    assert alone["cpu_ratio_vs_nginx"] is None
    assert "no nginx" in table(alone)


def test_quantile_is_nearest_rank() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile([5], 0.99) == 5
