"""Whether an engine lives and works: asked of a made-up engine, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from appliance.engine.adapter import Launch, MetricNames
from appliance.engine.health import COMPLETIONS, HEALTH_MISSES_MAX, HEALTH_S, METRICS_S, Health, Serving
from appliance.engine.probe_forms import CHAT
from gateway.state import Cause
from tests.virtual_time import START_S, run

NAMES = MetricNames("written_total", "read_total", "running", "waiting")


@dataclass(slots=True)
class Engine:
    """`hung`: its core takes nothing in and moves nothing, while health and metrics go on and say that nothing runs."""

    hung: bool = False
    dead: bool = False
    slow: bool = False
    written: int = 0
    asked: list[tuple[str, float]] = field(default_factory=list)
    bodies: list[dict[str, object]] = field(default_factory=list)
    refuses: int = 200

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.url.path, asyncio.get_running_loop().time() - START_S))
        if self.dead:
            raise httpx.ConnectError("gone")
        if request.url.path == "/metrics":
            return httpx.Response(200, text=f"written_total {self.written}\nread_total 1\nrunning 0\nwaiting 0\n")
        if request.method == "POST":
            self.bodies.append(json.loads(request.content))
            if self.hung:
                await asyncio.Future[None]()
            self.written += 1
            return httpx.Response(self.refuses, json={})
        return httpx.Response(200)

    def tokens(self) -> list[str]:
        return [path for path, _ in self.asked if path.startswith("/v1/")]


@dataclass(slots=True)
class Watched:
    """What came of watching. `lost_s`: when, since the engine served."""

    causes: list[Cause] = field(default_factory=list)
    lost_s: float = 0.0


def watched(
    engine: Engine,
    for_s: float,
    *,
    streams: Callable[[float], int] = lambda now_s: 0,
    dialects: tuple[str, ...] | None = None,
    metrics: MetricNames | None = NAMES,
    canary_s: float = 30.0,
    then: Callable[[float], None] = lambda now_s: None,
    url: str = "http://e",
) -> Watched:
    """Watch a ready engine for so many virtual seconds. `then` is called every second."""

    async def main() -> Watched:
        loop, seen = asyncio.get_running_loop(), Watched()

        def lost(cause: Cause) -> None:
            seen.causes.append(cause)
            seen.lost_s = loop.time() - START_S

        launch = Launch((), {}, url, Path("k"), "/health", 60.0, 1.0, metrics=metrics, canary_s=canary_s)
        health = Health(
            launch,
            "key",
            streams=lambda: streams(loop.time() - START_S),
            longest_prefill_s=lambda: None,
            started=lambda: True,
            ok=lambda: None,
            lost=lost,
            transport=httpx.MockTransport(engine),
        )
        watching = asyncio.create_task(health.run())
        await health.healthy.wait()
        health.serves(Serving("m", dialects))
        for _ in range(int(for_s)):
            await asyncio.sleep(1.0)
            then(loop.time() - START_S)
        watching.cancel()
        await asyncio.wait([watching])
        return seen

    return run(main())


def test_a_hung_engine_is_found_by_what_the_gateway_has_running_though_it_says_that_it_is_idle() -> None:
    seen = watched(Engine(hung=True), 400, streams=lambda now_s: 1)
    assert [cause.id for cause in seen.causes] == ["engine.hung"]
    assert "a stream runs" in seen.causes[0].title
    assert 180 <= seen.lost_s <= 180 + 30 + 3 * METRICS_S


def test_a_hung_engine_that_nobody_uses_is_found_by_one_token() -> None:
    engine = Engine(hung=True)
    seen = watched(engine, 400)
    assert [cause.id for cause in seen.causes] == ["engine.hung"]
    assert "twice in a row" in seen.causes[0].title
    assert len(engine.tokens()) == 2
    assert 120 <= seen.lost_s <= 120 + 4 * METRICS_S


def test_a_healthy_idle_engine_is_asked_for_one_token_a_minute() -> None:
    engine = Engine()
    assert watched(engine, 605).causes == []
    assert 8 <= len(engine.tokens()) <= 10
    assert engine.bodies[0] == {"model": "m", "max_tokens": 1, "prompt": "One"}


def test_a_client_that_reads_slowly_is_no_hang() -> None:
    engine = Engine()
    assert watched(engine, 1000, streams=lambda now_s: 1).causes == []
    assert 3 <= len(engine.tokens()) <= 6


def test_an_engine_that_works_is_never_asked() -> None:
    engine = Engine()

    def work(now_s: float) -> None:
        engine.written += 1

    assert watched(engine, 1000, streams=lambda now_s: 4, then=work).causes == []
    assert engine.tokens() == []


def test_clients_that_are_cut_and_come_back_do_not_hide_a_hang() -> None:
    seen = watched(Engine(hung=True), 400, streams=lambda now_s: now_s % 50 < 45, canary_s=0.0)
    assert [cause.id for cause in seen.causes] == ["engine.hung"]


def test_an_engine_that_comes_to_life_is_let_live() -> None:
    engine = Engine(hung=True)

    def mend(now_s: float) -> None:
        engine.hung = now_s < 80

    assert watched(engine, 600, then=mend).causes == []


def test_a_person_who_comes_while_it_is_asked_makes_the_question_void() -> None:
    seen = watched(Engine(hung=True), 200, streams=lambda now_s: int(now_s > 70))
    assert seen.causes == []


def test_a_refusal_is_an_answer() -> None:
    assert watched(Engine(refuses=500), 400).causes == []


@pytest.mark.parametrize(
    ("dialects", "path"), [(None, COMPLETIONS), ((COMPLETIONS, CHAT), COMPLETIONS), ((CHAT,), CHAT)]
)
def test_it_is_asked_in_a_dialect_that_it_answers(dialects: tuple[str, ...] | None, path: str) -> None:
    engine = Engine()
    watched(engine, 70, dialects=dialects)
    assert engine.tokens() == [path]


def test_without_counters_and_canary_only_health_is_asked() -> None:
    engine = Engine(hung=True)
    assert watched(engine, 1000, streams=lambda now_s: 1, metrics=None, canary_s=0.0).causes == []
    assert {path for path, _ in engine.asked} == {"/health"}


def test_five_misses_in_a_row_are_a_loss() -> None:
    engine = Engine()

    def die(now_s: float) -> None:
        engine.dead = True

    seen = watched(engine, 60, then=die)
    assert [cause.id for cause in seen.causes] == ["engine.hung"]
    assert f"for {HEALTH_MISSES_MAX * HEALTH_S:g} s" in seen.causes[0].title


@pytest.mark.parametrize("removed", [True, False])
def test_a_socket_that_somebody_removed_is_named_and_not_called_a_hang(tmp_path: Path, removed: bool) -> None:
    # given an engine at a socket whose folder has a name that no terminal should be given
    engine, path = Engine(), tmp_path / "a\x1bb" / "engine.sock"
    path.parent.mkdir()
    path.touch()

    # when nobody reaches it any more, without the socket or in spite of it
    def lose(now_s: float) -> None:
        engine.dead = True
        if removed:
            path.unlink(missing_ok=True)

    (cause,) = watched(engine, 60, then=lose, url=f"unix:{path}").causes

    # then
    assert cause.id == ("engine.socket_gone" if removed else "engine.hung")
    assert ("a\\x1bb/engine.sock is missing" in cause.title) == removed
    assert "\x1b" not in cause.title + cause.remedy


@pytest.mark.anyio
async def test_a_removed_socket_is_seen_though_the_engine_would_keep_the_connection_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    monkeypatch.setattr("appliance.engine.health.HEALTH_S", 0.02)
    path, lost = tmp_path / "engine.sock", asyncio.get_running_loop().create_future()
    async with await asyncio.start_unix_server(answer, path):
        health = Health(
            Launch((), {}, f"unix:{path}", None, "/health", 60.0, 1.0),
            None,
            streams=lambda: 0,
            longest_prefill_s=lambda: None,
            started=lambda: True,
            ok=path.unlink,
            lost=lost.set_result,
        )
        watching = asyncio.create_task(health.run())
        async with asyncio.timeout(10):
            assert (await lost).id == "engine.socket_gone"
        watching.cancel()
        await asyncio.wait([watching])
