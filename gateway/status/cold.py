"""The cold lane as it is shown: who is read, who is next and why not yet, for how long. Pure.

Rules:
- Whatever the lane does is told with its end: the longest that the gate stays closed, what is left of reading and of
  the spacing. No sentence of it sounds like a fault, since none is one.
- A lane whose spacing runs while nobody cold waits is free for what matters: it is told as spacing, with its seconds.
"""

from __future__ import annotations

from gateway.admission_types import Wait, WaitKind
from gateway.snapshot import GatewaySnapshot, LaneSnapshot, WaitingView
from gateway.status.figures import Figure, compact, seconds
from gateway.status.prompts import ColdView, LaneState
from gateway.waiting import prompt_of, said, told


def cold_view(gateway: GatewaySnapshot | None) -> ColdView | None:
    """The lane; None without a gateway that tells of one."""
    lane = gateway.lane if gateway else None
    if gateway is None or lane is None:
        return None
    history = gateway.history
    return ColdView(
        state=_state(lane),
        sentence=_sentence(lane),
        cold=compact(lane.cold_tokens),
        short=seconds(lane.short_s if lane.short_s > 0 else None),
        reading_seat=lane.reading_seat,
        reading_tokens=compact(lane.reading_tokens, estimated=True),
        reading_left=_left(lane.reading_left_s if lane.reading_seat else None),
        next_seat=lane.next_seat,
        next_tokens=compact(lane.next_tokens, estimated=True),
        next_why="" if lane.closed else _next_why(gateway, lane),  # the sentence says it then
        closed=lane.closed,
        closed_left=_left(lane.quiet_left_s if lane.closed else None),
        spacing_left=_left(lane.spacing_left_s if lane.spacing_left_s > 0 else None),
        reading_s=seconds(history.reading_s if history else None, estimated=True),
        closed_s=seconds(history.closed_s if history else None, estimated=True),
    )


def _next_why(gateway: GatewaySnapshot, lane: LaneSnapshot) -> str:
    """Why the next cold prompt waits, in the operator's words; "" = none does."""
    waiting = next((row for row in gateway.waiting if row.seat == lane.next_seat and _is_next(row, lane)), None)
    return why_told(waiting, lane) if waiting is not None else ""


def cold_prompt(seat: str, tokens: int | None) -> str:
    """`a ~128K prompt of ana`."""
    return prompt_of(tokens, seat or "another seat")


def _wait_of(waiting: WaitingView) -> Wait | None:
    """Why a request waits; None where the gateway does not tell, or tells a reason that is not known here."""
    if waiting.why not in set(WaitKind):
        return None
    return Wait(WaitKind(waiting.why), waiting.why_s, waiting.why_tokens, waiting.why_own)


def why_said(waiting: WaitingView) -> str:
    """For the person who waits."""
    wait = _wait_of(waiting)
    return said(wait) if wait is not None else ""


def why_told(waiting: WaitingView, lane: LaneSnapshot | None) -> str:
    """For the operator, with the name of the seat whose prompt it is about."""
    wait = _wait_of(waiting)
    if wait is None:
        return ""
    return told(wait, (lane.reading_seat or lane.next_seat) if lane is not None else "")


def _is_next(row: WaitingView, lane: LaneSnapshot) -> bool:
    return row.uncached_tokens is None or row.uncached_tokens == lane.next_tokens


def _left(left_s: float | None) -> Figure:
    return seconds(left_s, estimated=True)


def _state(lane: LaneSnapshot) -> LaneState:
    if lane.reading_seat:
        return LaneState.READING
    if lane.closed:
        return LaneState.QUIET
    if lane.spacing_left_s > 0:
        return LaneState.SPACING
    return LaneState.LINE if lane.next_seat else LaneState.FREE


def _sentence(lane: LaneSnapshot) -> str:
    match _state(lane):
        case LaneState.READING:
            prompt = _capital(cold_prompt(lane.reading_seat, lane.reading_tokens))
            return f"{prompt} is being read, {_left(lane.reading_left_s)} more."
        case LaneState.QUIET:
            prompt = cold_prompt(lane.next_seat, lane.next_tokens)
            return (
                f"The gate is closed for {prompt}, at most {_left(lane.quiet_left_s)} more: running answers end first."
            )
        case LaneState.SPACING:
            return f"No other long prompt for {_left(lane.spacing_left_s)}: those who write catch up first."
        case LaneState.LINE:
            return f"{_capital(cold_prompt(lane.next_seat, lane.next_tokens))} waits for its turn."
        case LaneState.FREE:
            return "No long prompt is read, none waits."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
