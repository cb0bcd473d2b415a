"""What a developer sees of one seat: its streams, its place in line, its use, its hit rate, its settings. Pure.

Rules:
- Nothing of other seats: of them only how many streams are busy and how many requests wait, which a developer feels
  anyway; and, of what an own request waits for, "another seat" and a length in thousands of tokens. No finding, no log:
  those are the operator's.
- Own prompts that change are shown with the place and the shape of the change, never its text.
- Periods are calendar days, weeks (from Monday) and months, UTC.
- No key: where one belongs, the settings name the variable that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from gateway.agents.programs import AGENTS
from gateway.agents.settings import Agent, Target
from gateway.agents.text import notes, steps
from gateway.ledger.rows import Usage
from gateway.overlay import Mode
from gateway.state import Phase
from gateway.status.figures import Figure, Tone, View, compact, count, pace, percent, seconds
from gateway.status.prompts import WatchLine
from gateway.status.views import LanesView, LaneView, QueueRow, SeatRow, StatusView

GOOD_SHARE = 0.8
"""An agent that only appends to its conversation reads nine tenths of each prompt from the cache and more. Source: the
study's traces of long sessions."""

AS_EXPECTED = 0.05
"""What is missing to the expected share is no more than the estimate may be wrong by."""


class UsageRow(View):
    """A seat over one period; tokens as the engine counted them, or estimates. Times in seconds."""

    label: str
    requests: Figure
    served: Figure
    refused: Figure
    failed: Figure
    left: Figure
    prompt_tokens: Figure
    completion_tokens: Figure
    hit_share: Figure
    wait_p50: Figure
    wait_p95: Figure
    ttft_p50: Figure
    tok_per_s_p50: Figure


class StepView(View):
    """A thing to do and what to copy for it."""

    said: str
    text: str


class AgentView(View):
    """How one agent is told of this box; `why_not`: why that cannot be said now, "" = it can."""

    name: str
    title: str
    steps: tuple[StepView, ...]
    notes: tuple[str, ...]
    why_not: str = ""


class SeatPageView(View):
    """Everything on the page of one seat. `usage` None: there is no ledger, or it cannot be read now. `hit` against
    `row.expected_share`, which is of the time since the gateway started; `watch`: its clients."""

    at: str
    version: str
    seat: str
    tone: Tone
    sentence: str
    lanes: LanesView
    floor: Figure
    queue: tuple[QueueRow, ...]
    deadline: Figure
    row: SeatRow | None
    usage: tuple[UsageRow, ...] | None
    hit: Figure
    hit_said: str
    watch: tuple[WatchLine, ...] = ()


def periods(now_s: float) -> tuple[tuple[str, float], ...]:
    """Label and begin of each period that holds `now_s`, wall-clock seconds."""
    day = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    begins = {"today": day, "this week": day - timedelta(days=day.weekday()), "this month": day.replace(day=1)}
    return tuple((label, begin.timestamp()) for label, begin in begins.items())


def seat_view(status: StatusView, seat: str, usage: tuple[Usage, ...] | None) -> SeatPageView:
    """The page of `seat`; `usage`: one for each of `periods`, in their order."""
    tone, sentence = _sentence(status)
    own = tuple(lane for lane in status.lanes.rows if lane.busy and lane.seat == seat)
    row = next((row for row in status.seats if row.name == seat), None)
    rows = (
        None
        if usage is None
        else tuple(_usage(label, of) for (label, _), of in zip(periods(status.at_s), usage, strict=True))
    )
    hit, watch = _hit(row, usage), tuple(line for line in status.watch if line.seat == seat)
    return SeatPageView(
        at=status.at,
        version=status.version,
        seat=seat,
        tone=tone,
        sentence=sentence,
        lanes=status.lanes.model_copy(update={"rows": tuple(_renumbered(own)), "busy": len(own)}),
        floor=status.engine.floor,
        queue=tuple(row.model_copy(update={"why": row.why_said}) for row in status.queue.rows if row.seat == seat),
        deadline=status.queue.deadline,
        row=row,
        usage=rows,
        hit=percent(hit),
        hit_said=_hit_said(hit, row, watch),
        watch=watch,
    )


