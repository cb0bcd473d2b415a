"""Rule 2 of admission by example: quiet reading, one test for each sentence."""

from __future__ import annotations

import pytest

from gateway.admission import HELPER_PATIENCE_S
from gateway.admission_types import (
    Close,
    Cost,
    Granted,
    Hold,
    Leave,
    Limits,
    Open,
    Queued,
    Reason,
    Rejected,
    Reload,
    SeatLimit,
    TicketId,
)
from tests.gateway.desk import COLD, WARM, Desk

CAPS = pytest.mark.parametrize("cap", [1, 2, 3, 8])
SHORT = Cost(60_000, 60_000, 1.0)


def busy(cap: int = 4, running: int = 1, **limits: float) -> Desk:
    """`running` replies of other people have begun."""
    desk = Desk(streams=cap, **limits)
    desk.runs(*(f"other{number}" for number in range(running)))
    return desk


def behind_a_cold_one(cap: int = 4, **limits: float) -> Desk:
    """1 is warm and runs; 2 was cold and is read; 10 s x 3 of spacing behind 0.0."""
    desk = Desk(streams=cap, **limits)
    desk.runs("other")
    desk.arrive("ana", cost=COLD)
    desk.leave(1)
    desk.runs("other")
    desk.leave(3)
    desk.first_token(2)
    return desk


@pytest.mark.parametrize(
    ("short_s", "uncached", "prefill_s", "told"),
    [
        *((0.0, 1000, 1.0, Granted), (0.0, 1001, 1.0, Queued), (0.0, 1001, 0.0, Queued)),
        *((5.0, 90_000, 4.9, Granted), (5.0, 90_000, 5.0, Queued), (5.0, 1000, 50.0, Granted)),
    ],
)
def test_a_prompt_is_cold_when_much_is_not_cached_and_takes_long(
    short_s: float, uncached: int, prefill_s: float, told: type
) -> None:
    desk = busy(cold_tokens=1000, short_s=short_s)
    desk.leads_s[1] = 0.0
    assert isinstance(desk.arrive("ana", cost=Cost(90_000, uncached, prefill_s)), told)


def test_one_cold_prompt_is_read_at_a_time() -> None:
    desk = Desk(streams=4, spacing=0.0, quiet_s=0.0)
    assert isinstance(desk.arrive("ana", cost=COLD), Granted)
    ben = desk.waits("ben", COLD)
    assert desk.first_token(1) == [ben]


def test_the_next_is_the_first_cold_request_in_the_order() -> None:
    desk = busy(running=2, cap=2)
    ana, ben = desk.waits("ana", COLD, run_s=-1.0), desk.waits("ben", COLD, run_s=-5.0)
    assert desk.leave(1) == []
    assert desk.lane().next == ben
    assert desk.leave(2) == [ben]
    assert desk.leave(ben) == [ana]


def test_it_stays_the_next_once_its_clock_runs() -> None:
    desk = busy()
    ana, ben = desk.waits("ana", COLD), desk.waits("ben", COLD, run_s=-100.0)
    assert desk.policy.order() == [ben, ana]
    assert desk.until(20.0) == [(20.0, ana)]


def test_it_may_go_when_the_spacing_has_passed() -> None:
    desk = behind_a_cold_one()
    ben = desk.waits("ben", COLD)
    assert desk.until(29.0) == []
    assert not desk.lane().closed
    assert desk.until(60.0) == [(50.0, ben)], "3 x 10 s of spacing, 20 s of quiet"


def test_the_spacing_is_at_most_half_the_deadline() -> None:
    desk = behind_a_cold_one(spacing=100.0, queue_deadline_s=60.0)
    ben = desk.waits("ben", COLD)
    assert desk.until(59.0) == [(40.0, ben)], "30 s of spacing, 10 s of quiet"


def test_a_read_that_was_cut_short_keeps_others_away_for_as_long_as_it_took() -> None:
    desk = busy(quiet_s=0.0)
    desk.arrive("ana", cost=COLD)
    ben = desk.waits("ben", COLD)
    desk.until(2.0)
    assert desk.leave(2) == []
    assert desk.until(30.0) == [(6.0, ben)], "3 x 2 s"


