"""What the service manager is told, and when: ready, status, watchdog, longer limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from appliance import service as services
from appliance.board import Board
from appliance.notify import Notify
from appliance.service import Load, Service, sentence
from gateway.state import BoxState, Cause, EngineProfile, EngineState, GatewayState, Phase
from tests.datagrams import Datagrams

WATCHDOG_S = 0.3
TITLE = "The GPU has not enough free memory."


@dataclass
class Supervised:
    """A gateway's supervision that does what the test says."""

    answers: bool = False
    load: Load = field(default_factory=Load)
    pulse: int = 0
    live: asyncio.Event = field(default_factory=asyncio.Event)

    async def answered(self) -> None:
        await self.live.wait()


@pytest.fixture
def manager(short_folder: Path) -> Iterator[Datagrams]:
    with Datagrams(str(short_folder / "notify")) as listening:
        yield listening


def told(manager: Datagrams, watchdog_s: float | None = WATCHDOG_S) -> tuple[Service, Board, Supervised]:
    gateway, board = Supervised(), Board(BoxState())
    return Service(Notify(manager.address, watchdog_s), board, gateway, 30.0, 100.0), board, gateway


def beats(service: Service, manager: Datagrams, number: int) -> list[str]:
    """What the service says at its next beats; each is waited for, as a socket holds ten words in some kernels."""
    said = []
    for _ in range(number):
        before = len(manager.got)
        service.beat()
        Notify(manager.address).status("end")
        manager.wait("the last word", lambda texts, first=before: "STATUS=end" in texts[first:])  # type: ignore[misc]
        said += manager.texts[before:-1]
    return said


@pytest.mark.anyio
async def test_ready_comes_with_the_gateways_first_answer_and_once(manager: Datagrams) -> None:
    service, _, gateway = told(manager)
    running = asyncio.create_task(service.run())
    beat = {"WATCHDOG=1", "EXTEND_TIMEOUT_USEC=30000000"}
    await asyncio.to_thread(manager.wait, "a whole beat", lambda texts: beat <= set(texts))
    assert "READY=1" not in manager.texts
    gateway.answers = True
    gateway.live.set()
    await asyncio.to_thread(manager.wait, "ready", lambda texts: "READY=1" in texts)
    ready = manager.texts.index("READY=1")
    await asyncio.to_thread(manager.wait, "more beats", lambda texts: texts[ready:].count("WATCHDOG=1") > 2)
    running.cancel()
    assert manager.texts.count("READY=1") == 1
    assert not [text for text in manager.texts[ready:] if text.startswith("EXTEND")]


@pytest.mark.anyio
async def test_a_loop_that_is_blocked_sends_no_beat(manager: Datagrams) -> None:
    service, _, gateway = told(manager)
    gateway.live.set()
    running = asyncio.create_task(service.run())
    await asyncio.to_thread(manager.wait, "a beat", lambda texts: "WATCHDOG=1" in texts)
    began_s = time.monotonic()
    time.sleep(3 * WATCHDOG_S)  # noqa: ASYNC251 - the blocked loop
    ended_s = time.monotonic()
    late = [at_s for at_s, data in manager.got if data == b"WATCHDOG=1" and began_s + 0.05 < at_s < ended_s]
    running.cancel()
    assert late == []


def test_a_supervision_that_takes_no_step_loses_the_watchdog_and_one_that_moves_gets_it_back(
    manager: Datagrams,
) -> None:
    service, _, gateway = told(manager, watchdog_s=30.0)
    within = round(services.STUCK_S / services.BEAT_S)
    said = beats(service, manager, within + 5)
    assert said.count("WATCHDOG=1") == within
    assert beats(service, manager, 3) == []
    gateway.pulse += 1
    assert "WATCHDOG=1" in beats(service, manager, 1)


def test_without_a_watchdog_there_are_no_beats(manager: Datagrams) -> None:
    service, _, _ = told(manager, watchdog_s=None)
    assert beats(service, manager, 2) == ["EXTEND_TIMEOUT_USEC=30000000"] * 2