def _renumbered(lanes: tuple[LaneView, ...]) -> Iterator[LaneView]:
    for number, lane in enumerate(lanes, start=1):
        yield lane.model_copy(update={"number": number, "extra": False})


def _sentence(status: StatusView) -> tuple[Tone, str]:
    lanes, depth = status.lanes, status.queue.depth
    if status.gateway.state == "draining":
        return Tone.WARN, "The box restarts its gateway: try again in a moment."
    if status.engine.phase != Phase.READY:
        step = f": {status.engine.step}" if status.engine.step else ""
        return status.engine.tone, f"The box does not serve now, its engine is {status.engine.phase}{step}."
    match status.operator.mode:
        case Mode.DRAINED:
            return Tone.WARN, "The operator takes no new requests for now; what runs goes on."
        case Mode.PAUSED:
            return Tone.WARN, "The operator has paused the line: what you send waits, what runs goes on."
    wait = "nobody waits" if not depth else f"{depth} {'request waits' if depth == 1 else 'requests wait'}"
    return Tone.OK, f"The box serves: {lanes.busy} of {lanes.streams_max} streams busy, {wait}."


def _usage(label: str, usage: Usage) -> UsageRow:
    return UsageRow(
        label=label,
        requests=count(usage.requests),
        served=count(usage.served),
        refused=count(usage.refused),
        failed=count(usage.failed),
        left=count(usage.left),
        prompt_tokens=compact(usage.prompt_tokens),
        completion_tokens=compact(usage.completion_tokens, estimated=usage.estimated > 0),
        hit_share=percent(usage.hit_share),
        wait_p50=seconds(usage.wait_p50_s),
        wait_p95=seconds(usage.wait_p95_s),
        ttft_p50=seconds(usage.ttft_p50_s),
        tok_per_s_p50=pace(usage.tok_per_s_p50),
    )


def _hit(row: SeatRow | None, usage: tuple[Usage, ...] | None) -> float | None:
    """Of the shortest period that knows it; without a ledger, since the gateway started."""
    known = [of.hit_share for of in usage or () if of.hit_share is not None]
    return known[0] if known else row.hit_share.value if row is not None else None


def _hit_said(hit: float | None, row: SeatRow | None, watch: tuple[WatchLine, ...]) -> str:
    if hit is None:
        return "Nothing is known yet: no request of yours is over, or the engine does not tell."
    if hit >= GOOD_SHARE:
        return "Good: nearly all of each prompt is read from the cache, so answers begin soon."
    if row is not None and _as_expected(row) and not any(line.changed for line in watch):
        return "All that had been read before came from the cache; what was read anew was new, as first turns are."
    return "Much of each prompt is read anew, which makes you wait for the first word. What breaks the cache:"


def _as_expected(row: SeatRow) -> bool:
    real, expected = row.hit_share.value, row.expected_share.value
    return real is not None and expected is not None and real >= expected - AS_EXPECTED


def agent_views(url: str, status: StatusView, seat: str) -> tuple[AgentView, ...]:
    """The settings of every agent for the box at `url` (no path, no slash at its end)."""
    models, tokens = status.engine.models, status.engine.context_tokens.value
    if not models:
        why = f"The box has no model loaded now, its engine is {status.engine.phase}."
        return tuple(_unknown(agent, why) for agent in AGENTS.values())
    target = Target(url, models[0], None if tokens is None else int(tokens), seat)
    return tuple(_agent(agent, target) for agent in AGENTS.values())


def _agent(agent: Agent, target: Target) -> AgentView:
    if agent.needs_context and target.context_tokens is None:
        return _unknown(agent, "The box does not say how long a context its model has; ask its operator.")
    return AgentView(
        name=agent.name,
        title=agent.title,
        steps=tuple(
            StepView(said=step.said, text="\n".join(step.lines)) for step in steps(agent, target, writes=False)
        ),
        notes=notes(agent, target),
    )


def _unknown(agent: Agent, why: str) -> AgentView:
    return AgentView(name=agent.name, title=agent.title, steps=(), notes=(), why_not=why)
