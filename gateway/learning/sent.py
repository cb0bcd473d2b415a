"""How many output tokens a running reply has before its usage passes. Pure.

Rules:
- Events are not tokens: speculative decoding packs several into one, and an engine may keep those of a tool call back.
  What an event holds is learned from finished replies, for each path, and anew with each start of the engine.
- An event is what the taps count as output: text, reasoning and tool calls alike.
- Usage that the engine tells in between is exact. One far behind the events was told at the beginning and not since.
- Nothing is known of a reply in one piece before its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.admission_types import Sent
from gateway.meter import Meter

PER_EVENT_MIN, PER_EVENT_MAX = 0.25, 32.0
PRIOR_EVENTS = 16.0
"""One token an event is believed like a reply of this many events."""
EVENTS_KEPT = 4000.0
"""About ten replies; what came before them counts less and less."""
USAGE_BEHIND = 0.5
"""Usage below this share of what the events come to is old."""


@dataclass(slots=True)
class _Totals:
    tokens: float = PRIOR_EVENTS
    events: float = PRIOR_EVENTS


class SentEstimate:
    """One per gateway."""

    def __init__(self) -> None:
        self._start_id = ""
        self._totals: dict[str, _Totals] = {}

    def engine_started(self, start_id: str) -> None:
        """Another start of the engine may pack its tokens otherwise; the same one again changes nothing."""
        if start_id != self._start_id:
            self._start_id = start_id
            self._totals.clear()

    def learn(self, path: str, meter: Meter) -> None:
        """A reply ended, of which `meter` has the figures; without usage or events it teaches nothing. `path`: the
        request path of its dialect."""
        if meter.usage is None or meter.events <= 0 or meter.usage.completion_tokens <= 0:
            return
        tokens = min(max(meter.usage.completion_tokens, PER_EVENT_MIN * meter.events), PER_EVENT_MAX * meter.events)
        totals = self._totals.setdefault(path, _Totals())
        totals.tokens += tokens
        totals.events += meter.events
        if totals.events > EVENTS_KEPT:
            shrink = EVENTS_KEPT / totals.events
            totals.tokens *= shrink
            totals.events *= shrink

    def per_event(self, path: str) -> float:
        """Tokens in one event; 1 until something was learned."""
        totals = self._totals.get(path)
        return 1.0 if totals is None else totals.tokens / totals.events

    def of(self, path: str, meter: Meter) -> Sent | None:
        """Tokens so far, and when the last of them came; None before the first token and for a reply in one piece."""
        if meter.last_token_s is None:
            return None
        counted = meter.events * self.per_event(path)
        told = meter.usage.completion_tokens if meter.usage is not None else 0
        return Sent(float(told) if told and told >= USAGE_BEHIND * counted else counted, meter.last_token_s)
