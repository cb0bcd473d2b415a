"""gateway.metrics_prompts: cold lane, waits by reason, cache, pace, prewarm, watch as Prometheus text."""

from __future__ import annotations

from gateway.admission_types import WaitKind
from gateway.state import HostKv, Phase
from gateway.status.compose import view
from gateway.status.prompts import LaneState
from tests.gateway.test_metrics import samples
from tests.status_sample import NOW_S, box, gateway, lively


def test_the_cold_lane_and_the_waits_by_reason() -> None:
    got = samples(view(*lively(), NOW_S))
    assert {key[1]: value for key, value in got.items() if key[0] == "moe_cold_lane_state"} == {
        str(state): float(state is LaneState.QUIET) for state in LaneState
    }
    assert got["moe_cold_gate_closed",] == 1
    assert (got["moe_cold_gate_closed_seconds_total",], got["moe_cold_reading_seconds_total",]) == (1130, 4210)
    assert {key[1] for key in got if key[0] == "moe_queue_waiting"} == set(WaitKind)
    assert (got["moe_queue_waiting", "quiet"], got["moe_queue_waiting", "gate"]) == (1, 1)
    assert got["moe_queue_waited_seconds_total", "streams_busy"] == 5210


def test_cache_pace_and_cap() -> None:
    got = samples(view(*lively(), NOW_S))
    assert (got["moe_cache_tokens",], got["moe_cache_capacity_tokens",]) == (612_400, 800_000)
    assert got["moe_cache_losses_total",] == 2
    assert got["moe_expected_cached_tokens_total", "ana"] == 7_400_000
    assert (got["moe_seat_over_share", "ana"], got["moe_seat_over_share", "ben"]) == (0, 1)
    assert (got["moe_stream_median_tokens_per_second",], got["moe_stream_median_replies",]) == (47.3, 31)
    assert (got["moe_streams_max",], got["moe_streams_validated",]) == (4, 4)
    assert got["moe_prefill_100k_seconds",] == 13.6
    assert (got["moe_host_kv_on",], got["moe_host_kv_bytes",]) == (1, 64 * 1024**3)


def test_what_was_read_ahead_and_whose_prompts_change() -> None:
    got = samples(view(*lively(), NOW_S))
    assert (got["moe_prewarm_prompts", "done"], got["moe_prewarm_prompts", "left"]) == (4, 1)
    assert (got["moe_prewarm_tokens_total",], got["moe_prewarm_seconds_total",]) == (248_000, 39.2)
    assert got["moe_prewarm_cuts_total",] == 1
    assert got["moe_prefix_changed_ratio", "claude-cli", "ben"] == 0.4
    assert got["moe_prefix_lost_seconds", "claude-cli", "ben"] == 63.4
    assert got["moe_prefix_lost_seconds", "codex", "ana"] == 0


def test_a_tier_that_is_still_to_be_proven_is_neither_on_nor_off() -> None:
    tier = HostKv(bytes=1 << 30)
    assert ("moe_host_kv_on",) not in samples(view(box(Phase.WARMING, host_kv=tier), gateway(), NOW_S))
    assert samples(view(box(host_kv=tier), gateway(), NOW_S))["moe_host_kv_on",] == 0


def test_an_older_gateway_leaves_out_what_it_does_not_tell() -> None:
    names = {key[0] for key in samples(view(box(), gateway(), NOW_S))}
    assert not {name for name in names if name.startswith(("moe_cold_", "moe_cache_", "moe_prewarm_", "moe_host_kv"))}
    assert "moe_stream_median_tokens_per_second" not in names
