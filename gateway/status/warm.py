"""What is known of cache and speed of the engine, as it is shown: cache, prewarm, prefix watch, pace, KV tier. Pure.

Rules:
- What the index believes and what the curve predicts are estimates; what the engine counted and a clock measured is
  not.
- Lines of the watch stand by what they cost, the dearest first.
"""

from __future__ import annotations

from gateway.learning.floor_guard import REPLIES_MIN
from gateway.learning.watch import WatchRow
from gateway.learning.watch_findings import REMEDIES, REPEATED
from gateway.prewarm.queue import PrewarmState
from gateway.seats import counted
from gateway.snapshot import CacheView, GatewaySnapshot, SpeedView
from gateway.state import EngineState, HostKv, Phase
from gateway.status.figures import Tone, compact, count, gib, pace, percent, seconds
from gateway.status.prompts import CacheRow, CapView, HostKvView, PrewarmRow, SpeedRow, WatchLine


def cache_row(cache: CacheView | None) -> CacheRow | None:
    """The engine's cache; None where nothing is known of it."""
    if cache is None:
        return None
    held, capacity = cache.held_tokens, cache.capacity_tokens
    return CacheRow(
        held=compact(held, estimated=True),
        capacity=compact(capacity, estimated=True),
        share=round(min(1.0, held / capacity), 3) if capacity else None,
        losses=count(cache.losses),
        losses_lately=count(cache.losses_lately),
    )


def speed_row(engine: EngineState, speed: SpeedView | None) -> SpeedRow | None:
    """Pace, reading and cap; None where nothing was measured of them."""
    if speed is None:
        return None
    floor, found = engine.profile.floor_tok_per_s, speed.pace_tok_per_s
    slow = found is not None and speed.pace_replies >= REPLIES_MIN and found < floor
    return SpeedRow(
        pace=pace(found, estimated=True),
        floor=pace(floor if floor > 0 else None),
        replies=count(speed.pace_replies),
        tone=Tone.WARN if slow else Tone.OK,
        prefill_100k=seconds(speed.prefill_100k_s, estimated=True),
        source=_source(speed),
        cap=_cap(speed),
    )


def _source(speed: SpeedView) -> str:
    if not speed.prefill_measured:
        return "by the study's curve: nothing was measured yet"
    measured = f"from {counted(speed.prefill_measured, 'measurement')} on this box"
    return measured if speed.prefill_fitted else f"{measured}, in the shape of the study's curve"


def _cap(speed: SpeedView) -> CapView:
    lowered = speed.cap < speed.cap_validated
    sentence = f"Lowered by the floor guard: {speed.cap} of the {speed.cap_validated} validated" if lowered else ""
    return CapView(now=speed.cap, validated=speed.cap_validated, lowered=lowered, sentence=sentence)


def host_kv_view(engine: EngineState) -> HostKvView | None:
    """The KV tier in host RAM; None where the configuration asks for none."""
    tier: HostKv = engine.host_kv
    if not tier.bytes:
        return None
    if tier.on:
        return HostKvView(state="on", tone=Tone.OK, bytes=gib(tier.bytes))
    if tier.off is None and engine.phase is not Phase.READY:
        return HostKvView(state="waiting", tone=Tone.OK, bytes=gib(tier.bytes), why="proven when the engine warms up")
    why, remedy = (tier.off.title, tier.off.remedy) if tier.off is not None else ("it was not proven", "")
    return HostKvView(state="off", tone=Tone.WARN, bytes=gib(tier.bytes), why=why, remedy=remedy)


def prewarm_row(state: PrewarmState | None) -> PrewarmRow | None:
    """What was read ahead; None where nothing was to be read."""
    if state is None or not state.of:
        return None
    return PrewarmRow(
        of=state.of,
        done=state.done,
        given_up=state.given_up,
        left=max(0, state.of - state.done - state.given_up),
        now=state.now,
        tokens=compact(state.tokens),
        seconds=seconds(state.seconds),
        cut=count(state.cut),
        copies=count(state.copies),
        last_error=state.last_error,
    )


def watch_lines(gateway: GatewaySnapshot | None) -> tuple[WatchLine, ...]:
    """Every seat with every client, the dearest first."""
    rows = gateway.watch if gateway else ()
    ranked = sorted(rows, key=lambda row: (-row.lost_s, -row.changed, -row.missed, row.seat, row.client))
    return tuple(_watched(row) for row in ranked)


def _watched(row: WatchRow) -> WatchLine:
    last = row.last
    grave = row.changed >= REPEATED or row.missed >= REPEATED
    return WatchLine(
        seat=row.seat,
        client=row.client,
        turns=count(row.turns),
        expected=percent(row.expected_share, estimated=True),
        real=percent(row.real_share),
        of=row.of,
        changed=row.changed,
        missed=row.missed,
        lost=seconds(row.lost_s, estimated=row.lost_s > 0),
        where=f"byte {count(last.offset)}, in {last.segment}" if last is not None else "",
        shape=last.shape if last is not None else "",
        remedy=REMEDIES[last.origin].format(segment=last.segment, offset=last.offset) if last is not None else "",
        tone=Tone.WARN if grave else Tone.OK,
    )
