"""gateway.status.cold, warm: the cold lane, cache, speed, prewarm, prefix watch and KV tier as they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.learning.floor_guard import REPLIES_MIN
from gateway.snapshot import CacheView, GatewaySnapshot, SpeedView
from gateway.state import Cause, HostKv, Phase
from gateway.status.compose import view
from gateway.status.figures import Tone
from gateway.status.views import StatusView
from tests.status_sample import NOW_S, box, cared, gateway, lane, lively, seat, waiting, watch_row


def shown(**changes: Any) -> StatusView:
    return view(box(), cared(gateway(3)).model_copy(update=changes), NOW_S)


# The cold lane


@pytest.mark.parametrize(
    ("changes", "state", "sentence"),
    [
        ({"reading_seat": "cy", "reading_tokens": 80_000, "reading_left_s": 9.0, "closed": False}, "reading",
         "A ~80K prompt of cy is being read, ~9 s more."),
        ({}, "quiet", "The gate is closed for a ~128K prompt of ana, at most ~14 s more: running answers end first."),
        ({"closed": False, "spacing_left_s": 22.0}, "spacing",
         "No other long prompt for ~22 s: those who write catch up first."),
        ({"closed": False}, "line", "A ~128K prompt of ana waits for its turn."),
        ({"closed": False, "next_seat": "", "next_tokens": None}, "free", "No long prompt is read, none waits."),
    ],
)  # fmt: skip
def test_the_lane_is_told_in_a_sentence_with_its_end(changes: dict[str, Any], state: str, sentence: str) -> None:
    cold = shown(lane=lane(**changes)).cold
    assert cold is not None
    assert (cold.state, cold.sentence) == (state, sentence)


def test_who_is_next_is_told_with_the_longest_that_the_gate_stays_closed() -> None:
    cold = shown().cold
    assert cold is not None
    assert (cold.next_seat, str(cold.next_tokens), str(cold.closed_left)) == ("ana", "~128 k", "~14 s")
    assert cold.next_why == ""
    assert not cold.reading_seat
    assert str(cold.reading_left) == "–"


def test_who_is_next_beside_an_open_gate_is_told_with_why_it_waits() -> None:
    later = waiting(1, "ana", why="spacing", why_s=22.0, uncached_tokens=128_300)
    cold = shown(lane=lane(closed=False, spacing_left_s=22.0), waiting=(later,)).cold
    assert cold is not None
    assert (
        cold.next_why
        == "it is long, and the last long prompt was not long ago; the next long one may follow in about 22 s"
    )


def test_everybody_in_line_is_told_to_the_operator_with_names_and_to_themselves_without() -> None:
    first, second = shown().queue.rows
    assert (first.kind, str(first.uncached)) == ("quiet", "~128 k")
    assert second.why == "a ~128K prompt of ana is read first, about 43 s"
    assert second.why_said == "a ~128K prompt of another seat is read first, about 43 s"


def test_a_reason_of_a_newer_gateway_is_no_error() -> None:
    rows = shown(waiting=(waiting(1, why="moon"),)).queue.rows
    assert (rows[0].kind, rows[0].why) == ("moon", "")


def test_an_older_gateway_tells_of_no_lane() -> None:
    found = view(box(), gateway(3, 1), NOW_S)
    assert (found.cold, found.cache, found.speed, found.prewarm, found.watch) == (None, None, None, None, ())


# Speed and cap


def speed(**changes: Any) -> SpeedView:
    found = cared(gateway()).speed
    assert found is not None
    return found.model_copy(update=changes)


@pytest.mark.parametrize(("replies", "tone"), [(REPLIES_MIN - 1, Tone.OK), (REPLIES_MIN, Tone.WARN)])
def test_a_median_under_the_floor_warns_once_it_rests_on_enough_answers(replies: int, tone: Tone) -> None:
    found = shown(speed=speed(pace_tok_per_s=36.0, pace_replies=replies)).speed
    assert found is not None
    assert (found.tone, str(found.pace)) == (tone, "~36.0 tok/s")


def test_a_lowered_cap_is_told_with_what_was_validated() -> None:
    found = shown(speed=speed(cap=3)).speed
    assert found is not None
    assert found.cap.sentence == "Lowered by the floor guard: 3 of the 4 validated"
    whole = shown().speed
    assert whole is not None
    assert not whole.cap.lowered


@pytest.mark.parametrize(
    ("measured", "fitted", "source"),
    [
        (0, False, "by the study's curve: nothing was measured yet"),
        (1, False, "from 1 measurement on this box, in the shape of the study's curve"),
        (42, True, "from 42 measurements on this box"),
    ],
)
def test_how_a_prediction_is_known_is_told(measured: int, fitted: bool, source: str) -> None:
    found = shown(speed=speed(prefill_measured=measured, prefill_fitted=fitted)).speed
    assert found is not None
    assert (found.source, str(found.prefill_100k)) == (source, "~14 s")


# Cache, prewarm, watch, KV tier


def test_the_cache_is_told_against_its_capacity_where_that_is_known() -> None:
    cache = shown().cache
    assert cache is not None
    assert (str(cache.held), str(cache.capacity), cache.share) == ("~612 k", "~800 k", 0.765)
    unknown = CacheView(held_tokens=10, capacity_tokens=None, losses=0, losses_lately=0)
    found = shown(cache=unknown).cache
    assert found is not None
    assert (str(found.capacity), found.share) == ("–", None)


def test_what_was_read_ahead_is_told_while_there_was_something_to_read() -> None:
    prewarm = shown().prewarm
    assert prewarm is not None
    assert (prewarm.done, prewarm.of, prewarm.left) == (4, 5, 1)
    assert (prewarm.now, str(prewarm.tokens), str(prewarm.seconds)) == ("a conversation of dana", "248 k", "39 s")


def test_the_dearest_lines_of_the_watch_stand_first_with_place_shape_and_remedy() -> None:
    first, second = shown().watch
    assert (first.seat, first.tone, str(first.lost), str(first.real), str(first.expected)) == (
        "ben", Tone.WARN, "~63 s", "71 %", "~95 %",
    )  # fmt: skip
    assert (first.where, first.shape) == ("byte 18 212, in system prompt", "*: a+=x+; a+=")
    assert "CLAUDE_CODE_ATTRIBUTION_HEADER=0" in first.remedy
    assert (second.seat, second.tone, str(second.lost), second.where, second.remedy) == ("ana", Tone.OK, "0 s", "", "")


def test_a_client_whose_prompts_are_lost_by_the_engine_warns_too() -> None:
    (line,) = shown(watch=(watch_row(changed=0, missed=3, last=None),)).watch
    assert line.tone is Tone.WARN


@pytest.mark.parametrize(
    ("tier", "phase", "state", "why"),
    [
        (HostKv(bytes=1 << 36, on=True), Phase.READY, "on", ""),
        (HostKv(bytes=1 << 36), Phase.WARMING, "waiting", "proven when the engine warms up"),
        (HostKv(bytes=1 << 36), Phase.READY, "off", "it was not proven"),
        (HostKv(bytes=1 << 36, off=Cause(id="x.y", title="No hit came back", remedy="z")), Phase.READY, "off",
         "No hit came back"),
    ],
)  # fmt: skip
def test_a_tier_in_host_ram_is_on_or_off_with_the_reason(tier: HostKv, phase: Phase, state: str, why: str) -> None:
    found = view(box(phase, host_kv=tier), gateway(), NOW_S).host_kv
    assert found is not None
    assert (found.state, found.why, str(found.bytes)) == (state, why, "64.0 GiB")


def test_a_box_that_asks_for_no_tier_has_none() -> None:
    assert view(box(), gateway(), NOW_S).host_kv is None


# Seats and the last hour


def test_a_seat_has_its_real_hit_rate_beside_the_expected_one() -> None:
    rows = {row.name: row for row in view(*lively(), NOW_S).seats}
    assert (str(rows["ben"].hit_share), str(rows["ben"].expected_share), rows["ben"].over_share) == (
        "71 %",
        "~95 %",
        True,
    )
    plain = view(box(), gateway(seats=(seat(),)), NOW_S).seats[0]
    assert (str(plain.expected_share), plain.over_share) == ("–", False)


def history_of(*shares: float | None) -> GatewaySnapshot:
    _, found = lively()
    assert found.history is not None
    line = {
        "streams": (1,) * len(shares),
        "slowest_tok_per_s": (None,) * len(shares),
        "cached_share": (None,) * len(shares),
    }
    return gateway(history=found.history.model_copy(update={"reading_share": shares, **line}))


def test_time_in_which_long_prompts_are_read_is_told_in_seconds_of_a_minute() -> None:
    found = view(box(), history_of(*[0.0] * 12, *[1.0] * 3, *[0.0] * 9, *[1.0] * 6, *[0.0] * 6), NOW_S).history
    assert found is not None
    reading = found.sparks[3]
    assert (reading.id, str(reading.now)) == ("reading", "~30 s / min")
    assert reading.said == (
        "Time in which long prompts are read over the last 3 min: now ~30 s / min, mean ~15 s / min, "
        "at the most ~30 s / min."
    )


def test_gaps_and_an_older_gateway_have_no_such_line() -> None:
    found = view(box(), history_of(None, None), NOW_S).history
    assert found is not None
    assert str(found.sparks[3].now) == "–"
    older = view(box(), history_of(), NOW_S).history
    assert older is None
