"""Rules 2c and 3 of admission by example: what running replies can spare."""

from __future__ import annotations

import pytest

from gateway.admission import HELPER_PATIENCE_S, HOLD_PRIOR_S
from gateway.admission_types import Cost, Granted, Hold, Queued, Reason, Rejected, WaitKind
from tests.gateway.desk import COLD, WARM, Desk


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
    for now_s, ahead_s, granted in ((10.25, 0.25, []), (10.5, 0.74, []), (10.75, 0.75, [(10.75, ana)])):
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


def test_what_the_engine_has_to_read_counts_whole_until_its_first_token() -> None:
    desk = Desk(streams=3)
    desk.runs("other")
    desk.leads_s[1] = 4.7
    desk.arrive("cleo", cost=Cost(9000, 9000, 4.0))
    ana = desk.waits("ana")
    assert desk.until(12.0) == [], "4.7 s ahead; 4 s, 0.5 s and a margin of 0.25 s are more, though cleo is overdue"
    assert desk.first_token(2) == [ana]
    desk = Desk(streams=3)
    desk.runs("other")
    desk.leads_s[1] = 4.75
    desk.arrive("cleo", cost=Cost(9000, 9000, 4.0))
    assert isinstance(desk.arrive("ana", cost=WARM), Granted)


@pytest.mark.parametrize(("lead_s", "granted"), [(4.75, [4]), (4.74, [])])
def test_all_that_is_not_read_counts(lead_s: float, granted: list[int]) -> None:
    desk = Desk(streams=4)
    desk.runs("other")
    desk.leads_s = {1: lead_s, 2: 60.0}
    for seat in ("cleo", "dan"):
        desk.arrive(seat, cost=Cost(9000, 9000, 4.0))
    desk.waits("ana")
    desk.now_s = 7.0
    assert desk.first_token(2) == granted, "dan's prompt is still to be read"


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
    desk.sent.clear()
    desk.leads_s[1] = -1.0
    ana = desk.waits("ana")
    assert desk.until(9.0 + after_s) == []
    assert desk.until(11.0 + after_s) == [(10.0 + after_s, ana)]


def test_without_a_longest_wait_the_last_ticket_is_like_any_other() -> None:
    assert isinstance(last_ticket(last_wait_s=0.0).arrive("ana", cost=WARM), Granted)


@pytest.mark.parametrize(("behind_s", "told"), [(4.0, Queued), (4.1, Granted)])
def test_a_reply_that_is_lost_keeps_nobody_waiting(behind_s: float, told: type) -> None:
    assert isinstance(last_ticket(behind_s=behind_s).arrive("ana", cost=WARM), told)


def test_silence_is_lateness_only_when_it_is_longer_than_a_burst() -> None:
    desk = last_ticket(behind_s=-0.75)
    desk.now_s = 10.25
    assert isinstance(desk.arrive("ana", cost=WARM), Granted), "0.75 s ahead, and a quarter of silence"
    desk = last_ticket(behind_s=-0.75)
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


def test_of_whom_nothing_is_known_to_be_sent_has_sent_nothing_and_is_lost_after_four_seconds() -> None:
    desk = Desk(streams=2)
    desk.runs("other")
    desk.leads_s[1] = None
    ana = desk.waits("ana")
    assert desk.until(20.0) == [(4.25, ana)]


# 2c


def room_for_cold(lead_s: float | None, cap: int = 4, running: int = 1, **limits: float) -> Desk:
    """So many replies run, all so far ahead."""
    desk = Desk(streams=cap, **limits)
    desk.runs(*(f"other{number}" for number in range(running)))
    desk.leads_s = dict.fromkeys(range(1, running + 1), lead_s)
    return desk


@pytest.mark.parametrize("cap", [2, 3, 8])
@pytest.mark.parametrize(("lead_s", "told"), [(10.25, Granted), (10.24, Queued)])
def test_a_cold_prompt_goes_at_once_when_no_reply_falls_behind_by_it(cap: int, lead_s: float, told: type) -> None:
    assert isinstance(room_for_cold(lead_s, cap, cap - 1).arrive("ben", cost=COLD), told)


def test_the_reply_that_is_least_ahead_decides() -> None:
    desk = room_for_cold(60.0, running=3)
    desk.leads_s[2] = 10.2
    ben = desk.waits("ben", COLD)
    assert desk.leave(2) == [ben]


def test_it_does_not_go_while_a_prompt_is_being_read_however_long_that_takes() -> None:
    desk = room_for_cold(60.0)
    desk.arrive("cleo", cost=WARM)
    desk.leads_s[2] = 60.0
    ben = desk.waits("ben", COLD)
    assert desk.until(13.0) == [], "though cleo's prompt counts as read for what others have to wait"
    assert desk.first_token(2) == [ben]


def test_what_is_not_streamed_has_no_pace_but_must_be_read() -> None:
    for lead_s, told in ((10.75, Granted), (10.74, Queued)):
        desk = room_for_cold(lead_s)
        desk.arrive("cleo", cost=WARM, streamed=False)
        assert isinstance(desk.arrive("ben", cost=COLD), told), lead_s
    desk = room_for_cold(None, running=0)
    desk.arrive("cleo", cost=WARM, streamed=False)
    assert isinstance(desk.arrive("ben", cost=COLD), Granted), "nobody has a pace"