def test_a_gateway_that_never_answers_does_not_extend_the_start_for_ever(
    manager: Datagrams, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _, gateway = told(manager, watchdog_s=None)
    monkeypatch.setattr(services, "START_LIMIT_S", -1.0)
    gateway.pulse += 1
    assert beats(service, manager, 1) == []


@pytest.mark.anyio
async def test_a_stop_says_what_it_does_at_once_and_takes_the_time_that_it_needs(manager: Datagrams) -> None:
    service, board, gateway = told(manager, watchdog_s=None)
    gateway.answers, gateway.load = True, Load(streams=3)
    gateway.live.set()
    running = asyncio.create_task(service.run())
    await asyncio.to_thread(manager.wait, "ready", lambda texts: "READY=1" in texts)
    before = len(manager.got)
    board.update(stopping=True)
    board.update(stopping=True)
    await asyncio.to_thread(manager.wait, "the stop", lambda texts: len(texts) >= before + 3)
    running.cancel()
    assert manager.texts[before : before + 3] == [
        "STOPPING=1",
        "EXTEND_TIMEOUT_USEC=30000000",
        "STATUS=stopping: 3 streams may end for 30 s",
    ]
    assert manager.texts.count("STOPPING=1") == 1
    assert beats(service, manager, 1) == ["EXTEND_TIMEOUT_USEC=30000000"]
    service._stop_limit_s = 0.0
    assert beats(service, manager, 1) == [], "a stop that takes longer than it may is the manager's to end"


@pytest.mark.anyio
async def test_the_status_follows_the_engine_and_is_sent_only_when_it_changes(
    manager: Datagrams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "PAUSE_S", 0.02)
    service, board, gateway = told(manager, watchdog_s=0.06)
    gateway.answers = True
    running = asyncio.create_task(service.run())
    for phase in (Phase.STARTING, Phase.READY):
        board.update(engine=EngineState(phase=phase))
        await asyncio.to_thread(manager.wait, phase, lambda texts, p=phase: f"engine {p}" in "".join(texts))
    ready = len(manager.got)
    await asyncio.to_thread(manager.wait, "ten beats", lambda texts: texts[ready:].count("WATCHDOG=1") >= 10)
    running.cancel()
    statuses = [text for text in manager.texts if text.startswith("STATUS=")]
    assert statuses == sorted(set(statuses), key=statuses.index)


@pytest.mark.anyio
async def test_a_status_that_could_not_be_sent_is_sent_again(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "PAUSE_S", 0.02)
    address = str(short_folder / "late")
    service = Service(Notify(address), Board(BoxState()), Supervised(), 30.0, 100.0)
    running = asyncio.create_task(service.run())
    for _ in range(5):  # its tasks begin, and their first words find nobody
        await asyncio.sleep(0)
    with Datagrams(address) as manager:
        await asyncio.to_thread(manager.wait, "the status", lambda texts: "STATUS=" in "".join(texts))
        running.cancel()


@pytest.mark.anyio
async def test_without_a_service_manager_nothing_runs() -> None:
    service = Service(Notify(), Board(BoxState()), Supervised(), 30.0, 100.0)
    await asyncio.wait_for(service.run(), 1)


def engine(phase: Phase, **more: object) -> EngineState:
    profile = EngineProfile(name="DeepSeek", floor_tok_per_s=40.0, cold_tokens=1, streams=4)
    return EngineState.model_validate({"phase": phase, "profile": profile, **more})


def cause(title: str = TITLE) -> Cause:
    return Cause(id="x", title=title, remedy="y")


@pytest.mark.parametrize(
    ("box", "load", "expected"),
    [
        (BoxState(engine=engine(Phase.READY)), Load(1), "1 stream of 4; engine ready (DeepSeek)"),
        (BoxState(engine=engine(Phase.READY)), Load(4, 2), "4 streams of 4, 2 in line; engine ready (DeepSeek)"),
        (
            BoxState(engine=engine(Phase.READY)),
            Load(0, 1, "paused"),
            "paused by the operator; 0 streams of 4, 1 in line; ",
        ),
        (BoxState(engine=engine(Phase.READY)), None, "no gateway answers yet; engine ready (DeepSeek)"),
        (
            BoxState(engine=engine(Phase.READY), gateway=GatewayState(last_exit="exit code 1")),
            None,
            "no gateway answers yet, the last one ended: exit code 1; engine ready",
        ),
        (
            BoxState(engine=engine(Phase.STARTING, step="loading weights", progress=0.43)),
            Load(),
            "not serving: engine starting: loading weights 43%",
        ),
        (
            BoxState(engine=engine(Phase.STARTING, step="loading weights", progress=0.43, left_s=250.0)),
            Load(),
            "not serving: engine starting: loading weights 43%, ~4 min left",
        ),
        (
            BoxState(engine=engine(Phase.WARMING, step="warming up", left_s=3.0)),
            Load(),
            "not serving: engine warming: warming up, ~10 s left",
        ),
        (BoxState(engine=engine(Phase.PREPARING, step="preparing")), Load(), "not serving: engine preparing"),
        (BoxState(engine=engine(Phase.OFF)), Load(), "not serving: engine off"),
        (BoxState(engine=engine(Phase.REFUSED, cause=cause())), Load(), f"engine refused: {TITLE[:-1]}; see: moe-"),
        (BoxState(engine=engine(Phase.BACKOFF, cause=cause())), Load(), "engine ended: The GPU has not enough"),
        (BoxState(engine=engine(Phase.FAILED, cause=cause())), Load(), "after mending: moe-appliance restart"),
        (BoxState(engine=engine(Phase.FAILED, cause=cause("\x1b[2J\n"))), Load(), "engine failed: \\x1b[2J\\n"),
        (BoxState(stopping=True), Load(3), "stopping: 3 streams may end for 30 s"),
        (BoxState(stopping=True), Load(0), "stopping: no stream runs"),
        (BoxState(stopping=True), None, "stopping: the engine is being ended"),
    ],
)
def test_the_sentence_says_what_is(box: BoxState, load: Load | None, expected: str) -> None:
    assert expected in sentence(box, load, 30.0)
