"""A developer's week as a developer of the simulation. Pure.

Rule: the week says how much is asked; how it is spread (turns of a run, gaps, contexts) stays as in the study.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.simulation.agents import STUDY, Developer
from gateway.simulation.pace import READY_S, Pace
from gateway.sizing.profile import Profile


def developer_of(week: Profile, floor_tok_per_s: float, pace: Pace) -> Developer:
    """Who asks for that week's tokens in its working hours, if the floor is kept. Turns have the week's mean reply, and
    new input in its proportion; what is left of the time is thinking, 0 = more is asked than one session can write."""
    replies = week.output_tokens / week.reply_tokens
    input_tokens = max(1, round(week.new_input_tokens / replies))
    turn_s = week.reply_tokens / floor_tok_per_s + STUDY.mean_gap_s + READY_S
    turn_s += pace.prefill_s(_mean_context_tokens() + input_tokens, input_tokens)
    think_s = max(0.0, STUDY.turns * (week.window_s / replies - turn_s))
    return replace(
        STUDY, think_s=think_s, reply_tokens=week.reply_tokens, input_tokens=input_tokens, source=week.source
    )


def _mean_context_tokens() -> float:
    return STUDY.context_tokens + STUDY.context_spread_tokens / 2
