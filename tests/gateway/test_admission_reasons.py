"""Why a request waits, how the lane is shown, and how long it is said to take, by example."""

from __future__ import annotations

import pytest

from gateway.admission import HOLD_PRIOR_S
from gateway.admission_types import (
    Cost,
    Hold,
    Lane,
    Limits,
    Queued,
    Reason,
    Rejected,
    Reload,
    SeatLimit,
    TicketId,
    Wait,
    WaitKind,
)
from tests.gateway.desk import COLD, WARM, Desk

OTHER = Cost(50_000, 40_000, 4.0)


def reading() -> Desk:
    """1 is cold and read for 10 s; 2 is warm and runs."""
    desk = Desk(streams=4)
    desk.arrive("ana", cost=COLD)
    desk.runs("other")
    return desk


def test_held_everybody_is_told_so() -> None:
    desk = Desk(streams=4)
    desk.send(Hold(True))
    ben, cleo = desk.waits("ben", COLD), desk.waits("cleo", own_max=1)
    assert desk.why(ben) == desk.why(cleo) == Wait(WaitKind.HELD)
    assert desk.lane() == Lane(next=TicketId(ben))


def test_a_seat_at_its_own_bound_waits_for_itself_before_all_else() -> None:
    desk = Desk(streams=1)
    desk.arrive("ana", own_max=1)
    assert desk.why(desk.waits("ana", COLD, own_max=1)) == Wait(WaitKind.SEAT_BUSY)


def test_who_waits_for_a_ticket_is_told_when_the_first_is_likely_to_come_back() -> None:
    desk = Desk(streams=2)
    desk.runs("ana")
    desk.now_s = 4.0
    desk.runs("ben")
    for cost in (WARM, COLD):
        assert desk.why(desk.waits("cleo", cost)) == Wait(WaitKind.STREAMS_BUSY, HOLD_PRIOR_S / 2)


def test_streams_that_have_run_for_long_are_not_said_to_be_free_in_a_moment() -> None:
    desk = Desk(streams=2)
    desk.runs("ana", "ben")
    cleo = desk.waits("cleo", WARM)
    for now_s in (0.0, 2 * HOLD_PRIOR_S, 6 * HOLD_PRIOR_S):
        desk.tick(now_s)
        assert desk.why(cleo) == Wait(WaitKind.STREAMS_BUSY, max(HOLD_PRIOR_S, now_s) / 2)
        assert desk.policy.standing(now_s).predicted_waits()[TicketId(cleo)] == max(HOLD_PRIOR_S, now_s) / 2


def test_while_one_is_read_the_others_are_told_how_much_of_whom_and_for_how_long() -> None:
    desk = reading()
    desk.now_s = 1.0
    ben, ana = desk.waits("ben", OTHER), desk.waits("ana", OTHER)
    idle_s = 9.0 + 1.5 * HOLD_PRIOR_S
    assert desk.why(ben) == Wait(WaitKind.READING, idle_s, 60_000)
    assert desk.why(ana) == Wait(WaitKind.READING, idle_s, 60_000, own=True)
    assert desk.lane() == Lane(TicketId(1), 9.0, TicketId(ben), 29.0)


def test_a_read_that_takes_longer_than_the_spacing_is_what_is_waited_for() -> None:
    desk = Desk(streams=4, spacing=0.5)
    desk.arrive("ana", cost=COLD)
    assert desk.why(desk.waits("ben", OTHER)) == Wait(WaitKind.READING, 10.0, 60_000)
    desk.now_s = 15.0
    assert desk.why(2) == Wait(WaitKind.READING, 0.0, 60_000)


def test_after_it_they_are_told_of_the_spacing() -> None:
    desk = reading()
    ben = desk.waits("ben", OTHER)
    desk.now_s = 10.0
    desk.first_token(1)
    assert desk.why(ben) == Wait(WaitKind.SPACING, 1.5 * HOLD_PRIOR_S), "nothing runs then"
    assert desk.lane() == Lane(next=TicketId(ben), spacing_left_s=20.0)
    desk.now_s = 25.0
    assert desk.why(ben) == Wait(WaitKind.SPACING, 5.0)


def test_with_the_gate_closed_each_is_told_its_part() -> None:
    desk = Desk(streams=4)
    desk.runs("other")
    ben, dan, cleo = desk.waits("ben", COLD), desk.waits("dan", OTHER), desk.waits("cleo")
    own = desk.waits("ben")
    desk.now_s = 3.0
    drain_s = HOLD_PRIOR_S
    assert desk.why(ben) == Wait(WaitKind.QUIET, drain_s)
    assert desk.why(cleo) == Wait(WaitKind.GATE, drain_s + 10.0, 60_000)
    assert desk.why(own) == Wait(WaitKind.GATE, drain_s + 10.0, 60_000, own=True)
    assert desk.why(dan) == Wait(WaitKind.COLD_LINE, drain_s + 10.0, 60_000)
    assert desk.lane() == Lane(next=TicketId(ben), quiet_left_s=17.0, closed=True)


