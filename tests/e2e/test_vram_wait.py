"""Between two engines the daemon waits for the (made-up) cards' memory, and starts nothing while it is held."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.box.boxes import furnish
from tests.e2e.box import Box, kill9
from tests.e2e.conftest import MakeBox
from tests.fake_nvml import FakeNvml
from tests.fake_nvml.setup import CARDS, GIB, Process, Setup

FULL = (replace(CARDS[0], used_bytes=71 * GIB), CARDS[1])


@pytest.fixture
def cards(tmp_path: Path) -> FakeNvml:
    fake = FakeNvml(tmp_path / "cards", Setup(cards=CARDS))
    furnish(fake.root)
    return fake


def started(make_box: MakeBox, cards: FakeNvml, limit_s: float) -> Box:
    known = ("LD_LIBRARY_PATH", "PATH")
    environ = {name: value for name, value in cards.environ().items() if name in known or name.startswith("FAKE")}
    patches: dict[str, float | str] = {
        "appliance.examine.ROOT": str(cards.root),
        "appliance.engine.vram.LIMIT_S": limit_s,
        "appliance.engine.vram_wait.PERIOD_S": 0.2,
    }
    tables = {"engine": {"grace_s": 0.3}}
    return make_box(tables=tables, patches=patches, environ=environ).start().wait_ready()


def test_the_next_engine_waits_until_the_memory_of_the_last_one_is_free(make_box: MakeBox, cards: FakeNvml) -> None:
    # given an engine that dies and leaves its memory behind
    box = started(make_box, cards, 60.0)
    before = box.state()["engine"]
    cards.configure(cards=FULL)
    kill9(before["pid"])
    # then the wait is shown
    waiting = box.wait_state("it waits", lambda s: "memory" in s["engine"]["step"], 15)["engine"]
    assert (waiting["phase"], waiting["step"]) == ("preparing", "waiting for the cards' memory (71.0 GiB held)")
    assert "waiting for the cards' memory" in box.cli("status").stdout
    assert box.chat("a").status == 503
    # when it is given back
    cards.configure(cards=CARDS)
    box.wait_phase("ready", 15)
    assert box.chat("a").status == 200


def test_memory_that_is_not_given_back_starts_nothing_until_somebody_asks_and_it_is_free(
    make_box: MakeBox, cards: FakeNvml
) -> None:
    box = started(make_box, cards, 1.0)
    cards.configure(cards=FULL)
    kill9(box.engine_pid)
    engine = box.wait_phase("needs_reboot", 15)
    assert engine["cause"]["id"] == "engine.vram_held"
    assert engine["pid"] is None
    assert box.get("/health").status == 200
    # asked while it is held: it looks, and starts nothing
    since_s = engine["since_s"]
    assert box.cli("restart").returncode == 0
    box.wait_state("looked", lambda s: s["engine"]["phase"] == "needs_reboot" and s["engine"]["since_s"] > since_s, 15)
    # a daemon that is started anew does not start into it either, after a stop that takes the runtime folder away
    assert box.stop() == 0
    shutil.rmtree(box.runtime)
    box.start()
    assert box.wait_phase("needs_reboot", 20)["cause"]["id"] == "engine.vram_held"
    # asked when it is free
    cards.configure(cards=CARDS)
    assert box.cli("restart").returncode == 0
    box.wait_phase("ready", 15)


def test_what_a_stranger_took_is_not_waited_for(make_box: MakeBox, cards: FakeNvml) -> None:
    box = started(make_box, cards, 60.0)
    before = box.state()["engine"]
    stranger = Process(box.gateway_pid, 71 * GIB, "blender")
    cards.configure(cards=(replace(FULL[0], processes=(stranger,)), CARDS[1]))
    kill9(before["pid"])
    box.wait_state("started anew", lambda s: s["engine"]["start_id"] not in ("", before["start_id"]), 15)
    assert "blender" in box.log
