"""appliance.cli.status: the page's twin in a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from appliance.cli import status_live
from appliance.cli.show import WATCH_S, again_and_again
from appliance.cli.status import render, status
from appliance.errors import MoeError, NotRunning
from gateway.snapshot import GatewaySnapshot
from gateway.state import BoxState, Cause, HostKv, Phase, Severity
from gateway.status.compose import view
from gateway.status.figures import Figure
from gateway.status.live import SparkView
from gateway.status.views import StatusView
from tests.status_sample import GPU, NOW_S, box, files, finding, gateway, lively, seat, stream, watch_row


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


# What moves


def test_the_new_parts_of_the_page_are_told_too() -> None:
    text = shown(*lively(), width=140)
    for word in (
        "off by root",
        "12.4 M of 20.0 M",
        "93 %",
        "slowest stream",
        "floor 40 tok/s",
        "slowed by power cap",
        "71 °C",
        "the 1 % promise is kept",
        "18 240 requests over 40 d, 9.0 MiB",
        "3 requests refused: queue full",
    ):
        assert word in text


def test_cold_lane_cache_and_speed_are_told_in_the_words_of_the_page() -> None:
    text = shown(*lively(), width=140)
    for word in (
        "Serving: 3 of 4 streams busy, 2 wait; held free for a ~128K prompt of ana, at most ~14 s more.",
        "gate closed, prompts over 12.0 k tokens and 5 s",
        "4  held free",
        "a ~128K prompt of ana is read first, about 43 s",
        "over its share",
        "71 % of ~95 %",
        "~612 k of ~800 k tokens, losses 2, 1 in 5 min",
        "64.0 GiB on",
        "~47.3 tok/s of 31 answers, floor 40 tok/s",
        "100 k tokens in ~14 s, from 42 measurements on this box",
        "4 of 5 read, now a conversation of dana; 248 k tokens in 39 s, cut by arrivals 1",
        "ben claude-cli  changed 4 of 10, lost ~63 s in 1 h",
        "byte 18 212, in system prompt: *: a+=x+; a+=",
        "long prompts read",
    ):
        assert word in text
    assert "codex" not in text, "a client that changes nothing is not told of"


def test_reasons_are_folded_in_a_narrow_terminal() -> None:
    lines = shown(*lively(), width=60).split("\nqueue ")[1].split("\nseats ")[0].splitlines()[1:]
    assert max(len(line) for line in lines) <= 60
    assert "it is long and comes" in "".join(lines)


def test_a_lowered_cap_and_a_tier_that_is_off_are_told() -> None:
    state, found = lively()
    assert found.speed is not None
    off = HostKv(bytes=1 << 36, off=Cause(id="engine.host_kv", title="no prompt came back", remedy="x"))
    slow = found.speed.model_copy(update={"cap": 3})
    state = state.model_copy(update={"engine": state.engine.model_copy(update={"host_kv": off})})
    text = shown(state, found.model_copy(update={"speed": slow}), width=140)
    assert "Lowered by the floor guard: 3 of the 4 validated" in text
    assert "64.0 GiB off: no prompt came back" in text


def test_many_clients_that_change_their_prompts_are_counted() -> None:
    state, found = lively()
    rows = tuple(watch_row(f"s{n}") for n in range(9))
    text = shown(state, found.model_copy(update={"watch": rows}), width=140)
    assert "3 more: moe-appliance status --json" in text


def test_a_mode_is_told_with_the_command_that_ends_it() -> None:
    text = shown(box(), gateway(mode="drained", mode_by="root", mode_since_s=NOW_S - 30))
    assert text.count("Drained by root 30 s ago") == 1
    assert text.count("moe-appliance resume") == 1


def test_cards_that_do_not_answer_are_told_with_their_age() -> None:
    state, found = lively()
    assert state.gauges is not None
    old = state.gauges.model_copy(update={"at_s": NOW_S - 40, "error": "the driver has not answered for 15 s"})
    text = shown(state.model_copy(update={"gauges": old}), found, width=140)
    assert "40 s old, the driver has not answered for 15 s" in text


# Again and again


class Clock:
    """Sleeps that end after `looks`, as Ctrl-C ends them."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def __call__(self, seconds: float) -> None:
        assert seconds == WATCH_S
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def watched(answers: list[StatusView | MoeError], *, as_json: bool = False, terminal: bool = False) -> str:
    left = iter(answers)

    def ask() -> StatusView:
        answer = next(left)
        if isinstance(answer, MoeError):
            raise answer
        return answer

    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None, force_terminal=terminal)
    again_and_again(ask, as_json, console, Clock(len(answers)))
    return out.getvalue()


def test_watching_says_it_again_through_a_gap_until_ctrl_c() -> None:
    serving, absent = view(box(), gateway(), NOW_S), view(box(), None, NOW_S)
    text = watched([serving, NotRunning("no appliance answers at /run/x", "start it"), absent, serving])
    told = [
        text.index("● Serving"),
        text.index("no appliance answers at /run/x"),
        text.index("● Not serving: the gateway does not answer"),
        text.rindex("● Serving"),
    ]
    assert told == sorted(told)


def test_watching_as_json_is_a_line_a_look() -> None:
    found = view(box(), gateway(), NOW_S)
    lines = watched([found, NotRunning("none", "x"), found], as_json=True).splitlines()
    assert [StatusView.model_validate_json(line) for line in lines] == [found, found]


def test_watching_on_a_terminal_draws_in_place_and_gives_the_screen_back() -> None:
    text = watched([view(box(), gateway(), NOW_S)] * 2, terminal=True)
    assert "\x1b[?1049h" in text
    assert text.rindex("\x1b[?1049l") > text.rindex("Serving")


def test_a_box_that_never_ran_ends_watching_with_its_error() -> None:
    with pytest.raises(NotRunning):
        watched([NotRunning("no appliance answers at /run/x", "start it")])


def test_a_thinned_sparkline_keeps_the_most_streams_and_the_slowest_pace() -> None:
    quiet_but_for_one = tuple(1.0 if at == 40 else 0.25 for at in range(80))
    fast_but_for_one = tuple(0.0 if at == 40 else 1.0 for at in range(80))
    spark = SparkView(
        id="streams", label="", now=Figure(), points=quiet_but_for_one, mark=None, mark_label="", top=Figure(), said=""
    )
    slowest = spark.model_copy(update={"id": "slowest", "points": fast_but_for_one})
    assert (status_live._line(spark).count("█"), status_live._line(slowest).count("▁")) == (1, 1)
