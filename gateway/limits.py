"""What admission may work with: the limits that settings and the engine's profile come to. Pure."""

from __future__ import annotations

from gateway.admission_types import Limits
from gateway.settings import AdmissionSettings
from gateway.state import EngineProfile


def cap_of(settings: AdmissionSettings, profile: EngineProfile) -> int:
    """Streams that may run at once, as validated: what the engine's profile allows, a smaller setting wins."""
    return max(1, min(settings.streams, profile.streams) if settings.streams else profile.streams)


def limits_of(settings: AdmissionSettings, profile: EngineProfile, streams: int) -> Limits:
    """The policy's limits with so many streams. Whoever tries the demo has one seat and several chats: each of them is
    long to its engine, and none is refused for that."""
    return Limits(
        streams=streams,
        floor_tok_per_s=profile.floor_tok_per_s,
        cold_tokens=profile.cold_tokens,
        short_s=settings.short_s,
        spacing=settings.spacing,
        quiet_s=settings.quiet_s,
        last_wait_s=settings.last_wait_s,
        aged_s=settings.aged_s,
        over_share=settings.over_share,
        queue_cold_per_seat=0 if profile.demo else settings.queue_cold_per_seat,
        queue_max=settings.queue_max,
        queue_per_seat=settings.queue_per_seat,
        queue_bytes=settings.queue_bytes,
        queue_deadline_s=settings.queue_deadline_s,
        max_stream_s=settings.max_stream_s,
        seat_grace_s=settings.seat_grace_s,
    )
