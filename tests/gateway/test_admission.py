"""Admission by example: the sentences of its rules, one test each. test_admission_machine.py tries to break them."""

from __future__ import annotations

import pytest

from gateway.admission import HELPER_PATIENCE_S, HOLD_PRIOR_S
from gateway.admission_types import (
    Arrive,
    Close,
    Ended,
    Granted,
    Hold,
    Limits,
    Open,
    Queued,
    Reason,
    Rejected,
    Reload,
    SeatsBack,
    SeatsGone,
    TicketId,
)
from tests.gateway.desk import COLD, Desk


def test_a_seat_alone_may_use_every_stream() -> None:
    desk = Desk(streams=4)
    assert all(isinstance(desk.arrive("ana"), Granted) for _ in range(4))


def test_a_seat_that_holds_two_gets_no_third_while_one_with_fewer_waits() -> None:
    desk = Desk(streams=4)
    for seat in ("ana", "ana", "ben", "ben", "ana", "cleo", "ana", "cleo"):  # 5 and 7 of ana wait, 6 and 8 of cleo
        desk.arrive(seat)
    assert desk.leave(1) == [6]
    assert desk.leave(3) == [5], "ana and cleo hold one each, and ana asked first"
    assert desk.leave(4) == [8], "ana holds two and waits, cleo one"


def test_a_helper_runs_when_a_ticket_is_free_and_stands_behind_every_turn_when_not() -> None:
    desk = Desk(streams=1)
    assert isinstance(desk.arrive("ana", helper=True), Granted)
    for seat, helper in (("ana", True), ("ben", True), ("ana", False), ("ben", False)):
        desk.arrive(seat, helper=helper)
    assert desk.policy.order() == [5, 4, 3, 2], "ben's turn, ana's turn, then what need not be soon"
    assert desk.leave(1) == [4], "no seat holds a ticket now, and ana's turn came first"
    assert desk.leave(4) == [5]
    assert desk.leave(5) == [2]


def test_a_helper_that_has_waited_long_counts_as_a_turn() -> None:
    desk = Desk(streams=1)
    desk.arrive("ana")
    desk.arrive("ben", helper=True)
    desk.now_s = HELPER_PATIENCE_S - 1
    desk.arrive("ben")
    desk.tick(HELPER_PATIENCE_S - 0.5)
    assert desk.policy.order() == [3, 2]
    desk.tick(HELPER_PATIENCE_S)
    assert desk.policy.order() == [2, 3], "inside a seat by arrival again"
    assert desk.leave(1) == [2]


def test_a_turn_of_a_seat_at_its_own_bound_keeps_no_helper_of_another_waiting() -> None:
    desk = Desk(streams=2)
    desk.arrive("ana", own_max=1)
    assert isinstance(desk.arrive("ana", own_max=1), Queued)
    assert isinstance(desk.arrive("ben", helper=True), Granted)


def test_the_line_says_where_one_stands_and_how_long_it_may_take() -> None:
    desk = Desk(streams=1)
    desk.arrive("ana")
    assert desk.arrive("ben") == Queued(TicketId(2), 1, 1, HOLD_PRIOR_S)
    third = desk.arrive("cleo")
    assert isinstance(third, Queued)
    assert (third.position, third.depth, third.wait_s) == (2, 2, 2 * HOLD_PRIOR_S)


def test_the_predicted_wait_follows_the_measured_drain_rate() -> None:
    desk = Desk(streams=1)
    for number in range(1, 40):
        desk.arrive("ana")
        desk.now_s += 2.0
        desk.leave(number)
    desk.arrive("ana")
    waiting = desk.arrive("ben")
    assert isinstance(waiting, Queued)
    assert waiting.wait_s == pytest.approx(2.0, rel=0.2)


def test_streams_that_run_longer_than_the_mean_lengthen_the_prediction() -> None:
    desk = Desk(streams=1)
    desk.arrive("ana")
    desk.now_s = 100.0
    waiting = desk.arrive("ben")
    assert isinstance(waiting, Queued)
    assert waiting.wait_s == 100.0


