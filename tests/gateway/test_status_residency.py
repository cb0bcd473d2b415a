"""How visits to experts in host RAM are shown: shares are counted, bytes are estimates, and a reading has an age."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from appliance.cli.status import render as in_terminal
from gateway.metrics import render
from gateway.pages.assets import static_files, templates
from gateway.state import PlanState, ResidencyFigures
from gateway.status.compose import view
from gateway.status.views import StatusView
from tests.status_sample import NOW_S, box, gateway

MIB = 1 << 20
COUNTED = ResidencyFigures(
    at_s=NOW_S - 12,
    tokens=128,
    seconds=4.0,
    visits=128 * 8 * 40,
    cold_visits=1_680,
    cold_bytes=1_680 * 9 * MIB,
    swapped=1_214,
)
SENTENCE = (
    "4.1 % of visits to experts went to host RAM: ~118.1 MiB a token, ~4.0 GB/s over each card's link; 1 214 exchanged"
    " since the start; counted 12 s ago"
)


def shown(counted: ResidencyFigures | None, now_s: float = NOW_S) -> StatusView:
    plan = PlanState(
        plan_id="sha256:" + "a" * 64, file="p", name="n", cold_experts=1, experts=2, fits=True, verdict="fits"
    )
    return view(box(residency=counted).model_copy(update={"plan": plan}), gateway(), now_s)


def test_page_and_terminal_say_it_in_one_sentence() -> None:
    found = shown(COUNTED)
    page = templates(static_files()).get_template("fragment.html").render(view=found, csrf=lambda *of: "")
    out = io.StringIO()
    in_terminal(found, Console(file=out, width=200, color_system=None))
    assert found.residency is not None
    assert found.residency.sentence == SENTENCE
    assert SENTENCE.replace("'", "&#39;") in page
    assert SENTENCE in out.getvalue()


def test_what_was_counted_has_no_mark_and_what_was_worked_out_has_one() -> None:
    found = shown(COUNTED).residency
    assert found is not None
    assert {one.estimated for one in (found.cold_share, found.exchanges, found.age)} == {False}
    assert {one.estimated for one in (found.token_bytes, found.link_rate)} == {True}


def test_an_engine_that_counted_nothing_says_so_and_how_long() -> None:
    found = shown(ResidencyFigures(at_s=NOW_S - 1800))
    assert found.residency is not None
    assert found.residency.sentence == "no visits to experts were counted since the start 30 min ago"
    said = [line for line in render(found)[0].decode().splitlines() if line.startswith("moe_residency")]
    assert said == ["moe_residency_reading_age_seconds 1800.0"]


def test_a_box_without_work_says_how_old_its_figures_are() -> None:
    found = shown(COUNTED, NOW_S + 3 * 3600).residency
    assert found is not None
    assert found.sentence.endswith("counted 3 h ago")


@pytest.mark.parametrize(
    ("cold_visits", "cold_bytes", "share", "each"),
    [(0, 0, "0 %", "~0.0 MiB"), (1, MIB, "<0.1 %", "~0.0 MiB"), (40_960, 128 * 2048 * MIB, "100 %", "~2.0 GiB")],
)
def test_none_few_and_all_of_them_are_told_apart(cold_visits: int, cold_bytes: int, share: str, each: str) -> None:
    changes = {"cold_visits": cold_visits, "cold_bytes": cold_bytes}
    found = shown(COUNTED.model_copy(update=changes)).residency
    assert found is not None
    assert (found.cold_share.text, found.token_bytes.text) == (share, each)


def test_nothing_is_said_before_anything_was_counted() -> None:
    found = shown(None)
    assert found.residency is None
    assert b"moe_residency" not in render(found)[0]
    page = templates(static_files()).get_template("fragment.html").render(view=found, csrf=lambda *of: "")
    assert "visits to experts" not in page


def test_prometheus_gets_the_figures_and_their_age() -> None:
    lines = render(shown(COUNTED))[0].decode().splitlines()
    samples = {name: float(value) for name, _, value in (line.partition(" ") for line in lines) if name[0] != "#"}
    assert samples["moe_residency_cold_visits_ratio"] == pytest.approx(1_680 / 40_960)
    assert samples["moe_residency_cold_bytes_per_token"] == 1_680 * 9 * MIB / 128
    assert samples["moe_residency_cold_bytes_per_second"] == 1_680 * 9 * MIB / 4
    assert samples["moe_residency_exchanges_total"] == 1_214
    assert samples["moe_residency_reading_age_seconds"] == 12
