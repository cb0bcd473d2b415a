"""The parts of the status about prompts: the cold lane, the engine's cache, what is read ahead, what is unstable. Pure.

A prompt is cold when more of it than `ColdView.cold` is not cached, and reading that is predicted to take
`ColdView.short` or longer. Lengths of prompts and predicted seconds are estimates.
"""

from __future__ import annotations

from enum import StrEnum

from gateway.status.figures import Figure, Tone, View


class LaneState(StrEnum):
    """Where the cold lane is, the first that applies."""

    READING = "reading"
    """A cold prompt is read."""
    QUIET = "quiet"
    """The gate is closed: the next one's turn comes when running replies have ended."""
    SPACING = "spacing"
    """The last one was not long ago."""
    LINE = "line"
    """One stands in line, behind others or for a stream."""
    FREE = "free"
    """None is read, none waits."""


class ColdView(View):
    """The cold lane. `reading_*`: the prompt that is read, `next_*`: the one that goes next and why it waits; seats are
    "" for none. `closed`: nobody else is admitted, for `closed_left` at the most; `spacing_left`: no other cold prompt
    before that. `reading_s`, `closed_s`: seconds of either since the gateway started."""

    state: LaneState
    sentence: str
    cold: Figure
    short: Figure = Figure()
    reading_seat: str = ""
    reading_tokens: Figure = Figure()
    reading_left: Figure = Figure()
    next_seat: str = ""
    next_tokens: Figure = Figure()
    next_why: str = ""
    closed: bool = False
    closed_left: Figure = Figure()
    spacing_left: Figure = Figure()
    reading_s: Figure = Figure()
    closed_s: Figure = Figure()


class CapView(View):
    """Streams at once, as they are and as they were validated. `lowered`: by the floor guard; `sentence` "" = it is
    not."""

    now: int
    validated: int
    lowered: bool
    sentence: str = ""


class SpeedRow(View):
    """What was measured of the engine. `pace`: the median of `replies` without a cold neighbour in the last 5 min;
    `prefill_100k`: predicted reading of 100,000 tokens, and `source`: what that rests on."""

    pace: Figure
    floor: Figure
    replies: Figure
    tone: Tone
    prefill_100k: Figure
    source: str
    cap: CapView


class CacheRow(View):
    """What the engine's cache is believed to hold. `share`: of its capacity, 0..1; `losses`: how often it had less than
    was believed, `losses_lately` in the last 5 min."""

    held: Figure
    capacity: Figure
    share: float | None
    losses: Figure
    losses_lately: Figure


class HostKvView(View):
    """The engine's KV tier in host RAM: `state` on, off or waiting (for the warm-up). `why`, `remedy`: of off."""

    state: str
    tone: Tone
    bytes: Figure
    why: str = ""
    remedy: str = ""


class PrewarmRow(View):
    """What was read ahead since the engine's last start; see prewarm/queue.py. `now` "" = nothing is read."""

    of: int
    done: int
    given_up: int
    left: int
    now: str
    tokens: Figure
    seconds: Figure
    cut: Figure
    copies: Figure
    last_error: str


class WatchLine(View):
    """Whose prompts continue each other: one seat with one client. Shares are of its prompt tokens. `changed` and
    `missed`: of its last `of` turns; `lost`: seconds of reading that changes cost in the last hour. `where`: the last
    change, its `shape` and never its text; `remedy` "" = there was none."""

    seat: str
    client: str
    turns: Figure
    expected: Figure
    real: Figure
    of: int
    changed: int
    missed: int
    lost: Figure
    where: str = ""
    shape: str = ""
    remedy: str = ""
    tone: Tone = Tone.OK
