"""Rule 1 of admission by example: who comes first."""

from __future__ import annotations

import pytest

from gateway.admission import HELPER_PATIENCE_S
from gateway.admission_types import Cost, Hold, Leave, Reason, Rejected, SeatsGone, TicketId
from tests.gateway.desk import Desk

HOG = 20_000.0
"""Output tokens that put a seat over its share for as long as a deadline."""


def with_a_hog(streams: int = 8, tokens: float = HOG, **limits: float) -> Desk:
    """Seat hog has had much; 2 and those after it are of others and hold all tickets."""
    desk = Desk(streams=streams, **limits)
    desk.arrive("hog")
    desk.leave(1, tokens)
    desk.runs(*(f"other{number}" for number in range(streams)))
    return desk


# 1a


def test_seats_within_their_share_come_before_a_seat_over_it() -> None:
    desk = with_a_hog()
    hog, ana = desk.waits("hog"), desk.waits("ana")
    assert desk.policy.view().over_share == {"hog"}
    assert desk.policy.order() == [ana, hog]


def test_a_seat_that_has_work_alone_is_over_no_share() -> None:
    desk = Desk(streams=1)
    desk.arrive("hog")
    desk.leave(1, HOG)
    desk.arrive("hog")
    desk.waits("hog")
    assert desk.policy.view().over_share == frozenset()


def test_few_tokens_are_no_more_than_a_share_though_others_have_had_none() -> None:
    desk = Desk(streams=1)
    desk.arrive("ana")
    desk.leave(1, 1500.0)
    desk.arrive("ben")
    desk.waits("ana")
    assert desk.policy.view().over_share == frozenset()
    desk.leave(2, 0.0)
    desk.leave(3, 1.0)
    desk.arrive("ben")
    desk.waits("ana")
    assert desk.policy.view().over_share == {"ana"}, "1501 of 1501 tokens, the mean being taken as 1000"


def test_a_prompt_token_that_was_read_is_a_tenth_of_an_output_token() -> None:
    desk = Desk(streams=1)
    desk.arrive("ana", cost=Cost(20_000, 10_000, 1.0))
    desk.leave(1, 500.0)
    desk.arrive("ben")
    desk.waits("ana")
    assert desk.policy.view().over_share == frozenset()
    desk.send(Leave(TicketId(2)))
    desk.leave(3, 1.0)
    desk.arrive("ben")
    desk.waits("ana")
    assert desk.policy.view().over_share == {"ana"}


def test_use_fades_and_few_tokens_are_no_more_than_a_share() -> None:
    desk = with_a_hog()
    for now_s, over in ((700.0, {"hog"}), (800.0, set())):
        desk.until(now_s)
        hog = desk.waits("hog")
        assert desk.policy.view().over_share == over, "20,000 tokens have faded below 2,000, then below 1,500"
        desk.leave(hog)


def test_use_over_the_mean_by_half_is_over_the_share_and_no_factor_is_nobody() -> None:
    for factor, over in ((1.5, {"hog"}), (1.99, {"hog"}), (2.0, set()), (0.0, set())):
        desk = with_a_hog(1, over_share=factor)
        desk.waits("hog")
        assert desk.policy.view().over_share == over, factor


def test_in_line_a_seat_counts_with_those_of_it_that_stand_before() -> None:
    desk = Desk(streams=1)
    desk.arrive("other")
    first, second, ben = desk.waits("ana"), desk.waits("ana"), desk.waits("ben")
    assert desk.policy.order() == [first, ben, second]


def test_a_box_that_was_held_for_days_still_knows_an_order() -> None:
    desk = Desk(streams=1)
    desk.now_s = 1e7
    desk.send(Hold(True))
    ana, ben = desk.waits("ana", Cost()), desk.waits("ben", Cost())
    assert desk.policy.order() == [ana, ben]
    assert desk.grants(Hold(False)) == [ana]


def test_a_seat_over_its_share_never_ages_ahead() -> None:
    desk = with_a_hog()
    hog = desk.waits("hog")
    desk.until(149.0)
    ana = desk.waits("ana")
    assert desk.policy.order() == [ana, hog]


def test_a_seat_over_its_share_is_the_next_after_five_sixths_of_the_deadline() -> None:
    desk = with_a_hog()
    hog = desk.waits("hog")
    desk.until(20.0)
    ana, ben = desk.waits("ana"), desk.waits("ben")
    desk.until(149.5)
    assert desk.policy.order() == [ana, ben, hog]
    desk.until(150.0)
    assert desk.leave(2) == [hog]


def test_what_it_asked_in_vain_counts_across_refusals() -> None:
    desk = with_a_hog()
    hog = desk.waits("hog")
    desk.until(30.0)
    ana = desk.waits("ana")
    desk.until(100.0)
    desk.leave(hog)
    desk.until(155.0)
    again = desk.waits("hog")
    assert desk.leave(2) == [again], "before one that waits for two minutes"
    assert desk.leave(again) == [ana]


