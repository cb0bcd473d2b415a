"""gateway.status_*: operator, events, sparklines, cards, the chance of one more stream, ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.ledger.rows import Activity, LedgerState
from gateway.snapshot import GatewaySnapshot, HistoryView
from gateway.state import BoxState, GaugesState, Phase, Severity
from gateway.status.compose import view
from gateway.status.figures import Tone, byte_rate, compact, fine_percent, hours
from gateway.status.history import POINTS
from gateway.status.operator import EVENTS_SHOWN
from tests.status_sample import NOW_S, box, event, gateway, gpu, lively, seat


def names(state: BoxState, found: GatewaySnapshot | None) -> list[str]:
    return [action.name for action in view(state, found, NOW_S).operator.actions]


# What may be done


@pytest.mark.parametrize(
    ("mode", "offered"),
    [
        ("serving", ["pause", "drain", "restart-engine", "reload"]),
        ("paused", ["resume", "drain", "restart-engine", "reload"]),
        ("drained", ["resume", "pause", "restart-engine", "reload"]),
    ],
)
def test_only_what_makes_sense_in_a_mode_is_offered(mode: str, offered: list[str]) -> None:
    assert names(box(), gateway(mode=mode)) == offered


@pytest.mark.parametrize("phase", list(Phase))
def test_an_engine_that_stands_is_started_and_one_that_runs_is_restarted(phase: Phase) -> None:
    offered = set(names(box(phase), gateway(0))) & {"start-engine", "restart-engine"}
    if phase in (Phase.OFF, Phase.REFUSED, Phase.FAILED, Phase.NEEDS_REBOOT):
        assert offered == {"start-engine"}
    elif phase is Phase.STOPPING:
        assert offered == set()
    else:
        assert offered == {"restart-engine"}


def test_nothing_is_offered_where_nobody_would_do_it() -> None:
    assert names(box(), None) == []
    assert names(box(), gateway(draining=True)) == []
    assert names(box().model_copy(update={"stopping": True}), gateway()) == []
    assert "restart-engine" not in names(box(kind="static"), gateway()), "there is no daemon to ask"


def test_an_effect_names_what_it_touches() -> None:
    found = view(box(), gateway(3, 0), NOW_S).operator
    effects = {action.name: action.effect for action in found.actions}
    assert effects["drain"].startswith("3 running streams go on to the end.")
    assert effects["restart-engine"].startswith("It ends 3 running streams in the middle.")
    assert "3 min at most" in effects["pause"]
    idle = {action.name: action.effect for action in view(box(), gateway(0), NOW_S).operator.actions}
    assert idle["drain"].startswith("Nothing runs now. Who waits or comes is refused")


def test_a_seat_that_is_off_can_be_let_in_and_one_that_expired_cannot() -> None:
    seats = (seat("ana"), seat("ben", state="disabled", off_by="root"), seat("chris", state="expired"))
    found = view(box(), gateway(seats=seats), NOW_S).operator.seat_actions
    assert [(action.seat, action.name) for action in found] == [("ana", "disable-seat"), ("ben", "enable-seat")]


def test_the_mode_is_told_with_who_set_it_and_when() -> None:
    found = view(box(), gateway(mode="paused", mode_by="root", mode_since_s=NOW_S - 90), NOW_S).operator
    assert found.sentence == "Paused by root 90 s ago"


# Events


def test_events_of_daemon_and_gateway_are_merged_newest_first_and_once() -> None:
    both = event("engine.phase", 50, "ready")
    state = box().model_copy(update={"events": (event("box.started", 90, "began"), both)})
    found = view(state, gateway(events=(both, event("operator.mode", 10, "paused", who="root"))), NOW_S).events
    assert [row.text for row in found] == ["paused", "ready", "began"]
    assert found[0].who == "root"


def test_no_more_events_are_shown_than_fit() -> None:
    many = tuple(event("requests.refused", n, str(n), Severity.WARN) for n in range(100))
    found = view(box(), gateway(events=many), NOW_S).events
    assert len(found) == EVENTS_SHOWN
    assert found[0].text == "0"


def test_an_event_of_another_day_tells_its_day() -> None:
    found = view(box(), gateway(events=(event("box.started", 86_400 * 2, "began"),)), NOW_S).events
    assert found[0].at == "13 Jan 08:00"


# Sparklines


def history(count: int, **changes: Any) -> HistoryView:
    base = HistoryView(
        step_s=5.0,
        until_s=NOW_S,
        streams=(1,) * count,
        slowest_tok_per_s=(50.0,) * count,
        cached_share=(0.5,) * count,
    )
    return base.model_copy(update=changes)


@pytest.mark.parametrize("count", [1, 2, 179, 180, 181, 359, 719, 720])
def test_a_line_has_no_more_points_than_can_be_seen(count: int) -> None:
    found = view(box(), gateway(history=history(count)), NOW_S).history
    assert found is not None
    for spark in found.sparks:
        assert 1 <= len(spark.points) <= POINTS
        assert all(point is not None and 0 <= point <= 1 for point in spark.points)


def test_thinning_keeps_the_slowest_pace_and_the_most_streams() -> None:
    slow = [80.0] * 720
    slow[333] = 12.0
    busy = [0] * 720
    busy[334] = 4
    found = view(
        box(), gateway(history=history(720, slowest_tok_per_s=tuple(slow), streams=tuple(busy))), NOW_S
    ).history
    assert found is not None
    streams, slowest, _ = found.sparks
    assert max(point or 0 for point in streams.points) == 1.0
    assert min(point for point in slowest.points if point is not None) == pytest.approx(12 / 80, abs=0.001)
    assert "at the least ~12.0 tok/s" in slowest.said
    assert "below the floor in 0 % of it" in slowest.said


def test_the_floor_and_the_cap_are_drawn_where_they_are() -> None:
    found = view(box(), gateway(history=history(10)), NOW_S).history
    assert found is not None
    streams, slowest, cached = found.sparks
    assert (streams.mark, streams.mark_label) == (1.0, "cap 4")
    assert (slowest.mark, slowest.mark_label) == (0.5, "floor 40 tok/s")
    assert cached.mark is None


def test_an_hour_without_streams_is_told_without_a_pace() -> None:
    quiet = history(10, slowest_tok_per_s=(None,) * 10, streams=(0,) * 10, cached_share=(None,) * 10)
    found = view(box(), gateway(history=quiet), NOW_S).history
    assert found is not None
    assert str(found.sparks[1].now) == "–"
    assert found.sparks[1].said == "Slowest stream over the last 50 s: now –, at the least –."


# Cards


def test_cards_are_shown_with_units_and_shares() -> None:
    state, found = lively()
    gauges = view(state, found, NOW_S).gauges
    assert gauges is not None
    first, second = gauges.gpus
    told = (first.busy, first.memory_used, first.temperature, first.power, first.pcie_rx, first.pcie_tx)
    assert [str(figure) for figure in told] == ["87 %", "88.0 GiB", "71 °C", "512 W", "21.0 GB/s", "3 MB/s"]
    assert (first.link, first.memory_share, first.slowed_by) == ("Gen5 x16", 0.917, ())
    assert second.slowed_by == ("power cap",)
    assert not gauges.stale


@pytest.mark.parametrize("changes", [{"at_s": NOW_S - 16}, {"error": "the driver has not answered for 15 s"}])
def test_old_figures_stay_and_are_marked(changes: dict[str, Any]) -> None:
    state = GaugesState(at_s=NOW_S - 1, gpus=(gpu(0),)).model_copy(update=changes)
    gauges = view(box().model_copy(update={"gauges": state}), gateway(), NOW_S).gauges
    assert gauges is not None
    assert gauges.stale
    assert str(gauges.gpus[0].busy) == "87 %"


def test_what_a_card_does_not_say_is_unknown() -> None:
    shy = gpu(0, busy_share=None, power_w=None, pcie_rx_bytes_per_s=None, link_gen=None, memory_total_bytes=None)
    gauges = view(box().model_copy(update={"gauges": GaugesState(at_s=NOW_S, gpus=(shy,))}), gateway(), NOW_S).gauges
    assert gauges is not None
    card = gauges.gpus[0]
    assert {str(card.busy), str(card.power), str(card.pcie_rx), str(card.memory_total)} == {"–"}
    assert (card.link, card.memory_share, card.power_share) == ("", None, None)


def test_a_box_without_cards_has_no_gauges() -> None:
    assert view(box(), gateway(), NOW_S).gauges is None


# The chance of one more stream


def chance(**changes: Any) -> Any:
    _, found = lively()
    assert found.ledger is not None
    busy = replace(found.ledger.busy or Activity(**{}), **changes)
    return view(box(), gateway(ledger=replace(found.ledger, busy=busy)), NOW_S).fifth


def test_a_kept_promise_is_told_with_what_it_rests_on() -> None:
    found = chance()
    assert found.tone is Tone.OK
    assert found.sentence == (
        "More than 4 streams were wanted in 0.8 % of working time, measured over 72 h of work on 9 days: "
        "the 1 % promise is kept."
    )


@pytest.mark.parametrize(("share", "tone"), [(0.01, Tone.OK), (0.0101, Tone.WARN)])
def test_the_promise_is_one_hundredth(share: float, tone: Tone) -> None:
    assert chance(above_share=share).tone is tone


def test_a_broken_promise_warns() -> None:
    found = chance(above_share=0.034)
    assert found.tone is Tone.WARN
    assert found.sentence.endswith(
        "in 3.4 % of working time, measured over 72 h of work on 9 days: the 1 % promise is not kept."
    )


def test_too_few_hours_judge_nothing() -> None:
    found = chance(above_share=0.2, enough=False, days=1, hours=6.5, requests=1_204)
    assert found.tone is Tone.OK
    assert found.sentence == "Too little to say yet: 1 204 requests on 1 day so far."


def test_before_the_first_look_nothing_is_said() -> None:
    assert view(box(), gateway(ledger=LedgerState()), NOW_S).fifth is None
    assert view(box(), gateway(), NOW_S).fifth is None


# Ledger and budgets


def test_a_ledger_that_loses_rows_is_not_well() -> None:
    found = view(box(), gateway(ledger=LedgerState(rows=10, lost=3, error="disk full")), NOW_S).ledger
    assert found is not None
    assert (found.ok, str(found.lost), found.error) == (False, "3", "disk full")
    assert view(box(), gateway(), NOW_S).ledger is None


def test_a_seat_over_its_budget_has_a_full_bar() -> None:
    rows = {row.name: row for row in view(*lively(), NOW_S).seats}
    assert (rows["ana"].budget_share, rows["ana"].over_budget) == (0.62, False)
    assert (rows["chris"].budget_share, rows["chris"].over_budget) == (1.0, True)
    assert rows["ben"].budget_share is None
    assert str(rows["chris"].month_tokens) == "31.0 M"


# Figures


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 k"),
        (12_440, "12.4 k"),
        (999_600, "1.00 M"),
        (250_000_000, "250 M"),
        (4_000_000_000_000, "4000 G"),
    ],
)
def test_large_numbers_have_three_digits(value: int, text: str) -> None:
    assert str(compact(value)) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.0002, "<0.1 %"), (0.008, "0.8 %"), (0.0999, "10 %"), (0.31, "31 %"), (1.0, "100 %")],
)
def test_small_shares_keep_a_decimal_and_are_never_zero(share: float, text: str) -> None:
    assert str(fine_percent(share)) == text


def test_rates_and_hours() -> None:
    assert [str(byte_rate(value)) for value in (None, 0.0, 3.1e6, 21e9)] == ["–", "0 MB/s", "3 MB/s", "21.0 GB/s"]
    assert [str(hours(value)) for value in (None, 0.5, 71.5)] == ["–", "0.5 h", "72 h"]