def test_a_seat_at_its_own_bound_is_predicted_by_its_own_bound() -> None:
    desk = Desk(streams=4)
    desk.arrive("ana", own_max=1)
    second = desk.arrive("ana", own_max=1)
    assert isinstance(second, Queued)
    assert second.wait_s == HOLD_PRIOR_S
    assert isinstance(desk.arrive("ben"), Granted), "a ticket that ana may not have is ben's"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"queue_max": 0}, Reason.QUEUE_FULL),
        ({"queue_bytes": 10}, Reason.QUEUE_BYTES),
        ({"queue_deadline_s": 5.0}, Reason.PREDICTED_WAIT),
    ],
)
def test_a_bound_that_is_hit_refuses_at_arrival(limits: dict[str, float], reason: Reason) -> None:
    desk = Desk(streams=1, **limits)
    desk.arrive("ana", body_bytes=50)
    refused = desk.arrive("ben", body_bytes=50)
    assert isinstance(refused, Rejected)
    assert refused.reason is reason
    assert 10 <= refused.retry_after_s <= 59


def test_a_seat_with_a_full_line_of_its_own_is_refused_and_others_are_not() -> None:
    desk = Desk(streams=1, queue_per_seat=2)
    desk.arrive("ana")
    assert [type(desk.arrive("ana")) for _ in range(3)] == [Queued, Queued, Rejected]
    assert isinstance(desk.arrive("ben"), Queued)


def test_the_last_quarter_of_the_line_is_for_seats_that_have_nothing_waiting() -> None:
    desk = Desk(streams=1, queue_max=8, queue_per_seat=8)
    desk.arrive("ana")
    assert [type(desk.arrive("ana")) for _ in range(7)] == [Queued] * 6 + [Rejected]
    assert isinstance(desk.arrive("ben"), Queued)
    assert isinstance(desk.arrive("ben"), Rejected)
    assert isinstance(desk.arrive("cleo"), Queued)
    assert isinstance(desk.arrive("dan"), Rejected)


def test_nobody_waits_past_the_deadline_and_those_who_still_wait_are_counted_without_it() -> None:
    desk = Desk(streams=1, queue_deadline_s=180.0)
    desk.arrive("ana")
    desk.arrive("ben")
    [rejected] = desk.tick(180.0).effects
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, rejected.position, rejected.depth) == (Reason.DEADLINE, 1, 0)


def test_a_seat_that_is_gone_loses_its_waiters_now_and_its_streams_after_the_grace() -> None:
    desk = Desk(streams=1, seat_grace_s=30.0)
    desk.arrive("ana")
    desk.arrive("ana")
    [dropped] = desk.policy.handle(SeatsGone(frozenset({"ana"})), 0.0).effects
    assert isinstance(dropped, Rejected)
    assert dropped.retry_after_s == 0
    assert desk.tick(29.9).effects == ()
    assert desk.tick(30.0).effects == (Ended(TicketId(1), Reason.SEAT_GONE),)


def test_a_seat_that_comes_back_within_the_grace_keeps_its_streams() -> None:
    desk = Desk(streams=1, seat_grace_s=30.0)
    desk.arrive("ana")
    desk.policy.handle(SeatsGone(frozenset({"ana"})), 0.0)
    desk.policy.handle(SeatsBack(frozenset({"ana"})), 10.0)
    assert desk.tick(100.0).effects == ()


def test_closing_answers_all_and_refuses_arrivals() -> None:
    desk = Desk(streams=1)
    desk.arrive("ana")
    desk.arrive("ben")
    [answered] = desk.policy.handle(Close(Reason.DRAINING), 0.0).effects
    assert isinstance(answered, Rejected)
    refused = desk.arrive("cleo")
    assert isinstance(refused, Rejected)
    assert refused.reason is Reason.DRAINING


