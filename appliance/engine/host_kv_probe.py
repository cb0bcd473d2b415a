"""Proves at warm-up that a prompt comes back from the KV tier in host RAM, unchanged.

Talks HTTP to the engine, reads the clock, waits between tries. The recipe: read a prompt, drop what the cards cached of
it and only that, read it again. It must come back from somewhere (`cached_tokens`), and the answer must be the same.

Rules:
- Nothing but the engine's own `usage` says that tokens were cached; time is for the log.
- Copies to host RAM may go on after a reply has ended, so that a prompt that did not come back is tried again.
- The answer from host RAM may be the one that was given with a cold cache or with a warm one: the two are computed in
  pieces of other sizes, and rounding may tell them apart.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from appliance.engine import probe_forms as forms
from appliance.engine.host_kv import OFF, SEE_ARGS, SEE_LOG, off
from gateway.state import Cause

RESET = "/reset_prefix_cache?reset_external=false"
"""vLLM's path that drops what the cards cached; what a connector keeps stays. Source: vLLM 0.26,
entrypoints/serve/dev/cache/api_router.py; measured on it."""
TRIES = 4
PAUSE_S = 0.5
WORDS = 3000
"""Of the prompt: more than any engine's piece that we know of (vLLM with sliding windows or states: up to some 2,000
tokens), and read in well under a second. Shorter where the context is."""
MAX_TOKENS = 24
_WORDS = (
    "time",
    "day",
    "way",
    "thing",
    "man",
    "world",
    "life",
    "hand",
    "part",
    "place",
    "week",
    "case",
    "point",
    "room",
)


@dataclass(frozen=True, slots=True)
class Proof:
    """A prompt came back: so many of its tokens. Seconds of the whole request, read anew and from host RAM."""

    prompt_tokens: int
    host_tokens: int
    cold_s: float
    host_s: float


@dataclass(frozen=True, slots=True)
class _Read:
    said: str
    prompt_tokens: int
    cached_tokens: int | None
    took_s: float


class _Unproven(Exception):
    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.cause = off(why, remedy)


async def prove(
    client: httpx.AsyncClient,
    model: str,
    context_tokens: int | None,
    *,
    clock: Callable[[], float],
    limit_s: float,
    pause_s: float = PAUSE_S,
) -> Proof | Cause:
    """The proof, or why there is none. Raises nothing. `client` has the engine's URL and key; nobody else uses it."""
    probe = _Probe(client, question(model, context_tokens), clock, pause_s)
    if limit_s <= 0:
        return off("there was no time left to prove it", "raise [engine] start_timeout_s")
    try:
        async with asyncio.timeout(limit_s):
            return await probe.run()
    except _Unproven as error:
        return error.cause
    except (TimeoutError, httpx.TimeoutException):
        return off(f"it was not proven within {limit_s:.3g} s", SEE_LOG)
    except httpx.HTTPError as error:
        return off(f"the connection to the engine broke: {str(error) or type(error).__name__}", SEE_LOG)


def question(model: str, context_tokens: int | None) -> dict[str, Any]:
    """A long prompt that no cache has seen, and whose answer is in its middle."""
    words = WORDS if context_tokens is None else min(WORDS, context_tokens // 4)
    code = secrets.token_hex(4)
    text = [secrets.choice(_WORDS) for _ in range(words)]
    text[words // 2 : words // 2] = [f". The code is {code}."]
    ask = f"{code}\n{' '.join(text)}.\nWhat is the code in the text above? Answer with the code alone."
    return {
        "model": model,
        "messages": [{"role": "user", "content": ask}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }


@dataclass(frozen=True, slots=True)
class _Probe:
    client: httpx.AsyncClient
    body: Mapping[str, Any]
    clock: Callable[[], float]
    pause_s: float

    async def run(self) -> Proof:
        cold, warm = await self._read(), await self._read()
        if warm.cached_tokens is None:
            raise _Unproven(
                "the engine does not say how many tokens came from a cache",
                "have it say so; vLLM: add --enable-prompt-tokens-details to [engine] command",
            )
        for _ in range(TRIES):
            await self._drop()
            host = await self._read()
            came_back = host.cached_tokens or 0
            if 2 * came_back >= host.prompt_tokens:
                break
            await asyncio.sleep(self.pause_s)
        else:
            raise _Unproven(
                f"only {came_back} of a prompt's {host.prompt_tokens} tokens came back from host RAM",
                f"{SEE_ARGS}; {SEE_LOG}",
            )
        if host.said not in (cold.said, warm.said):
            raise _Unproven("a prompt that came back from host RAM was answered otherwise than before", OFF)
        return Proof(host.prompt_tokens, came_back, cold.took_s, host.took_s)

    async def _drop(self) -> None:
        """An engine that still copies says that it cannot yet."""
        for _ in range(TRIES):
            response = await self.client.post(RESET)
            answer = forms.Answer(response.status_code, _json(response.content))
            if response.status_code == 200 and not _refused(answer.body):
                return
            if response.status_code != 200:
                raise _no_way(response.status_code)
            await asyncio.sleep(self.pause_s)
        raise _Unproven("the engine did not drop what its cards had cached", SEE_LOG)

    async def _read(self) -> _Read:
        began_s = self.clock()
        response = await self.client.post(forms.CHAT, json=self.body)
        took_s = self.clock() - began_s
        answer = forms.Answer(response.status_code, _json(response.content))
        prompt = forms.prompt_tokens(forms.CHAT, answer)
        if forms.verdict(forms.CHAT, answer) is not forms.Verdict.SERVED or prompt is None:
            raise _Unproven(f"a long prompt was answered with {response.status_code} and no usage", SEE_LOG)
        message = answer.body["choices"][0]["message"]
        said = json.dumps({name: value for name, value in message.items() if name != "role"}, sort_keys=True)
        details = answer.body["usage"].get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return _Read(said, prompt, cached if isinstance(cached, int) else None, took_s)


def _refused(body: Any) -> bool:
    return isinstance(body, dict) and body.get("success") is False


def _no_way(status: int) -> _Unproven:
    return _Unproven(
        f"it cannot be proven: the engine has no way to drop what its cards cached ({RESET} answered {status})",
        'vLLM: set env = { VLLM_SERVER_DEV_MODE = "1" } under [engine], where nobody else can log in',
    )


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
