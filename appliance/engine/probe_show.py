"""Has a warm engine show that it serves as promised: a first heavy batch, pace, tool calls, JSON.

Talks HTTP to the engine. Rules:
- A probe that fails is a result and never an error; what was not asked by `limit_s` is not known.
- Nothing is timed before the engine has read as many prompts at once as it may serve: the first batch after a start is
  ten times slower on some builds, which compile then. Source: facts/checkpoint-and-offload.md, complaint 19.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import httpx

from appliance.engine import show_forms as forms
from appliance.engine.probe_forms import CHAT
from appliance.engine.probe_seen import Seen, Shown
from appliance.engine.probe_stream import post, stream, streamed
from appliance.engine.promise import Promise

LIMIT_S = 120.0
"""For all of them together."""
ASK_S = 45.0
"""For one answer."""
PACE_TOKENS = 72
PACE_ASK = "Write the numbers from one to two hundred in words, one after the other, with commas between them."
PACE_S = 10.0
"""For the timed answer at the least; more where a quarter of the floor takes longer."""
STREAMS_MAX = 8
PRIME_S = 30.0
"""For the first heavy batch; an engine that takes longer is none that compiles while it reads."""
_PRIME_WORDS = 420
_PRIME_TOKENS = 8


async def show(
    client: httpx.AsyncClient,
    model: str,
    promise: Promise,
    progress: Callable[[str, float | None], None],
    clock: Callable[[], float],
    limit_s: float,
) -> Shown:
    """All that `promise` wants to see, within `limit_s` seconds. Raises nothing. Nothing of a demo model is asked."""
    shown = Shown()
    late = f"not all was shown within {max(0.0, limit_s):.3g} s"
    if promise.demo or limit_s <= 0:
        shown.notes = () if promise.demo else (late,)
        return shown
    try:
        async with asyncio.timeout(limit_s):
            if promise.streams:
                progress(f"reading {min(promise.streams, STREAMS_MAX)} prompts at once", 0.96)
                await _prime(client, model, promise, clock, shown)
            progress("measuring its pace", 0.97)
            await _pace(client, model, promise, clock, shown)
            progress("having it call a tool", 0.98)
            shown.tools = await _tools(client, model, clock)
            progress("having it answer in JSON", 0.99)
            shown.json_object = await _json(client, model, schema=False)
            shown.json_schema = await _json(client, model, schema=True)
    except TimeoutError:
        shown.notes += (late,)
    return shown


async def _prime(
    client: httpx.AsyncClient, model: str, promise: Promise, clock: Callable[[], float], shown: Shown
) -> None:
    """As many prompts at once as may run, each with a head of its own."""
    many = min(promise.streams, STREAMS_MAX)
    prompts = [f"Text {number}: {'one more word ' * (_PRIME_WORDS // 3)}" for number in range(many)]
    asked = (stream(client, model, prompt, _PRIME_TOKENS, clock) for prompt in prompts)
    try:
        async with asyncio.timeout(PRIME_S):
            replies = await asyncio.gather(*asked, return_exceptions=True)
    except TimeoutError:
        shown.notes += (f"{many} prompts at once were not answered within {PRIME_S:g} s",)
        return
    for number, reply in zip(count(1), replies):
        if isinstance(reply, httpx.HTTPError):
            shown.notes += (f"prompt {number} of {many} at once: {str(reply) or type(reply).__name__}",)
        elif isinstance(reply, BaseException):
            raise reply
        elif reply.refused:
            shown.notes += (f"prompt {number} of {many} at once: answered {reply.status}",)


async def _pace(
    client: httpx.AsyncClient, model: str, promise: Promise, clock: Callable[[], float], shown: Shown
) -> None:
    floor = promise.floor_tok_per_s
    limit_s = max(PACE_S, 4 * PACE_TOKENS / floor) if floor > 0 else ASK_S
    try:
        async with asyncio.timeout(limit_s):
            shown.paced = await stream(client, model, PACE_ASK, PACE_TOKENS, clock)
    except (TimeoutError, httpx.TimeoutException):
        shown.paced_limit_s = limit_s
    except httpx.HTTPError as error:
        shown.notes += (f"pace: {str(error) or type(error).__name__}",)


async def _tools(client: httpx.AsyncClient, model: str, clock: Callable[[], float]) -> Seen:
    """A call, its result, an answer: by itself, else when it is told to."""
    seen: list[Seen] = []
    try:
        async with asyncio.timeout(ASK_S):
            for choice in forms.CHOICES:
                question = forms.tool_question(model, choice)
                reply = await streamed(client, question, clock, enough=forms.talks)
                seen.append(forms.called(reply))
                if seen[-1].ok:
                    after = await streamed(client, forms.tool_followup(question, reply.call), clock)
                    how = "by itself" if choice == "auto" else "when told to"
                    said = forms.answered(after)
                    return Seen(said.ok, f"{seen[-1].observed}, {how}; {said.observed}")
                if forms.hopeless(reply):
                    return seen[-1]
    except (TimeoutError, httpx.TimeoutException):
        seen.append(Seen(None, f"no answer within {ASK_S:g} s"))
    except httpx.HTTPError as error:
        seen.append(Seen(None, str(error) or type(error).__name__))
    told = seen[1:] or seen  # who talks when it may says nothing of an engine
    return next((one for one in told if one.ok is False), told[0])


async def _json(client: httpx.AsyncClient, model: str, *, schema: bool) -> Seen:
    return forms.kept_to_json(await post(client, CHAT, forms.json_question(model, schema), ASK_S), schema)
