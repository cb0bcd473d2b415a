"""Rules 1 and 3 of admission by example: who comes first, and who gets the last ticket."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admission import HELPER_PATIENCE_S
from gateway.admission_types import Cost, Granted, Hold, Leave, Queued, Reason, Rejected, SeatsGone, Sent, TicketId
from tests.gateway.desk import WARM, Desk

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


# 3


class Late(dict[TicketId, Sent]):
    """The first reply stays one second behind."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self.desk = desk

    def get(self, id: object, default: object = None) -> Any:
        return Sent(40.0 * (self.desk.now_s - 1.0), self.desk.now_s) if id == 1 else default


def last_ticket(cap: int = 4, behind_s: float = 1.0, **limits: float) -> Desk:
    """All tickets but one are out; of the reply 1 so many seconds are missing 10 s after its first token."""
    desk = Desk(streams=cap, **limits)
    desk.runs(*(f"other{number}" for number in range(cap - 1)))
    desk.now_s = 10.0
    for id in range(1, cap):
        desk.tokens(id, 40.0 * 50.0)
    desk.tokens(1, 40.0 * (10.0 - behind_s))
    return desk


@pytest.mark.parametrize("cap", [2, 3, 4, 8])
def test_the_last_ticket_waits_while_a_reply_would_fall_behind(cap: int) -> None:
    desk = last_ticket(cap, behind_s=-0.25)
    ana = desk.waits("ana")
    for now_s, ahead_s, granted in ((10.25, 0.25, []), (10.5, 0.49, []), (10.75, 0.5, [(10.75, ana)])):
        desk.now_s = now_s
        desk.tokens(1, 40.0 * (now_s + ahead_s))
        assert desk.until(now_s) == granted


def test_only_the_last_ticket_waits_for_the_pace() -> None:
    desk = last_ticket(cap=8)
    desk.leave(7)
    assert isinstance(desk.arrive("ana", cost=WARM), Granted)
    desk.first_token(desk.count)
    assert isinstance(desk.arrive("ben", cost=WARM), Queued)


def test_a_single_ticket_waits_for_no_pace() -> None:
    assert isinstance(Desk(streams=1).arrive("ana", cost=WARM), Granted)


def test_what_the_engine_still_has_to_read_counts() -> None:
    desk = Desk(streams=3, floor_tok_per_s=10.0)
    desk.runs("other")
    desk.tokens(1, 30.0)
    desk.arrive("cleo", cost=Cost(9000, 9000, 2.75))
    ana = desk.waits("ana")
    assert desk.first_token(2) == [ana], "3 s ahead, and nothing but 0.5 s to read"


def test_what_the_engine_reads_now_counts_less_from_second_to_second() -> None:
    desk = Desk(streams=3, floor_tok_per_s=10.0)
    desk.runs("other")
    desk.tokens(1, 40.0)
    desk.arrive("cleo", cost=Cost(9000, 9000, 4.0))
    ana = desk.waits("ana")
    desk.now_s = 1.0
    desk.tokens(1, 45.0)
    assert desk.tick(1.0).effects == (Granted(TicketId(ana), 1),), "3.5 s ahead, 3 s and 0.5 s to read"


def test_it_is_read_after_what_was_there_before_it() -> None:
    desk = Desk(streams=4, floor_tok_per_s=10.0)
    desk.runs("other")
    desk.tokens(1, 60.0)
    for seat in ("cleo", "dan"):
        desk.arrive(seat, cost=Cost(9000, 9000, 4.0))
    ana = desk.waits("ana")
    desk.now_s = 4.0
    desk.tokens(1, 80.0)
    desk.first_token(2)
    desk.tokens(1, 84.0)
    assert desk.policy.order() == [ana], "4.4 s ahead and 4.5 s to read"
    desk.now_s = 4.25
    desk.tokens(1, 86.0)
    assert [effect.id for effect in desk.tick(4.25).effects] == [ana]


def test_while_it_must_wait_nobody_overtakes_it() -> None:
    desk = last_ticket(behind_s=-0.25)
    ana = desk.waits("ana", run_s=-5.0)
    ben = desk.waits("ben", Cost())
    assert desk.policy.order() == [ana, ben]
    over = desk.waits("cleo", Cost(), over=True, run_s=-50.0)
    helper = desk.waits("dan", Cost(), helper=True, run_s=-50.0)
    assert desk.policy.order() == [ana, ben, over, helper]


@pytest.mark.parametrize(("last_wait_s", "deadline_s", "after_s"), [(90, 180, 90.0), (90, 60, 30.0), (5, 180, 5.0)])
def test_after_its_longest_wait_it_goes_anyway(last_wait_s: float, deadline_s: float, after_s: float) -> None:
    desk = last_ticket(last_wait_s=last_wait_s, queue_deadline_s=deadline_s)
    desk.sent = Late(desk)
    ana = desk.waits("ana")
    assert desk.until(9.0 + after_s) == []
    assert desk.until(11.0 + after_s) == [(10.0 + after_s, ana)]


def test_without_a_longest_wait_the_last_ticket_is_like_any_other() -> None:
    assert isinstance(last_ticket(last_wait_s=0.0).arrive("ana", cost=WARM), Granted)


@pytest.mark.parametrize(("behind_s", "told"), [(4.0, Queued), (4.1, Granted)])
def test_a_reply_that_is_lost_keeps_nobody_waiting(behind_s: float, told: type) -> None:
    assert isinstance(last_ticket(behind_s=behind_s).arrive("ana", cost=WARM), told)


def test_silence_is_lateness_only_when_it_is_longer_than_a_burst() -> None:
    desk = last_ticket(behind_s=-0.5)
    desk.now_s = 10.25
    assert isinstance(desk.arrive("ana", cost=WARM), Granted), "0.5 s ahead, and a quarter of silence"
    desk = last_ticket(behind_s=-0.5)
    desk.now_s = 10.3
    assert isinstance(desk.arrive("ana", cost=WARM), Queued)


def test_no_pace_is_promised_to_what_is_not_streamed_or_has_not_begun() -> None:
    desk = Desk(streams=3)
    desk.arrive("cleo", cost=WARM, streamed=False)
    desk.first_token(1)
    desk.arrive("dan", cost=WARM)
    desk.now_s = 1.0
    for id in (1, 2):
        desk.tokens(id, 0.0)
    assert isinstance(desk.arrive("ana", cost=WARM), Granted)


def test_a_read_that_is_overdue_gives_nobody_time() -> None:
    desk = Desk(streams=3)
    desk.runs("other")
    desk.arrive("cleo", cost=Cost(9000, 9000, 1.0))
    desk.now_s = 5.0
    desk.tokens(1, 40.0 * 5.25)
    assert isinstance(desk.arrive("ana", cost=WARM), Queued), "0.25 s ahead, 0.5 s to read"
