"""The metrics about prompts: cold lane, why requests wait, cache, pace, cap, prewarm, prefix watch, KV tier. Pure.

Seconds that are summed over looks (about one a second) are estimates, and so is what the cache holds; see history.py
and prefix/index.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from gateway.admission_types import WaitKind
from gateway.metrics_families import counter, counters, gauge, gauges, one_of
from gateway.status.prompts import LaneState
from gateway.status.views import StatusView


def prompt_metrics(view: StatusView) -> Iterator[Metric]:
    """All of them, as far as they are known."""
    yield from _waits(view)
    yield from _cold(view)
    yield from _cache(view)
    yield from _speed(view)
    yield from _prewarm(view)
    yield from _watch(view)


def _waits(view: StatusView) -> Iterator[Metric]:
    kinds, queue = [str(kind) for kind in WaitKind], view.queue
    now = Counter(row.kind for row in queue.rows)
    yield gauges(
        "moe_queue_waiting", "Requests in line, by why they wait.", ["reason"], (((kind,), now[kind]) for kind in kinds)
    )
    waited = (((kind,), queue.waited_s.get(kind, 0.0)) for kind in kinds)
    yield counters("moe_queue_waited_seconds_total", "Seconds that requests waited, by why.", ["reason"], waited)


def _cold(view: StatusView) -> Iterator[Metric]:
    cold = view.cold
    if cold is None:
        return
    states = [str(state) for state in LaneState]
    yield one_of("moe_cold_lane_state", "1 for the state of the cold lane.", "state", states, cold.state)
    yield from gauge(
        "moe_cold_gate_closed", "1 while nobody else is admitted before a cold prompt.", float(cold.closed)
    )
    yield from counter("moe_cold_gate_closed_seconds_total", "Seconds with the gate closed.", cold.closed_s)
    yield from counter("moe_cold_reading_seconds_total", "Seconds in which a cold prompt was read.", cold.reading_s)


def _cache(view: StatusView) -> Iterator[Metric]:
    if view.cache is not None:
        cache = view.cache
        yield from gauge("moe_cache_tokens", "Tokens that the engine's cache is believed to hold.", cache.held)
        yield from gauge("moe_cache_capacity_tokens", "Tokens that it is believed to have room for.", cache.capacity)
        yield from counter("moe_cache_losses_total", "How often it held less than was believed.", cache.losses)
    if view.host_kv is not None:
        yield from gauge("moe_host_kv_on", "1 while the engine has its KV tier in host RAM.", _on(view))
        yield from gauge("moe_host_kv_bytes", "Host RAM that the configuration gives it.", view.host_kv.bytes)
    expected = (((seat.name,), seat.expected_tokens) for seat in view.seats)
    help = "Prompt tokens of each seat that should have come from the cache, an estimate."
    yield counters("moe_expected_cached_tokens_total", help, ["seat"], expected)
    over = (((seat.name,), float(seat.over_share)) for seat in view.seats)
    yield gauges("moe_seat_over_share", "1 while a seat stands behind those that used less.", ["seat"], over)


def _on(view: StatusView) -> float | None:
    """Nothing before the warm-up has tried it."""
    return None if view.host_kv is None or view.host_kv.state == "waiting" else float(view.host_kv.state == "on")


def _speed(view: StatusView) -> Iterator[Metric]:
    speed = view.speed
    if speed is None:
        return
    help = "Median pace of streams without a cold neighbour over 5 min, an estimate."
    yield from gauge("moe_stream_median_tokens_per_second", help, speed.pace)
    yield from gauge("moe_stream_median_replies", "Answers that the median rests on.", speed.replies)
    yield from gauge("moe_prefill_100k_seconds", "Predicted reading of 100,000 tokens.", speed.prefill_100k)
    yield from gauge("moe_streams_validated", "Streams at once that were validated.", speed.cap.validated)


def _prewarm(view: StatusView) -> Iterator[Metric]:
    warm = view.prewarm
    if warm is None:
        return
    states = ((("done",), warm.done), (("left",), warm.left), (("given_up",), warm.given_up))
    help = "Prefixes and conversations to be read ahead since the engine's start."
    yield gauges("moe_prewarm_prompts", help, ["state"], states)
    yield from counter("moe_prewarm_tokens_total", "Tokens that were read ahead.", warm.tokens)
    yield from counter("moe_prewarm_seconds_total", "Seconds that this took.", warm.seconds)
    yield from counter("moe_prewarm_cuts_total", "How often somebody's arrival ended it.", warm.cut)


def _watch(view: StatusView) -> Iterator[Metric]:
    labels, rows = ["seat", "client"], view.watch
    changed = (((row.seat, row.client), row.changed / row.of) for row in rows if row.of)
    yield gauges("moe_prefix_changed_ratio", "Share of the latest turns that changed what was sent.", labels, changed)
    missed = (((row.seat, row.client), row.missed / row.of) for row in rows if row.of)
    yield gauges("moe_prefix_missed_ratio", "Share of them whose cached part was gone.", labels, missed)
    lost = (((row.seat, row.client), row.lost) for row in rows)
    yield gauges("moe_prefix_lost_seconds", "Reading that changes cost in the last hour, an estimate.", labels, lost)