def test_a_gate_is_closed_no_longer_than_the_quiet_time_whatever_runs() -> None:
    desk = Desk(streams=4, quiet_s=5.0)
    desk.runs("other")
    ben, cleo = desk.waits("ben", COLD), desk.waits("cleo")
    assert desk.why(ben) == Wait(WaitKind.QUIET, 5.0)
    assert desk.why(cleo) == Wait(WaitKind.GATE, 15.0, 60_000)
    waits = desk.policy.standing(0.0).predicted_waits()
    assert (waits[TicketId(ben)], waits[TicketId(cleo)]) == (5.0, 5.0)
    told = desk.arrive("dan", cost=OTHER)
    assert isinstance(told, Queued)
    assert told.wait_s == 5.0 + 10.0 + HOLD_PRIOR_S, "by then nothing runs, and the spacing keeps nobody"


def test_a_cold_prompt_behind_turns_waits_for_running_replies_though_the_gate_is_open() -> None:
    desk = Desk(streams=4)
    desk.runs("other")
    ben, dan = desk.waits("ben", COLD, helper=True), desk.waits("dan", OTHER, helper=True)
    assert desk.why(ben) == Wait(WaitKind.QUIET, HOLD_PRIOR_S)
    assert desk.why(dan) == Wait(WaitKind.COLD_LINE, None, 60_000)
    assert not desk.lane().closed


def test_the_last_ticket_withheld_for_the_pace_is_said() -> None:
    desk = Desk(streams=2)
    desk.runs("other")
    desk.now_s = 1.0
    desk.tokens(1, 0.0)
    told = desk.arrive("ana", cost=WARM)
    assert isinstance(told, Queued)
    assert told.wait_s == HOLD_PRIOR_S / 2, "when a ticket comes back, though one is free"
    assert desk.why(2) == Wait(WaitKind.PACE)
    desk.tokens(1, 4000.0)
    desk.tick(1.1)
    assert desk.policy.standing(1.1).waits() == {}


def test_with_all_tickets_out_no_gate_is_closed() -> None:
    desk = Desk(streams=2)
    desk.runs("other")
    ben = desk.waits("ben", COLD)
    desk.send(Reload(Limits(streams=1)))
    assert desk.why(ben).kind is WaitKind.STREAMS_BUSY
    assert desk.lane() == Lane(next=TicketId(ben))


def test_with_nothing_running_no_spacing_is_shown() -> None:
    desk = reading()
    desk.first_token(1)
    desk.send(Hold(True))
    ben = desk.waits("ben", OTHER)
    desk.leave(1)
    assert desk.lane().spacing_left_s == 30.0
    desk.leave(2)
    assert desk.lane() == Lane(next=TicketId(ben))


def test_the_first_whose_clock_ran_is_the_next() -> None:
    desk = Desk(streams=8)
    desk.runs("other", "ana")
    ana, ben = desk.waits("ana", COLD), desk.waits("ben", OTHER)
    desk.now_s = 5.0
    for own_max, next_one in ((1, ben), (2, ana)):
        desk.send(SeatLimit("ana", own_max))
        assert desk.lane().next == next_one


def test_a_prompt_of_a_starving_seat_starts_its_clock_without_any_event() -> None:
    desk = Desk(streams=4)
    desk.arrive("hog")
    desk.leave(1, 1e9)
    desk.runs("other")
    desk.send(Hold(True))
    hog = desk.waits("hog", OTHER)
    desk.until(149.0)
    desk.waits("ana", COLD, helper=True)
    desk.send(Hold(False))
    assert desk.lane().next == 4
    assert desk.until(179.0) == [(170.0, hog)]


def test_a_read_leaves_nothing_of_the_time_that_the_gate_was_closed_before_it() -> None:
    desk = Desk(streams=4, spacing=0.0)
    desk.runs("other")
    ben = desk.waits("ben", COLD)
    desk.until(19.0)
    desk.leave(ben)
    cleo = desk.waits("cleo", COLD)
    assert desk.until(20.0) == [(20.0, cleo)]
    desk.first_token(cleo)
    dan = desk.waits("dan", COLD)
    assert desk.until(60.0) == [(40.0, dan)]


def test_the_lane_is_empty_when_nobody_is_cold() -> None:
    desk = Desk(streams=2)
    desk.runs("other")
    assert desk.lane() == Lane()


