"""A box with (made-up) cards: what speaks against a start keeps the engine down and the gateway up until mended."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.state import BoxState, Phase
from tests.box.boxes import furnish
from tests.checkpoint.packs.fixtures import pack_folder
from tests.e2e.box import ROOT, Box, until
from tests.e2e.conftest import MakeBox
from tests.fake_nvml import FakeNvml, scenarios

__all__ = ["pack_folder"]

RECHECK_S = 0.5
STUDY = ROOT / "plans/deepseek-v4.1-flash-2x-rtx-pro-6000.json"


@pytest.fixture
def cards(tmp_path: Path) -> FakeNvml:
    fake = FakeNvml(tmp_path / "cards", scenarios.TWO_GOOD)
    furnish(fake.root)
    return fake


def started(make_box: MakeBox, cards: FakeNvml, *, recheck_s: float = 3600.0, **tables: dict[str, Any]) -> Box:
    known = ("LD_LIBRARY_PATH", "PATH")
    environ = {name: value for name, value in cards.environ().items() if name in known or name.startswith("FAKE")}
    patches = {"appliance.examine.ROOT": str(cards.root), "appliance.engine.supervisor.RECHECK_S": recheck_s}
    return make_box(tables=tables or {"preflight": {"gpus": 2}}, patches=patches, environ=environ).start()


def in_phase(box: Box, phase: Phase, limit_s: float = 30.0) -> BoxState:
    def look() -> BoxState | None:
        try:
            state = BoxState.model_validate(box.state())
        except OSError:
            return None
        return state if state.engine.phase is phase else None

    return until(f"the engine is {phase}", look, limit_s)


def page(box: Box) -> str:
    answer = httpx.get(f"{box.url}/admin", headers={"authorization": f"Bearer {box.admin_key}"})
    assert answer.status_code == 200
    return answer.text


def asked(box: Box) -> httpx.Response:
    return httpx.post(
        f"{box.url}/v1/chat/completions",
        headers={"authorization": f"Bearer {box.keys['a']}"},
        json={"model": "fake-model", "messages": [{"role": "user", "content": "hello"}]},
        timeout=30,
    )


def test_a_card_that_is_missing_refuses_the_engine_with_the_page_up(make_box: MakeBox, cards: FakeNvml) -> None:
    # given a box of two cards, one of which does not answer
    cards.configure(missing=1)
    box = started(make_box, cards)
    refused = in_phase(box, Phase.REFUSED)
    # then clients, page and operator are told which, and nothing was started
    assert refused.engine.pid is None
    assert "gpu.lost" in [finding.id for finding in refused.findings]
    until("the gateway answers", lambda: box.log and '"gateway.started"' in box.log, 20)
    answer = asked(box)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert "gpu.lost" in page(box)
    told = box.cli("status")
    assert "Not serving" in told.stdout
    # when the card is back and somebody says so
    cards.configure(missing=0)
    assert box.cli("restart").returncode == 0
    # then the box serves
    in_phase(box, Phase.READY)
    until("a completion", lambda: asked(box).status_code == 200, 10)


def test_a_card_that_comes_back_is_seen_without_being_told(make_box: MakeBox, cards: FakeNvml) -> None:
    cards.configure(missing=1)
    box = started(make_box, cards, recheck_s=RECHECK_S)
    in_phase(box, Phase.REFUSED)
    cards.configure(missing=0)
    state = in_phase(box, Phase.READY)
    assert [finding.id for finding in state.findings if finding.severity == "fail"] == []


def test_a_driver_that_hangs_does_not_hold_up_the_daemon(make_box: MakeBox, cards: FakeNvml) -> None:
    # given a driver that never answers
    cards.configure(hang="nvmlInitWithFlags")
    box = started(make_box, cards)
    # then the gateway is up before the deadline, and the daemon ends when it is told to, in the midst of it
    until("the gateway answers", lambda: '"gateway.started"' in box.log, 20)
    assert BoxState.model_validate(box.state()).engine.phase is Phase.PREPARING
    assert asked(box).status_code == 503


def test_what_is_forced_starts_the_engine_and_stays_shown(make_box: MakeBox, cards: FakeNvml) -> None:
    cards.configure(missing=1)
    box = started(make_box, cards)
    failing = [f.id for f in in_phase(box, Phase.REFUSED).findings if f.severity == "fail"]
    for id_ in failing:
        box.cli("preflight", "--root", str(cards.root), "--force", id_, "--reason", "one card is enough today")
    box.cli("restart")
    state = in_phase(box, Phase.READY)
    assert {f.forced for f in state.findings if f.id in failing} == {"one card is enough today"}
    assert "one card is enough today" in page(box)


def test_a_plan_that_does_not_fit_refuses_and_shows_its_bars(
    make_box: MakeBox, cards: FakeNvml, pack_folder: Any
) -> None:
    # given cards of half the size
    small = tuple(
        type(card)(**{**vars(card), "total_bytes": card.total_bytes // 2}) for card in scenarios.TWO_GOOD.cards
    )
    cards.configure(cards=small)
    box = started(make_box, cards, plan={"file": str(STUDY), "checkpoint": str(pack_folder("study"))})
    refused = in_phase(box, Phase.REFUSED)
    assert refused.plan is not None
    assert not refused.plan.fits
    assert re.match(r"does not fit: \d+\.\d GiB over with the weights alone", refused.plan.verdict)
    shown = page(box)
    assert refused.plan.verdict in shown
    assert "plan.fits" in shown
    assert "routed experts" in box.cli("status").stdout
    # when the right cards are there
    cards.configure(cards=scenarios.TWO_GOOD.cards)
    box.cli("restart")
    # then the engine starts and the plan stays on the page
    assert (in_phase(box, Phase.READY).plan or refused.plan).fits
    until("the page says so", lambda: "GiB a card left for KV" in page(box), 10)
