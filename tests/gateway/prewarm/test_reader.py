"""gateway/prewarm/reader.py in front of the fake engine: what is read, when, and that nobody waits for it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gateway.prewarm import reader as reader_module
from gateway.prewarm.heads import ACTIVE_S
from gateway.prewarm.settings import PrefixSettings, PrewarmSettings
from gateway.state import EngineAbilities
from tests.fake_engine.knobs import Knobs, merged
from tests.fake_engine.serving import serving
from tests.gateway.prewarm.bodies import FAST, body, prefix, seen, systems
from tests.gateway.prewarm.standing import standing

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "IDLE_S", 0.02)
    monkeypatch.setattr(reader_module, "LOOK_S", 0.005)


async def test_after_a_boot_the_named_prefixes_are_read_in_order(tmp_path: Path) -> None:
    named = [prefix(tmp_path, "docs"), prefix(tmp_path, "more")]
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url, prefixes=named) as box:
        box.start("one")
        await box.read_all()
        assert systems(served.engine) == ["docs", "more"]
        assert [(ask["stream"], ask["max_tokens"], ask["model"]) for ask in seen(served.engine)] == [
            (False, 1, "fake-model")
        ] * 2
    state = box.reader.state
    assert (state.of, state.done, state.given_up, state.cut) == (2, 2, 0, 0)
    assert state.tokens > 300
    assert state.seconds > 0
    assert box.core.log.named("prewarm.read") == ["docs", "more"]


async def test_the_same_start_is_read_for_once(tmp_path: Path) -> None:
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url, prefixes=[prefix(tmp_path, "d")]) as box:
        box.start("one")
        await box.read_all()
        box.start("one")
        await asyncio.sleep(0.1)
        assert systems(served.engine) == ["d"]


async def test_after_a_restart_runs_are_read_again_the_latest_first_then_prefixes(tmp_path: Path) -> None:
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url, prefixes=[prefix(tmp_path, "d")]) as box:
        box.start("one")
        await box.read_all()
        for run in ("early", "late"):
            box.reader.keep(run, "a", CHAT, body(f"{run} " * 300))
        box.lose()
        box.start("two")
        await box.read_all()
        assert systems(served.engine) == ["d", "late", "early", "d"]


async def test_the_time_without_an_engine_takes_nothing_from_the_ten_minutes_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_s, loop = 0.0, asyncio.get_running_loop()
    monkeypatch.setattr(reader_module.Reader, "_now", lambda _: loop.time() + passed_s)
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url) as box:
        box.start("one")
        box.reader.keep("run", "a", CHAT, body("run " * 300))
        box.lose()
        passed_s = 2 * ACTIVE_S
        box.start("two")
        await box.read_all()
        assert systems(served.engine) == ["run"]


async def test_a_run_that_was_served_meanwhile_is_not_read(tmp_path: Path) -> None:
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url) as box:
        box.start("one")
        for run in ("early", "late"):
            box.reader.keep(run, "a", CHAT, body(f"{run} " * 300))
        box.comes()
        box.start("two")
        box.reader.keep("early", "a", CHAT, body("early " * 400))
        await box.until(lambda: box.reader.state.of == 2 or served.engine.stats.requests)
        box.goes()
        await box.read_all()
        assert "late" in systems(served.engine)
        assert box.reader.state.done == box.reader.state.of


async def test_a_seat_that_is_gone_is_not_read(tmp_path: Path) -> None:
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url) as box:
        box.start("one")
        box.reader.keep("hers", "a", CHAT, body("hers " * 300))
        box.reader.keep("his", "b", CHAT, body("his " * 300))
        box.lose()
        box.core.seats.gone.add("b")
        box.reader.seats_gone({"b"})
        box.reader.keep("his", "b", CHAT, body("his " * 300))  # of a turn that the engine took only then
        box.start("two")
        await box.read_all()
        assert systems(served.engine) == ["hers"]


async def test_the_shared_head_of_a_seat_is_read_without_what_it_said(tmp_path: Path) -> None:
    shared = PrefixSettings(name="team", seat="a")
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url, prefixes=[shared]) as box:
        box.start("one")
        box.reader.keep("r", "a", CHAT, body("rules " * 300))
        box.reader.heads.keep("r", "a", CHAT, body("rules " * 300), -10_000.0)
        box.lose()
        box.start("two")
        await box.read_all()
        (ask,) = seen(served.engine)
        assert [message["content"][:6] for message in ask["messages"]] == ["rules ", "."]


async def test_nothing_is_read_while_somebody_is_here_or_admission_is_closed(tmp_path: Path) -> None:
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url, prefixes=[prefix(tmp_path, "d")]) as box:
        box.comes()
        box.start("one")
        await asyncio.sleep(0.1)
        box.close()
        box.goes()
        await asyncio.sleep(0.1)
        assert served.engine.stats.requests == 0
        box.core.limiter.open()
        box.core.limiter.hold(True)
        await asyncio.sleep(0.1)
        assert served.engine.stats.requests == 0
        box.core.limiter.hold(False)
        await box.read_all()
        assert systems(served.engine) == ["d"]


async def test_an_arrival_ends_the_read_at_once_and_it_goes_on_when_nobody_is_here(tmp_path: Path) -> None:
    knobs = merged(Knobs(), FAST | {"time_scale": 1.0, "prefill_tok_per_s": 100.0})
    long = prefix(tmp_path, "d", "d " * 4000)
    async with serving(knobs) as served, standing(served.url, prefixes=[long]) as box:
        box.start("one")
        await box.until(lambda: served.engine.stats.running == 1)
        assert box.reader.state.now == "d"
        began_s = time.monotonic()
        box.comes()
        await box.until(lambda: served.engine.stats.aborted == 1)
        assert time.monotonic() - began_s < 5.0  # what is left would have taken 20 s
        assert box.reader.state.now == ""
        await asyncio.sleep(0.1)
        assert served.engine.stats.running == 0
        served.engine.apply(merged(Knobs(), FAST))
        box.goes()
        await box.read_all()
        assert (box.reader.state.cut, box.reader.state.done) == (1, 1)
        assert box.core.log.named("prewarm.aborted") == ["d"]


async def test_somebody_may_come_at_the_very_moment_when_a_read_has_taken_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "READ_S", 0.1)
    knobs = merged(Knobs(), {"prefill_tok_per_s": 10.0})
    async with serving(knobs) as served, standing(served.url, prefixes=[prefix(tmp_path, "docs")]) as box:
        box.start("one")
        while (reading := box.reader._reading) is None or not reading.expired():
            await asyncio.sleep(0)
        box.reader.arrival()
        await box.read_all()


async def test_the_first_token_of_a_person_comes_as_soon_as_without_a_read(tmp_path: Path) -> None:
    knobs = merged(Knobs(), FAST | {"time_scale": 1.0, "prefill_tok_per_s": 400.0})
    ask = json.loads(body("person " * 40, max_tokens=1, stream=False))
    async with (
        serving(knobs) as served,
        standing(served.url, prefixes=[prefix(tmp_path, "d", "d " * 8000)]) as box,
        httpx.AsyncClient(base_url=served.url, trust_env=False) as client,
    ):

        async def took_s(text: str) -> float:
            began_s = time.monotonic()
            answer = await client.post(CHAT, json=ask | {"messages": [{"role": "user", "content": text}]})
            assert answer.status_code == 200
            return time.monotonic() - began_s

        alone_s = await took_s("one " * 80)
        box.start("one")
        await box.until(lambda: served.engine.stats.running == 1)
        box.comes()
        beside_s = await took_s("two " * 80)
        assert beside_s < alone_s + 3.0, (alone_s, beside_s)  # what is left would have taken 10 s


async def test_a_file_that_is_broken_is_a_finding_until_a_reload_finds_it_good(tmp_path: Path) -> None:
    named = prefix(tmp_path, "d")
    assert named.file is not None
    good = named.file.read_bytes()
    named.file.write_bytes(b"{")
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url, prefixes=[named]) as box:
        box.start("one")
        await box.until(box.reader.findings)
        (finding,) = box.reader.findings()
        assert "d.json is not JSON" in finding.observed
        named.file.write_bytes(good)
        box.reader.reload()
        await box.read_all()
        assert box.reader.findings() == ()
        assert systems(served.engine) == ["d"]


async def test_a_prefix_that_the_engine_refuses_is_a_finding_and_not_tried_again(tmp_path: Path) -> None:
    knobs = merged(Knobs(), FAST | {"context_tokens": 50})
    async with serving(knobs) as served, standing(served.url, prefixes=[prefix(tmp_path, "d")]) as box:
        box.start("one")
        await box.read_all()
        assert (box.reader.state.given_up, served.engine.stats.requests) == (1, 1)
        (finding,) = box.reader.findings()
        assert finding.observed.startswith("d: the engine answered 400 (")
        assert box.core.log.named("prewarm.failed") == ["d"]


async def test_what_a_seat_shares_and_the_engine_refuses_is_told_of_the_seat(tmp_path: Path) -> None:
    knobs = merged(Knobs(), FAST | {"context_tokens": 50})
    shared = PrefixSettings(name="team", seat="a")
    async with serving(knobs) as served, standing(served.url, prefixes=[shared]) as box:
        box.reader.keep("one", "a", CHAT, body("system " * 200))
        box.start("one")
        await box.until(box.reader.findings)
        (finding,) = box.reader.findings()
        assert "file" not in finding.remedy
        assert "once a has sent something else" in finding.remedy


@dataclass
class Places:
    """In place of placing.Placing: one place, and what was to be copied."""

    copied: list[bool] = field(default_factory=list)

    def __call__(self, *_: object) -> Places:
        return self

    async def place(self, key: str) -> int:
        return 0

    async def approach(self, key: str, path: str, body: bytes, sequence: int) -> int:
        return 0

    async def was_read(self, *, copied: bool, prefixes_left: int) -> int:
        self.copied.append(copied)
        return 0


@pytest.mark.parametrize("there", [False, True])
async def test_a_prefix_that_the_engine_had_already_is_not_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    places, named = Places(), prefix(tmp_path, "d", "d " * 4000)
    monkeypatch.setattr(reader_module, "Placing", places)
    abilities = EngineAbilities(sequence_copies=4, sequence_folder=str(tmp_path))
    async with (
        serving(merged(Knobs(), FAST)) as served,
        standing(served.url, prefixes=[named], abilities=abilities) as box,
    ):
        if there and named.file is not None:
            async with httpx.AsyncClient() as client:
                await client.post(served.url + CHAT, json=json.loads(named.file.read_bytes()) | {"stream": False})
        box.start("one")
        await box.read_all()
    assert places.copied == [not there]


async def test_a_prefix_that_no_sequence_is_left_for_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "Placing", Places())
    abilities = EngineAbilities(sequence_copies=1, sequence_folder=str(tmp_path))
    named = [prefix(tmp_path, "docs"), prefix(tmp_path, "more")]
    async with (
        serving(merged(Knobs(), FAST)) as served,
        standing(served.url, prefixes=named, abilities=abilities) as box,
    ):
        box.start("one")
        await box.read_all()
        box.reader.reload()
        await box.until(lambda: not box.reader._look_again)
    assert systems(served.engine) == ["docs"]
    assert box.core.log.named("prewarm.failed") == ["more"]
    assert box.reader.findings() == ()


async def test_an_engine_that_is_busy_is_asked_three_times(tmp_path: Path) -> None:
    knobs = merged(Knobs(), FAST | {"reject_status": 503})
    async with serving(knobs) as served, standing(served.url, prefixes=[prefix(tmp_path, "d")]) as box:
        box.start("one")
        await box.read_all()
        assert (box.reader.state.given_up, served.engine.stats.requests) == (1, 3)


async def test_an_engine_that_dies_in_the_middle_begins_anew(tmp_path: Path) -> None:
    knobs = merged(Knobs(), FAST | {"time_scale": 1.0, "prefill_tok_per_s": 50.0})
    async with serving(knobs) as served, standing(served.url, prefixes=[prefix(tmp_path, "d")]) as box:
        box.start("one")
        await box.until(lambda: served.engine.stats.running == 1)
        box.lose()
        await box.until(lambda: served.engine.stats.running == 0)
        served.engine.apply(merged(Knobs(), FAST))
        box.start("two")
        await box.read_all()
        assert (box.reader.state.done, box.reader.state.cut) == (1, 0)


async def test_switched_off_it_reads_and_keeps_nothing(tmp_path: Path) -> None:
    off = PrewarmSettings(enabled=False)
    async with (
        serving(merged(Knobs(), FAST)) as served,
        standing(served.url, prefixes=[prefix(tmp_path, "d")], prewarm=off) as box,
    ):
        box.start("one")
        box.reader.keep("r", "a", CHAT, body("x"))
        await asyncio.sleep(0.1)
        assert (served.engine.stats.requests, box.reader.heads.held_bytes) == (0, 0)


async def test_no_text_is_logged(tmp_path: Path) -> None:
    named = [prefix(tmp_path, "d", "secret " * 100)]
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url, prefixes=named) as box:
        box.start("one")
        box.reader.keep("r", "a", CHAT, body("secret " * 300))
        await box.read_all()
        box.start("two")
        await box.until(lambda: box.reader.state.of == 2)
        await box.read_all()
        assert "secret" not in repr((box.core.log.lines, box.reader.state))
