"""What may be asked of the admission policy: the strategies of test_admission_machine.py."""

from __future__ import annotations

from hypothesis import strategies as st

from gateway.admission_types import Cost, Limits

COLD = Cost(90_000, 90_000, 12.0)
WARM = Cost(50_000, 500, 0.25)
SEATS = st.sampled_from(["ana", "ben", "cleo", "dan"])
COSTS = st.sampled_from(
    [
        Cost(),
        WARM,
        Cost(50_000, 9_000, 2.0),
        Cost(20_000, 20_000, 2.5),
        COLD,
        Cost(250_000, 250_000, 44.0),
    ]
)
TWO_COSTS = st.sampled_from([(COLD, Cost(80_000, 70_000, 11.0)), (Cost(80_000, 70_000, 11.0), COLD), (WARM, WARM)])
LIMITS = st.builds(
    Limits,
    streams=st.sampled_from([1, 2, 3, 4, 4, 8]),
    short_s=st.sampled_from([0.0, 2.5, 5.0, 13.0]),
    spacing=st.sampled_from([0.0, 3.0, 3.0, 7.0]),
    quiet_s=st.sampled_from([0.0, 8.0, 20.0]),
    last_wait_s=st.sampled_from([0.0, 20.0, 20.0, 90.0]),
    aged_s=st.sampled_from([0.0, 5.0, 60.0]),
    over_share=st.sampled_from([0.0, 1.5, 1.5]),
    queue_cold_per_seat=st.sampled_from([0, 1, 3, 8]),
    queue_max=st.sampled_from([0, 12, 40, 40, 40]),
    queue_per_seat=st.sampled_from([1, 4, 10, 10]),
    queue_bytes=st.sampled_from([0, 50, 4000]),
    queue_deadline_s=st.sampled_from([5.0, 30.0, 60.0, 180.0, 180.0]),
    max_stream_s=st.sampled_from([0.0, 20.0, 1800.0, 1800.0]),
    seat_grace_s=st.sampled_from([0.0, 10.0]),
)
ARRIVALS = st.tuples(SEATS, COSTS, st.sampled_from([-50.0, -5.0, 0.0]), st.sampled_from("tttthob"), st.booleans())
"""Seat, cost, how long its run is old, t(urn), h(elper), o(ver budget) or b(oth), something rare."""
LEADS = st.sampled_from([None, -9.0, -1.0, 0.375, 3.0, 12.125, 20.0, 20.0, 60.0])
"""How far a reply is before its pace line, seconds: no sums of the times of reading above, so that it is sure."""
