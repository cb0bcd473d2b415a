"""Whether a request fits the engine that runs: its dialect, its images, its ending, its length.

Asks the engine to count (counting.py) when the length is in doubt; touches nothing else.

Rules:
- All of this is said before a 200: afterwards an agent could not tell a context error from a broken stream.
- What nobody knows is let through: the engine will say.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gateway import problem as problems
from gateway.care import Prompt
from gateway.core import Core, Engine
from gateway.counting import TOKENIZE, body_for, is_exact, plain_text
from gateway.dialects import Dialect, Prepared
from gateway.problem import Problem
from gateway.splice import drop_members, replace_value
from gateway.state import EngineAbilities

Ask = Callable[[str, bytes], Awaitable[int | Problem | None]]
BYTES_PER_TOKEN_MAX = 16
"""No prompt that fits has so many bytes a token, or only of blanks."""
FLAGGED = "#continue_final_message"
"""Behind a path in `EngineAbilities.continuation`: continued when a field of the request says so."""


def misfit(prepared: Prepared, path: str, abilities: EngineAbilities) -> Problem | None:
    """Why the engine cannot serve the request, as far as it showed at its start."""
    traits = prepared.traits
    if abilities.dialects is not None and path not in abilities.dialects:
        return problems.dialect_not_served(path, abilities.dialects)
    if traits.image_at is not None and abilities.images is False:
        return problems.image_on_text_only(traits.image_at)
    if traits.continues_at is not None:
        form = path + FLAGGED if traits.continues_asked else path
        if form not in abilities.continuation:
            return problems.continuation_not_honoured(traits.continues_at)
    elif traits.continues_asked:
        return problems.nothing_to_continue()
    return None


async def fitted(
    core: Core, engine: Engine, dialect: Dialect, prepared: Prepared, prompt: Prompt
) -> Prepared | Problem:
    """The request as it goes to the engine: an answer longer than what the prompt leaves free is shortened."""
    state = core.engine_state
    problem = misfit(prepared, dialect.path, state.abilities)
    if problem is not None:
        return problem
    window = state.context_tokens
    asked = prepared.max_tokens[1] if prepared.max_tokens else 0
    if not window or not _worth_counting(core, len(prepared.body), asked, window, prompt):
        return prepared
    countable = dialect.path in state.abilities.counters and prepared.traits.image_at is None
    if countable and len(prepared.body) > BYTES_PER_TOKEN_MAX * window:  # would keep the engine busy for nothing
        return problems.context_too_long(core.estimate.at_least(len(prepared.body), window + 1), window)
    tokens = await counted(core, engine, dialect, prepared, prompt.seat)
    if tokens is None or isinstance(tokens, Problem):
        return tokens or prepared
    if tokens >= window:  # an answer of one token needs room too
        return problems.context_too_long(tokens, window)
    if prepared.max_tokens and window < tokens + asked:
        field, counter = prepared.max_tokens[0], state.abilities.counters[dialect.path]
        if is_exact(dialect.path, counter):
            body = replace_value(prepared.body, field, b"%d" % (window - tokens))
        else:  # without a bound, an answer may take exactly what is left
            body = drop_members(prepared.body, (field,))
        return replace(prepared, body=body)
    return prepared


def _worth_counting(core: Core, size: int, asked: int, window: int, prompt: Prompt) -> bool:
    worth, limiter = core.estimate.worth_counting, core.limiter
    if not worth(size, asked, window, surely=True):
        return False
    is_full = limiter.policy.held or limiter.running >= limiter.policy.limits.streams
    waits = is_full or (limiter.running > 0 and prompt.is_cold())
    return waits or worth(size, asked, window, surely=False)


async def counted(core: Core, engine: Engine, dialect: Dialect, prepared: Prepared, seat: str) -> int | Problem | None:
    """Tokens of the prompt by the engine's own count; None when it has no counter or did not answer in time, a problem
    when too many of this seat, or of all, are being counted."""
    counter = core.engine_state.abilities.counters.get(dialect.path)
    if counter is None:
        return None
    ask = functools.partial(core.counting.check, seat, engine.address, engine.key)
    tokens = await ask(counter, body_for(dialect.path, counter, prepared.body))
    if isinstance(tokens, Problem):
        return tokens if tokens.heals else await _by_text(core, ask, tokens, prepared)
    if tokens is not None and prepared.traits.image_at is None:
        core.estimate.learn(tokens, len(prepared.body))
    return tokens


async def _by_text(core: Core, ask: Ask, refused: Problem, prepared: Prepared) -> int | None:
    """A counter that refuses to count what is too long, as vLLM's of /v1/messages: its texts alone are counted."""
    if refused.window is None:
        return None
    by_text: int | Problem | None = None
    if TOKENIZE in core.engine_state.abilities.counters.values():
        by_text = await ask(TOKENIZE, plain_text(prepared.body))
    if refused.answer_tokens is not None:  # it may have been the answer's length that it counted
        return by_text if isinstance(by_text, int) else None
    return max(by_text if isinstance(by_text, int) else 0, refused.window + 1)