def test_a_cut_read_never_makes_the_spacing_longer() -> None:
    desk = busy(quiet_s=0.0)
    desk.arrive("ana", cost=SHORT)
    ben = desk.waits("ben", COLD)
    desk.until(2.5)
    assert desk.leave(2) == []
    assert desk.until(30.0) == [(3.0, ben)]


def test_a_prompt_that_was_read_leaves_its_whole_spacing_behind_when_it_leaves() -> None:
    desk = behind_a_cold_one(quiet_s=0.0)
    ben = desk.waits("ben", COLD)
    desk.runs("cleo")
    desk.now_s = 1.0
    assert desk.leave(2) == []
    assert desk.until(40.0) == [(30.0, ben)]


@CAPS
def test_with_nothing_running_a_cold_prompt_goes_now(cap: int) -> None:
    desk = Desk(streams=cap)
    assert isinstance(desk.arrive("ana", cost=COLD), Granted)
    desk.first_token(1)
    ben = desk.waits("ben", COLD)
    assert desk.leave(1) == [ben], "though the spacing has not passed"


@CAPS
def test_the_spacing_is_not_waived_while_a_warm_request_may_run_instead(cap: int) -> None:
    desk = Desk(streams=cap)
    desk.arrive("ana", cost=COLD)
    desk.first_token(1)
    desk.send(Hold(True))
    ben, cleo = desk.waits("ben", COLD, run_s=-9.0), desk.waits("cleo")
    desk.leave(1)
    assert desk.grants(Hold(False)) == [cleo]
    assert desk.leave(cleo) == [ben]


@CAPS
def test_with_the_spacing_passed_a_cold_prompt_goes_before_warm_ones(cap: int) -> None:
    desk = Desk(streams=cap)
    desk.send(Hold(True))
    cleo, ben = desk.waits("cleo"), desk.waits("ben", COLD)
    assert desk.grants(Hold(False)) == [ben, cleo][:cap]


@pytest.mark.parametrize("other", [{"helper": True}, {"over": True}])
def test_with_nothing_running_who_stands_behind_turns_or_budgets_goes_after_warm_turns(other: dict[str, bool]) -> None:
    desk = busy(cap=1)
    ana, ben = desk.waits("ana", COLD, **other), desk.waits("ben")
    assert desk.leave(1) == [ben]
    assert desk.leave(ben) == [ana]


@pytest.mark.parametrize("cap", [2, 3, 8])
def test_the_gate_is_closed_until_running_replies_have_ended(cap: int) -> None:
    desk = busy(cap, running=cap - 1)
    ben, cleo = desk.waits("ben", COLD), desk.waits("cleo")
    for id in range(1, cap - 1):
        assert desk.leave(id) == []
        assert desk.lane().closed
    assert desk.leave(cap - 1) == [ben, cleo]


def test_its_clock_starts_when_a_ticket_is_free() -> None:
    desk = busy(cap=2, running=2)
    ben = desk.waits("ben", COLD)
    desk.until(15.0)
    desk.leave(1)
    assert desk.until(50.0) == [(35.0, ben)]


def test_its_clock_starts_when_no_cold_prompt_is_being_read() -> None:
    desk = Desk(spacing=0.0)
    desk.arrive("ana", cost=COLD)
    desk.runs("other")
    ben = desk.waits("ben", COLD)
    desk.until(15.0)
    assert desk.first_token(1) == []
    assert desk.until(50.0) == [(35.0, ben)]


def test_who_stands_behind_turns_closes_no_gate_and_then_has_all_its_time() -> None:
    desk = busy()
    ben = desk.waits("ben", COLD, helper=True)
    assert not desk.lane().closed
    assert isinstance(desk.arrive("cleo", cost=WARM), Granted)
    assert desk.until(HELPER_PATIENCE_S + 30.0) == [(HELPER_PATIENCE_S + 20.0, ben)]


def test_who_is_over_a_budget_closes_no_gate_and_keeps_no_other_cold_prompt_waiting() -> None:
    desk = busy()
    ben = desk.waits("ben", COLD, over=True)
    assert not desk.lane().closed
    assert isinstance(desk.arrive("cleo", cost=WARM), Granted)
    dan = desk.waits("dan", COLD)
    assert desk.lane().next == dan
    assert desk.until(25.0) == [(20.0, dan)]
    desk.first_token(dan)
    assert desk.until(100.0) == [(80.0, ben)], "a minute behind others, 20 s of quiet"