def test_a_reply_that_is_lost_keeps_no_cold_prompt_waiting() -> None:
    for lead_s, told in ((-4.0, Queued), (-4.1, Granted)):
        assert isinstance(room_for_cold(lead_s).arrive("ben", cost=COLD), told)


def test_it_is_looked_at_every_quarter_of_a_second_while_the_gate_is_closed() -> None:
    desk = room_for_cold(1.0)
    ben = desk.waits("ben", COLD)
    for now_s in (0.25, 0.5, 0.6):
        assert desk.tick(now_s).wake_at_s == now_s + 0.25
    desk.until(3.0)
    desk.leads_s[1] = 10.25
    assert desk.until(4.0) == [(3.1, ben)]
    assert desk.wake_at_s is not None
    assert desk.wake_at_s > 100.0, "nobody waits"


def test_it_is_looked_at_no_more_when_the_gate_is_open() -> None:
    desk = room_for_cold(1.0)
    desk.waits("ben", COLD, helper=True)
    assert desk.wake_at_s == HELPER_PATIENCE_S
    desk = room_for_cold(1.0)
    ben = desk.waits("ben", COLD)
    assert desk.leave(1) == [ben]
    desk.first_token(ben)
    desk.waits("cleo", COLD)
    assert desk.wake_at_s == 30.0, "the spacing"
    desk.send(Hold(True))
    assert desk.wake_at_s == 180.0


def test_the_last_ticket_is_not_looked_at_again_once_it_is_out() -> None:
    desk = last_ticket(behind_s=-0.5)
    ana = desk.waits("ana")
    desk.waits("ben")
    assert desk.wake_at_s == 10.25
    desk.tokens(1, 40.0 * 12.0)
    assert [effect.id for effect in desk.tick(10.25).effects] == [ana]
    assert desk.wake_at_s != 10.5


def test_however_far_ahead_all_are_the_spacing_is_kept() -> None:
    desk = room_for_cold(1000.0)
    ana = desk.arrive("ana", cost=COLD).id
    desk.leads_s[ana] = 1000.0
    desk.first_token(ana)
    ben = desk.waits("ben", COLD)
    desk.arrive("cleo", cost=WARM)
    desk.leads_s[desk.count] = 1000.0
    desk.first_token(desk.count)
    assert desk.until(60.0) == [(30.0, ben)], "and no quiet time"


@pytest.mark.parametrize("streamed", [True, False])
def test_however_far_ahead_all_are_one_is_read_at_a_time(streamed: bool) -> None:
    desk = room_for_cold(1000.0, spacing=0.0)
    ana = desk.arrive("ana", cost=COLD, streamed=streamed).id
    desk.leads_s[ana] = 1000.0
    ben = desk.waits("ben", COLD)
    assert desk.until(12.0) == []
    assert desk.first_token(ana) == [ben]


@pytest.mark.parametrize(("other", "at_s"), [({"helper": True}, 30.0), ({"over": True}, 60.0)])
def test_however_far_ahead_all_are_who_stands_behind_others_stays_there(other: dict[str, bool], at_s: float) -> None:
    desk = room_for_cold(1000.0)
    ben = desk.waits("ben", COLD, **other)
    assert desk.until(100.0) == [(at_s, ben)]


def test_while_it_is_read_the_gate_is_open_and_the_last_ticket_waits_for_its_first_token() -> None:
    desk = room_for_cold(1.0, cap=4)
    ben, cleo, dan = desk.waits("ben", COLD), desk.waits("cleo"), desk.waits("dan")
    desk.leads_s[1] = 10.25
    assert desk.until(0.25) == [(0.25, ben), (0.25, cleo)]
    assert desk.why(dan).kind is WaitKind.PACE
    desk.first_token(cleo)
    assert desk.first_token(ben) == [dan]


def test_the_time_that_the_gate_was_closed_for_one_that_went_is_taken_off_nobody_s() -> None:
    desk = room_for_cold(1.0, spacing=0.0)
    ben = desk.waits("ben", COLD)
    desk.until(15.0)
    desk.leads_s[1] = 10.25
    assert desk.until(16.0) == [(15.25, ben)]
    desk.leads_s[1] = 1.0
    desk.first_token(ben)
    cleo = desk.waits("cleo", COLD)
    assert desk.until(60.0) == [(36.0, cleo)]


def test_where_nobody_may_wait_only_the_cap_counts() -> None:
    desk = room_for_cold(-1.0, cap=3, queue_max=0)
    assert isinstance(desk.arrive("ben", cost=COLD), Granted)
    assert isinstance(desk.arrive("cleo", cost=COLD), Granted)
    refused = desk.arrive("dan", cost=COLD)
    assert isinstance(refused, Rejected)
    assert refused.reason is Reason.QUEUE_FULL


def test_a_ticket_that_was_withheld_for_the_pace_counts_as_free_again_once_it_is_not() -> None:
    desk = last_ticket(quiet_s=1.0)
    desk.leave(desk.waits("ana"))
    desk.waits("ben", COLD)
    told = desk.arrive("cleo", cost=WARM)
    assert isinstance(told, Queued)
    assert told.wait_s == HOLD_PRIOR_S / 4, "one of four tickets is to come back, not two"
