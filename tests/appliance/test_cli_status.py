"""appliance.cli.status: the page's twin in a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from appliance.cli.status import render, status
from gateway.snapshot import GatewaySnapshot
from gateway.state import BoxState, Phase, Severity
from gateway.status import view
from gateway.status_view import StatusView
from tests.status_sample import GPU, NOW_S, box, files, finding, gateway, seat, stream


def shown(state: BoxState, snapshot: GatewaySnapshot | None, width: int = 120) -> str:
    out = io.StringIO()
    render(view(state, snapshot, NOW_S), Console(file=out, width=width, color_system=None))
    return out.getvalue()


def test_a_busy_box_is_told_in_the_words_of_the_page() -> None:
    text = shown(box(), gateway(4, 3))
    for word in (
        "Full: 4 of 4 streams busy, 3 wait; the next ticket is free in ~6 s.",
        "~61.2 tok/s",
        "floor 40 tok/s",
        "req-seat3",
        "~17 s",
        "1 of 1",
        "98 000",
        "mean stream 22 s",
    ):
        assert word in text


def test_trouble_comes_first_with_what_to_type() -> None:
    state = box(Phase.FAILED, cause=GPU, findings=(finding("gpu", Severity.FAIL), finding("late", depends_on="gpu")))
    lines = [line.strip() for line in shown(state, gateway(0, closed="engine_lost")).splitlines()]
    assert lines[0].endswith("Mend it, then:")
    assert lines[1] == "moe-appliance restart"
    assert "mend gpu" in lines
    assert "└ warn The late is wrong" in lines
    assert "│ main: model loaded" in lines
    assert "1  closed" in lines


def test_without_a_gateway_nothing_of_it_is_made_up() -> None:
    text = shown(box(), None)
    assert text.startswith("● Not serving: the gateway does not answer")
    assert "streams" not in text.split("engine ", 1)[1]


@pytest.mark.parametrize("state", list(Phase))
def test_every_phase_can_be_shown_in_a_narrow_terminal(state: Phase) -> None:
    found = box(state, cause=GPU, step="loading", progress=0.5, retry_at_s=NOW_S + 2)
    assert "50 %" in shown(found, gateway(1, 1, seats=()), width=40)


def test_markup_and_control_characters_of_others_do_nothing() -> None:
    evil = "[red]x[/red]\x1b[2J\x07"
    state = box(Phase.FAILED, log_tail=(evil,), cause=GPU.model_copy(update={"title": evil}), models=(evil,))
    found = gateway(1).model_copy(update={"running": (stream(evil),), "seats": (seat(evil),), "files": files(evil)})
    text = shown(state, found, width=300)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count("[red]x[/red]") >= 5


def test_json_goes_out_whole_and_comes_back_the_same() -> None:
    out = io.StringIO()
    found = view(box(), gateway(4, 2), NOW_S)
    console = Console(file=out, width=20, color_system=None)
    for given in (found, found.model_dump_json(), found.model_dump_json().encode(), found.model_dump(mode="json")):
        out.seek(0)
        out.truncate()
        assert status(given, True, console) == found
        assert StatusView.model_validate(json.loads(out.getvalue())) == found


def test_text_is_printed_when_json_is_not_asked_for() -> None:
    out = io.StringIO()
    status(view(box(), gateway(), NOW_S), False, Console(file=out, width=100))
    assert out.getvalue().startswith("● Serving")


def test_what_is_no_status_is_refused() -> None:
    with pytest.raises(ValueError, match="verdict"):
        status("{}", False, Console(file=io.StringIO()))