def test_after_the_quiet_time_it_goes_anyway_and_the_gate_is_open_while_it_is_read() -> None:
    desk = busy(cap=5)
    ben, cleo = desk.waits("ben", COLD), desk.waits("cleo")
    assert desk.until(20.0) == [(20.0, ben), (20.0, cleo)]
    assert not desk.lane().closed
    assert desk.lane().reading == ben
    assert isinstance(desk.arrive("dan", cost=WARM), Granted)


def test_the_quiet_time_is_at_most_a_sixth_of_the_deadline() -> None:
    desk = busy(queue_deadline_s=6.0)
    ben = desk.waits("ben", COLD)
    assert desk.until(5.0) == [(1.0, ben)]


def test_with_no_quiet_time_nobody_waits_for_running_replies() -> None:
    assert isinstance(busy(quiet_s=0.0).arrive("ben", cost=COLD), Granted)


def test_many_that_leave_again_do_not_keep_the_gate_closed() -> None:
    desk = busy()
    ben, cleo = desk.waits("ben", COLD), desk.waits("cleo")
    dan = desk.waits("dan", COLD)
    desk.until(19.0)
    assert desk.leave(ben) == []
    assert desk.until(30.0) == [(20.0, dan), (20.0, cleo)]


def test_the_time_that_the_gate_was_open_again_is_taken_off() -> None:
    desk = busy()
    ben = desk.waits("ben", COLD)
    desk.until(15.0)
    desk.leave(ben)
    desk.until(25.0)
    cleo = desk.waits("cleo", COLD)
    assert desk.until(50.0) == [(40.0, cleo)], "20 s less 15 s, of which 10 s passed"


def test_a_candidate_that_turns_warm_opens_the_gate_and_that_turns_cold_again_has_the_rest_of_its_time() -> None:
    desk = busy(cap=2)
    ben = desk.waits("ben", COLD)
    desk.until(12.0)
    desk.arrive("cleo", cost=WARM)
    desk.send(Reload(Limits(streams=1)))
    assert desk.reprice({ben: WARM}) == []
    desk.until(14.0)
    assert desk.reprice({ben: WARM}) == [], "said twice"
    desk.until(18.0)
    desk.reprice({ben: COLD})
    desk.send(Reload(Limits(streams=2)))
    assert desk.until(60.0) == [(32.0, ben)], "20 s less 12 s, of which 6 s passed"


@pytest.mark.parametrize("cost", [WARM, Cost(60_000, 60_000, 1.9)])
def test_a_candidate_that_turns_warm_runs_at_once(cost: Cost) -> None:
    desk = busy(short_s=2.0)
    ben, cleo = desk.waits("ben", COLD), desk.waits("cleo", Cost())
    desk.leads_s[1] = 3.0
    assert desk.reprice({ben: cost}) == [ben, cleo]


def test_a_warm_request_that_turns_cold_waits_like_one() -> None:
    desk = busy(cap=2, running=2)
    ben = desk.waits("ben")
    desk.reprice({ben: COLD, 77: COLD})
    assert desk.leave(1) == []
    assert desk.until(30.0) == [(20.0, ben)]


def test_a_seat_at_its_own_bound_is_no_candidate() -> None:
    desk = busy()
    desk.arrive("ana", own_max=1, cost=WARM)
    ana = desk.waits("ana", COLD, own_max=1)
    assert desk.lane().next is None
    assert isinstance(desk.arrive("cleo", cost=WARM), Granted)
    assert desk.leave(2) == []
    assert desk.lane().next == ana


def test_a_candidate_whose_seat_may_hold_no_more_opens_the_gate_for_the_next() -> None:
    desk = busy(cap=8)
    desk.runs("ana")
    ana, ben, cleo = desk.waits("ana", COLD), desk.waits("ben", COLD), desk.waits("cleo")
    desk.until(10.0)
    assert desk.grants(SeatLimit("ana", 1)) == []
    assert desk.lane().next == ben
    assert desk.until(60.0) == [(30.0, ben), (30.0, cleo)]
    desk.first_token(ben)
    desk.until(59.0)
    assert desk.grants(SeatLimit("ana", 2)) == []
    assert not desk.lane().closed
    assert desk.until(90.0) == [(60.0, ana)], "its clock went on; only the spacing was left"