def test_held_nobody_gets_a_ticket_and_everybody_keeps_the_place_that_comes_first() -> None:
    desk = Desk(streams=2)
    desk.arrive("ana")
    desk.policy.handle(Hold(True), 0.0)
    waits = [desk.arrive(seat) for seat in ("ana", "ben", "cleo")]
    assert waits == [Queued(TicketId(2), 1, 1, None), Queued(TicketId(3), 1, 2, None), Queued(TicketId(4), 2, 3, None)]
    assert desk.leave(1) == []
    assert desk.policy.view().held
    granted = desk.policy.handle(Hold(False), 0.0).effects
    assert [effect.id for effect in granted] == [2, 3]


def test_held_a_wait_that_would_be_too_long_refuses_nobody_and_the_deadline_says_paused() -> None:
    desk = Desk(streams=1, queue_deadline_s=HOLD_PRIOR_S / 2)
    desk.arrive("ana")
    desk.policy.handle(Hold(True), 0.0)
    assert isinstance(desk.arrive("ben"), Queued)
    [told] = desk.tick(HOLD_PRIOR_S / 2).effects
    assert isinstance(told, Rejected)
    assert told.reason is Reason.PAUSED
    assert 55 <= told.retry_after_s <= 59


def test_held_a_full_line_says_paused() -> None:
    desk = Desk(streams=1, queue_max=1)
    desk.policy.handle(Hold(True), 0.0)
    assert isinstance(desk.arrive("ana"), Queued)
    refused = desk.arrive("ben")
    assert isinstance(refused, Rejected)
    assert refused.reason is Reason.PAUSED


def test_a_hold_outlives_closing_and_opening() -> None:
    desk = Desk(streams=1)
    desk.policy.handle(Hold(True), 0.0)
    desk.policy.handle(Close(Reason.ENGINE_LOST), 0.0)
    closed = desk.arrive("ana")
    assert isinstance(closed, Rejected)
    assert closed.reason is Reason.ENGINE_LOST
    desk.policy.handle(Open(), 0.0)
    assert isinstance(desk.arrive("ana"), Queued)


def test_a_raised_cap_serves_who_waits_and_a_lowered_one_cuts_nobody() -> None:
    desk = Desk(streams=1)
    for seat in ("ana", "ben", "cleo"):
        desk.arrive(seat)
    raised = desk.policy.handle(Reload(Limits(streams=3)), 0.0).effects
    assert [effect.id for effect in raised if isinstance(effect, Granted)] == [2, 3]
    assert desk.policy.handle(Reload(Limits(streams=1)), 0.0).effects == ()
    desk.arrive("dan")
    assert desk.leave(1) == []
    assert desk.leave(2) == []
    assert desk.leave(3) == [4]


def test_an_id_that_is_in_use_is_a_programming_error() -> None:
    desk = Desk(streams=1)
    desk.arrive("ana")
    with pytest.raises(ValueError, match="in use"):
        desk.policy.handle(Arrive(TicketId(1), "ben", None, 1), 0.0)


def test_who_waits_is_answered_at_the_deadline_though_an_arrival_comes_before_the_tick() -> None:
    desk = Desk(streams=2, queue_deadline_s=30.0, last_wait_s=30.0)
    desk.arrive("ana", own_max=1)
    desk.arrive("ana", own_max=1)
    desk.now_s = 30.0
    effects = desk.send(Arrive(TicketId(9), "ana", None, 1)).effects
    assert [(effect.id, type(effect)) for effect in effects] == [(2, Rejected), (9, Granted)]


def test_a_wait_is_predicted_for_tickets_that_are_out_and_not_for_those_that_are_free() -> None:
    desk = Desk(streams=4)
    desk.runs("ana")
    desk.now_s = 1000.0
    assert isinstance(desk.arrive("ben", own_max=1, cost=COLD), Queued), "a ticket is free, though others take long"
    assert isinstance(desk.arrive("cleo", cost=COLD), Queued)
    assert isinstance(desk.arrive("dan", cost=COLD), Queued)
    refused = desk.arrive("eve", cost=COLD)
    assert isinstance(refused, Rejected)
    assert refused.reason is Reason.PREDICTED_WAIT