def test_what_it_asked_in_vain_ends_with_its_next_ticket() -> None:
    desk = with_a_hog()
    first, second = desk.waits("hog"), desk.waits("hog")
    desk.until(150.0)
    ana = desk.waits("ana")
    assert desk.leave(2) == [first]
    assert desk.leave(first) == [ana]
    desk.until(150.1)
    ben = desk.waits("ben")
    assert desk.policy.order() == [ben, second]


def test_with_a_second_request_it_asks_in_vain_since_its_last_ticket() -> None:
    desk = with_a_hog()
    first, second = desk.waits("hog"), desk.waits("hog")
    desk.until(10.0)
    assert desk.leave(2) == [first]
    desk.until(159.0)
    ana = desk.waits("ana")
    assert desk.leave(3) == [ana]
    desk.until(160.0)
    desk.waits("ben")
    assert desk.leave(4) == [second]


@pytest.mark.parametrize(("after_s", "first"), [(599.0, "hog"), (600.0, "ana")])
def test_what_was_asked_in_vain_long_ago_is_forgotten(after_s: float, first: str) -> None:
    desk = Desk(streams=8)
    desk.arrive("hog")
    desk.leave(1, 1e9)
    desk.runs(*["other"] * 8)
    desk.leave(desk.waits("hog"))
    desk.until(after_s)
    desk.leave(2)
    desk.arrive("other")
    waits = {"hog": desk.waits("hog"), "ana": desk.waits("ana")}
    assert desk.policy.view().over_share == {"hog"}
    assert desk.leave(3) == [waits[first]]


def test_a_seat_that_is_gone_gets_no_ticket_for_what_it_asked() -> None:
    desk = with_a_hog()
    hog = desk.waits("hog")
    [told] = desk.send(SeatsGone(frozenset({"hog"}))).effects
    assert isinstance(told, Rejected)
    assert (told.id, told.reason) == (hog, Reason.SEAT_GONE)


# 1d, 1e, 1f


def test_who_has_waited_long_goes_first_the_oldest_before_all() -> None:
    desk = Desk(streams=2)
    desk.arrive("ana")
    desk.arrive("other")
    old = desk.waits("ana", run_s=50.0)
    desk.until(1.0)
    younger = desk.waits("ana", run_s=-5.0)
    desk.until(30.0)
    new = desk.waits("ben", run_s=-9.0)
    assert desk.policy.order() == [new, younger, old]
    desk.until(61.0)
    assert desk.leave(2) == [old]
    assert desk.leave(1) == [younger], "though ana holds one and ben none"
    assert desk.policy.order() == [new]


def test_how_long_is_at_most_a_third_of_the_deadline() -> None:
    desk = Desk(streams=1, queue_deadline_s=30.0)
    desk.arrive("ana")
    old = desk.waits("ana")
    desk.until(9.5)
    new = desk.waits("ben")
    assert desk.policy.order() == [new, old]
    desk.tick(10.0)
    assert desk.policy.order() == [old, new]


def test_without_an_age_nobody_goes_by_it() -> None:
    desk = Desk(streams=1, aged_s=0.0)
    desk.arrive("ana")
    old = desk.waits("ana")
    desk.until(149.0)
    new = desk.waits("ben")
    assert desk.policy.order() == [new, old]


def test_the_seat_that_holds_the_fewest_tickets_goes_first() -> None:
    desk = Desk(streams=2)
    desk.arrive("ana")
    desk.arrive("ben")
    ana, cleo = desk.waits("ana", run_s=-50.0), desk.waits("cleo")
    assert desk.policy.order() == [cleo, ana]
    assert desk.leave(2) == [cleo]


def test_the_run_that_began_first_goes_first_and_then_arrival() -> None:
    desk = Desk(streams=1)
    desk.arrive("other")
    ana, ben, cleo = desk.waits("ana", run_s=-5.0), desk.waits("ben", run_s=-50.0), desk.waits("cleo", run_s=-5.0)
    assert desk.policy.order() == [ben, ana, cleo]


def test_a_run_whose_beginning_is_not_known_begins_now() -> None:
    desk = Desk(streams=1)
    desk.arrive("other")
    desk.now_s = 9.0
    ana, ben, cleo = desk.waits("ana", run_s=9.5), desk.waits("ben"), desk.waits("cleo", run_s=8.5)
    assert desk.policy.order() == [cleo, ben, ana]


def test_turns_and_budgets_stand_before_age_and_behind_shares() -> None:
    desk = with_a_hog()
    hog, helper, over = desk.waits("hog"), desk.waits("ana", helper=True), desk.waits("ben", over=True)
    turn = desk.waits("cleo")
    assert desk.policy.order() == [turn, over, helper, hog]
    desk.tick(HELPER_PATIENCE_S)
    assert desk.policy.order() == [helper, turn, over, hog]