def test_cold_prompts_are_predicted_one_behind_the_other() -> None:
    desk = Desk(streams=4, queue_cold_per_seat=0)
    desk.runs("other")
    told = [desk.arrive("ben", cost=COLD), desk.arrive("cleo", cost=OTHER), desk.arrive("dan", cost=OTHER)]
    waits = [effect.wait_s for effect in told if isinstance(effect, Queued)]
    assert waits == [HOLD_PRIOR_S, 2 * HOLD_PRIOR_S + 10.0, 3 * HOLD_PRIOR_S + 10.0 + 4.0]


def test_a_spacing_that_ends_before_the_others_do_is_what_the_next_cold_prompt_waits_for() -> None:
    desk = Desk(streams=4, spacing=1.5, quiet_s=3.0, queue_cold_per_seat=0)
    desk.runs("other")
    told = [desk.arrive("ben", cost=COLD), desk.arrive("cleo", cost=OTHER)]
    assert [effect.wait_s for effect in told if isinstance(effect, Queued)] == [3.0, 3.0 + 15.0 + 3.0]


def test_a_cold_prompt_is_predicted_behind_the_one_that_is_read() -> None:
    told = reading().arrive("ben", cost=OTHER)
    assert isinstance(told, Queued)
    assert told.wait_s == 10.0 + 1.5 * HOLD_PRIOR_S


def test_without_a_cold_lane_a_long_prompt_is_predicted_like_any() -> None:
    desk = Desk(streams=1)
    desk.runs("other")
    ben = desk.waits("ben", COLD)
    assert desk.policy.standing(0.0).predicted_waits() == {ben: HOLD_PRIOR_S}


def test_no_wait_is_below_zero_whatever_the_clock_says() -> None:
    desk = reading()
    desk.waits("ben", OTHER)
    for now_s in (0.0, 1e3, 1e6, -5.0):
        standing = desk.policy.standing(now_s)
        assert min(standing.predicted_waits().values()) >= 0
        assert all(wait.seconds is None or wait.seconds >= 0 for wait in standing.waits().values())


def test_a_clock_that_steps_back_only_delays_what_is_due() -> None:
    desk = Desk(streams=4)
    desk.now_s = 100.0
    desk.runs("other")
    ben = desk.waits("ben", COLD)
    desk.tick(50.0)
    assert desk.wake_at_s == 120.0
    desk.leave(1)
    assert [id for id, _, _ in desk.policy.view().running] == [ben]


def test_a_second_cold_request_of_a_seat_is_refused_and_told_when_the_lane_is_likely_to_have_room() -> None:
    desk = reading()
    desk.waits("ben", OTHER)
    refused = desk.arrive("ben", cost=OTHER)
    assert isinstance(refused, Rejected)
    assert (refused.reason, refused.retry_after_s) == (Reason.SEAT_COLD_QUEUE_FULL, 45)
    assert isinstance(desk.arrive("cleo", cost=OTHER), Queued)


@pytest.mark.parametrize(("limit", "others"), [(0, 3), (2, 1)])
def test_the_bound_of_cold_requests_is_set_by_number_and_helpers_take_no_place(limit: int, others: int) -> None:
    desk = Desk(streams=4, queue_cold_per_seat=limit)
    desk.arrive("ana", cost=COLD)
    desk.runs("other")
    desk.waits("ben", OTHER, helper=True)
    for _ in range(others + 1):
        desk.waits("ben", OTHER)
    assert isinstance(desk.arrive("ben", cost=OTHER), Rejected if limit else Queued)
    assert isinstance(desk.arrive("ben", cost=OTHER, helper=True), Queued)


def test_a_long_prompt_that_is_read_in_a_few_seconds_takes_no_place_of_a_cold_one() -> None:
    desk = Desk(streams=1, short_s=5.0)
    desk.runs("other")
    desk.waits("ben", COLD)
    desk.waits("ben", OTHER)
    assert desk.lane().next == 2


def test_prompts_that_turned_cold_in_line_keep_out_no_warm_one() -> None:
    desk = Desk(streams=1)
    desk.runs("other")
    desk.reprice(dict.fromkeys((desk.waits("ben"), desk.waits("ben")), COLD))
    assert isinstance(desk.arrive("ben", cost=WARM), Queued)
    assert isinstance(desk.arrive("ben", cost=COLD), Rejected)


def test_an_arrival_that_brings_a_higher_bound_first_serves_who_waits_already() -> None:
    desk = Desk(streams=8, queue_cold_per_seat=2)
    desk.runs("ana")
    first = desk.waits("ana", COLD, own_max=1)
    second = desk.waits("ana", COLD, run_s=-50.0)
    assert [desk.why(id).kind for id in (first, second)] == [WaitKind.QUIET, WaitKind.COLD_LINE]
    assert desk.until(60.0)[0] == (20.0, first), "its clock began before the second one was there"