@pytest.mark.parametrize("way", ["held", "lowered"])
def test_no_ticket_is_given_out_of_turn_when_the_time_ends_while_there_is_none(way: str) -> None:
    desk = busy(cap=2)
    ben = desk.waits("ben", COLD)
    desk.until(10.0)
    desk.send(Hold(True) if way == "held" else Reload(Limits(streams=1)))
    assert not desk.lane().closed
    assert desk.until(50.0) == []
    assert desk.grants(Hold(False) if way == "held" else Reload(Limits(streams=2))) == [ben]


def test_closing_in_the_middle_of_a_gate_answers_all_and_a_lost_engine_leaves_no_spacing() -> None:
    desk = behind_a_cold_one(quiet_s=5.0)
    desk.until(31.0)
    desk.waits("ben", COLD)
    [told] = desk.send(Close(Reason.ENGINE_LOST)).effects
    assert isinstance(told, Rejected)
    desk.leave(2)
    desk.send(Open())
    assert isinstance(desk.arrive("ana", cost=COLD), Granted)
    desk.first_token(desk.count)
    ben = desk.waits("ben", COLD)
    desk.until(32.0)
    desk.send(Close(Reason.ENGINE_LOST))
    desk.send(Open())
    cleo = desk.waits("cleo", COLD)
    assert ben != cleo
    assert desk.until(60.0) == [(37.0, cleo)], "the quiet time, and no spacing"


def test_a_drain_keeps_the_spacing() -> None:
    desk = behind_a_cold_one(quiet_s=0.0)
    desk.send(Close(Reason.DRAINING))
    desk.send(Open())
    ben = desk.waits("ben", COLD)
    assert desk.until(60.0) == [(30.0, ben)]


def test_a_first_token_that_never_comes_is_assumed_after_twice_its_time_and_ten_seconds() -> None:
    desk = busy(spacing=0.0, quiet_s=0.0)
    desk.arrive("ana", cost=COLD)
    ben = desk.waits("ben", COLD)
    assert desk.until(60.0) == [(30.0, ben)]
    desk.until(30.0)
    cleo = desk.waits("cleo", COLD)
    assert desk.until(200.0) == [(60.0, cleo)]


def test_what_the_engine_had_to_read_before_it_counts() -> None:
    desk = busy(spacing=0.0, quiet_s=0.0)
    desk.arrive("cleo", cost=Cost(9000, 9000, 4.0))
    desk.arrive("ana", cost=COLD)
    ben = desk.waits("ben", COLD)
    assert desk.until(60.0) == [(38.0, ben)], "2 x (4 + 10) + 10"


def test_what_is_not_streamed_is_taken_as_read_after_its_predicted_time() -> None:
    desk = busy(spacing=0.0, quiet_s=0.0)
    desk.arrive("cleo", cost=Cost(9000, 9000, 4.0))
    desk.arrive("ana", cost=COLD, streamed=False)
    ben = desk.waits("ben", COLD)
    assert desk.until(60.0) == [(17.0, ben)], "4 + 1.3 x 10"


def test_a_first_token_is_told_once_and_of_unknown_ids_nothing_follows() -> None:
    desk = busy(spacing=0.0, quiet_s=0.0)
    desk.arrive("ana", cost=COLD)
    desk.first_token(2)
    assert desk.first_token(99) == []
    desk.until(1.0)
    desk.first_token(2)
    assert desk.policy._books.running[TicketId(2)].read_s == 0.0


@pytest.mark.parametrize("deadline_s", [0.5, 5.0, 30.0, 180.0, 230.0])
def test_a_cold_prompt_behind_another_is_read_before_any_deadline(deadline_s: float) -> None:
    desk = busy(queue_deadline_s=deadline_s)
    ana = desk.waits("ana", COLD)
    [(first_s, first)] = desk.until(deadline_s * 0.2)
    assert first == ana
    assert first_s == pytest.approx(min(20.0, deadline_s / 6))
    desk.first_token(ana)
    begun_s = desk.now_s
    ben = desk.waits("ben", COLD)
    [(at_s, granted)] = desk.until(begun_s + deadline_s * 0.99)
    assert granted == ben
    assert at_s - begun_s <= deadline_s * 2 / 3


def test_a_cancelled_candidate_opens_the_gate() -> None:
    desk = busy()
    ben, cleo = desk.waits("ben", COLD), desk.waits("cleo")
    assert desk.grants(Leave(TicketId(ben))) == [cleo]
