"""Two streams at once, as long as the engine is promised to take them: the proof that a real day needs.

Talks HTTP to the engine and reads the clock. Asked only on demand: it reads for minutes. Each prompt is one that no
cache has seen; its length is an estimate first, and then what the engine's own count makes of it.

Why at full length: engines boot, answer short prompts and run out of memory at long ones. Source:
facts/checkpoint-and-offload.md, complaints 21 and 22.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from appliance.engine.probe_forms import message, parsed
from appliance.engine.probe_seen import Proven, Run, Streamed
from appliance.engine.probe_stream import stream

ANSWER_TOKENS = 128
SPARE_TOKENS = 32
"""Between what is asked for and the engine's limit."""
SAMPLE_WORDS = 520
TRIES = 4
LESS = 0.97
"""Each try is so much of the one before, when the engine says that the prompt does not fit."""
_WORDS = ("time", "day", "way", "thing", "man", "world", "life", "hand", "part", "place", "week", "case", "point")
_ASK = "\nSay in one sentence what the text above is about, then go on to describe it in detail."


class _Unproven(Exception):
    pass


async def prove(
    client: httpx.AsyncClient, model: str, longest_tokens: int, clock: Callable[[], float], limit_s: float
) -> Proven:
    """Both streams, within `limit_s` seconds. Raises nothing."""
    runs: tuple[Run, ...] = ()
    try:
        async with asyncio.timeout(limit_s):
            runs = await _Probe(client, model, clock, limit_s).run(longest_tokens)
    except (TimeoutError, httpx.TimeoutException):
        return Proven(longest_tokens, failed=f"they did not end within {limit_s:.3g} s")
    except httpx.HTTPError as error:
        return Proven(longest_tokens, failed=f"the connection broke: {str(error) or type(error).__name__}")
    except _Unproven as error:
        return Proven(longest_tokens, failed=str(error))
    return Proven(longest_tokens, runs)


@dataclass(frozen=True, slots=True)
class _Probe:
    client: httpx.AsyncClient
    model: str
    clock: Callable[[], float]
    limit_s: float

    async def run(self, longest_tokens: int) -> tuple[Run, ...]:
        few, more = [await self._measured(words) for words in (SAMPLE_WORDS, 2 * SAMPLE_WORDS)]
        per_word = (more - few) / SAMPLE_WORDS
        if per_word <= 0:
            raise _Unproven("the engine counts no more tokens for a longer prompt")
        around = few - per_word * SAMPLE_WORDS
        words = max(1, int((longest_tokens - ANSWER_TOKENS - SPARE_TOKENS - around) / per_word))
        for _ in range(TRIES):
            replies = await self._both(words)
            if not all(reply.status == 400 for reply in replies):
                return tuple(_ended(reply) for reply in replies)
            words = int(words * LESS)
        raise _Unproven(
            f"the engine refused prompts {1 - LESS ** (TRIES - 1):.0%} shorter as well: {_said(replies[0])}"
        )

    async def _measured(self, words: int) -> int:
        reply = await stream(self.client, self.model, text(words), 1, self.clock, silence_s=self.limit_s)
        if reply.refused or reply.prompt_tokens is None:
            raise _Unproven(f"a prompt of {words} words: {_said(reply)}")
        return reply.prompt_tokens

    async def _both(self, words: int) -> list[Streamed]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(words)) for _ in range(2)]
        return [task.result() for task in tasks]

    async def _one(self, words: int) -> Streamed:
        """Never raises what httpx does: the other one is to end all the same."""
        began_s, prompt = self.clock(), text(words)
        try:
            return await stream(self.client, self.model, prompt, ANSWER_TOKENS, self.clock, silence_s=self.limit_s)
        except httpx.HTTPError as error:
            return Streamed(began_s, status=0, refused=(str(error) or type(error).__name__).encode())


def text(words: int) -> str:
    """A prompt of so many words, which grows evenly with them, and a head that no other has."""
    many = " ".join(_WORDS[number % len(_WORDS)] for number in range(words))
    return f"{secrets.token_hex(8)}\n{many}{_ASK}"


def _ended(reply: Streamed) -> Run:
    tokens, first_s = reply.tokens, reply.first_s
    if reply.refused or not reply.finish or first_s is None or reply.prompt_tokens is None:
        raise _Unproven(f"one of the two did not end: {_said(reply)}")
    lasted_s = reply.at_s[-1] - reply.at_s[0]
    pace = (tokens - 1) / lasted_s if tokens and lasted_s > 0 else None
    return Run(reply.prompt_tokens, first_s, pace)


def _said(reply: Streamed) -> str:
    if not reply.refused:
        return "it ended without a reason, or without usage"
    said = message(parsed(reply.refused)) or reply.refused.decode(errors="replace")
    return f"{reply.status or 'no answer'}: {said[:200]}"
