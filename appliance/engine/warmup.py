"""A real completion, twice, before the engine is called ready; then everything else that it must show or may show:
what it can do (probes.py), how it serves (probe_show.py), two long streams (probe_prove.py).

Talks HTTP to the engine and reads the clock. Rules:
- An engine without completions fails. All else becomes rows (probe_results.py), and only a promise makes a row needed.
- Whether the cache works is asked of the reply's usage and of the engine's counters, never of its log.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from appliance.engine import host_kv_probe, probe_results, probe_show, probes
from appliance.engine.connect import engine_client
from appliance.engine.host_kv_probe import Proof
from appliance.engine.probe_forms import counter, message, parsed
from appliance.engine.probe_prove import prove
from appliance.engine.probe_results import pace
from appliance.engine.probe_seen import Cached, Measured, Proven, Streamed
from appliance.engine.probe_show import show
from appliance.engine.probe_stream import metrics, stream
from appliance.engine.promise import NOTHING, Promise
from gateway.errors import MoeError
from gateway.state import Cause, EngineAbilities, ProbeResult, Verdict

LIMIT_S = 60.0
MAX_TOKENS = 16
METRICS_S = 5.0
DEMO_RULES, RULES, MANY_RULES = 12, 30, 600
"""Rules in a prompt, about 15 tokens each: with RULES it is longer than three of the largest cache blocks (vLLM: 128
tokens). MANY_RULES, some 9,000 tokens, is for an engine that keeps a piece of a prompt only every 4,096 tokens. Source:
facts/checkpoint-and-offload.md, complaint 13."""
TOKENS_A_RULE = 16
HANG_S = 180.0
"""Of an engine for which nobody says how long it may be silent."""
HITS = "vllm:prefix_cache_hits_total"
"""Tokens that came from the cache. Source: vLLM 0.26, measured."""
DYING = ("warmup.completion", "warmup.connection")
"""Causes of an engine that may be about to end."""
_SEE_LOG = "see the engine's log: moe-appliance status"


def prompt(rules: int) -> str:
    """A prompt of so many rules, the same each time."""
    return (
        "This is a check that the server works before people use it. Read the rules, then answer. "
        + " ".join(f"Rule {number}: keep the answer short, plain and polite." for number in range(1, rules + 1))
        + " Question: what is the capital of France?"
    )


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the engine showed. None: it does not say.

    `models`: the ids that it lists. `context_tokens`: longest prompt and answer. `tok_per_s`: output pace of
    one stream after its first token. `cached_tokens_ok`: the second, identical prompt came from the cache.
    `notes`: what was odd about the probes, for the log. `host_kv`: what came of the KV tier in host RAM; a Cause = it
    must not be used, and nothing more was asked. `results`: a row for each probe.
    """

    models: tuple[str, ...]
    context_tokens: int | None
    tok_per_s: float | None
    cached_tokens_ok: bool | None
    abilities: EngineAbilities = field(default_factory=EngineAbilities)
    notes: tuple[str, ...] = ()
    host_kv: Proof | Cause | None = None
    results: tuple[ProbeResult, ...] = ()


class WarmUpFailed(MoeError):
    """The engine serves HTTP but no completions; `cause` says why."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.title, cause.remedy)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _Passes:
    """Two equal completions of `model`, and what the engine's cache made of the second."""

    models: tuple[str, ...]
    model: str
    context_tokens: int | None
    first: Streamed
    last: Streamed
    cached: Cached


async def warm_up(
    url: str,
    key: str | None,
    served_model: str | None,
    progress: Callable[[str, float | None], None],
    *,
    promise: Promise = NOTHING,
    host_bytes: Callable[[], int | None] = lambda: None,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Callable[[], float] = time.monotonic,
    limit_s: float = LIMIT_S,
    left_s: Callable[[], float] = lambda: math.inf,
    host_kv: bool = False,
    sequence_folder: Path | None = None,
) -> WarmUp:
    """Lists the models and runs one completion twice, within `limit_s` seconds; then all else that there is to see.
    Raises WarmUpFailed: it serves nothing, or not what `promise` needs of it.

    `url` is the engine's, without /v1; `served_model` None = the first model listed. `left_s` is asked once the
    completions are done: how long the start may still take. `host_bytes` is asked then, too: what the engine says to
    have put into host RAM, None = nothing. `host_kv`: it was started with a KV tier in host RAM, which is to be proven.
    `sequence_folder`: where it can save the cache of a sequence.
    """
    async with engine_client(url, key, limit_s, transport=transport, reuse=False) as client:
        passes = await _passes(client, served_model, promise, progress, clock, limit_s)
        proof: Proof | Cause | None = None
        if host_kv:
            progress("reading a prompt back from host RAM", 0.5)
            within_s = min(probes.LIMIT_S, left_s())
            proof = await host_kv_probe.prove(
                client, passes.model, passes.context_tokens, clock=clock, limit_s=within_s
            )
            if isinstance(proof, Cause):
                return _warm(passes, None, (), proof)
        asked = await probes.probe(
            client,
            passes.model,
            progress,
            limit_s=min(probes.LIMIT_S, left_s()),
            sequence_folder=sequence_folder,
        )
        passes = await _cache_again(client, passes, promise, clock, left_s)
        shown = await show(client, passes.model, promise, progress, clock, min(probe_show.LIMIT_S, left_s()))
        proven = await _proven(client, passes, promise, progress, clock, left_s)
    seen = Measured(passes.last, passes.cached, asked.abilities, shown, host_bytes(), proven)
    rows = probe_results.results(promise, seen)
    cause = probe_results.degraded(promise, rows)
    if cause is not None:
        raise WarmUpFailed(cause)
    warm = _warm(passes, seen, rows, proof)
    failed = (f"{row.id}: {row.observed}" for row in rows if row.verdict is Verdict.FAILED)
    return replace(warm, notes=(*asked.notes, *shown.notes, *failed))


def _warm(passes: _Passes, seen: Measured | None, rows: tuple[ProbeResult, ...], proof: Proof | Cause | None) -> WarmUp:
    replies = (seen.shown.paced if seen else None, passes.last, passes.first)
    paces = (pace(reply.at_s, reply.tokens) for reply in replies if reply is not None)
    return WarmUp(
        models=passes.models,
        context_tokens=passes.context_tokens,
        tok_per_s=next((found for found in paces if found), None),
        cached_tokens_ok=passes.cached.hit,
        abilities=seen.abilities if seen else EngineAbilities(),
        host_kv=proof,
        results=rows,
    )


async def _passes(
    client: httpx.AsyncClient,
    served_model: str | None,
    promise: Promise,
    progress: Callable[[str, float | None], None],
    clock: Callable[[], float],
    limit_s: float,
) -> _Passes:
    """The two completions, and the model that gave them."""
    try:
        async with asyncio.timeout(limit_s):
            progress("listing the models", 0.0)
            listed = await _models(client)
            model = _chosen(listed, served_model)
            asked = prompt(DEMO_RULES if promise.demo else RULES)
            progress("answering a first time", 0.1)
            first = await _completion(client, model, asked, clock)
            progress("answering a second time", 0.4)
            last, cached = await _read_again(client, model, asked, clock)
    except (TimeoutError, httpx.TimeoutException) as error:
        raise _failed(
            "warmup.timeout",
            f"the engine did not finish two completions of {MAX_TOKENS} tokens within {limit_s:g} s",
            f"it hangs or is much too slow here; {_SEE_LOG}",
        ) from error
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise _failed(
            "warmup.connection", f"the connection to the engine broke: {reason}", f"it may have ended; {_SEE_LOG}"
        ) from error
    return _Passes(tuple(listed), model, _context_tokens(listed[model]), first, last, cached)


async def _read_again(
    client: httpx.AsyncClient, model: str, asked: str, clock: Callable[[], float]
) -> tuple[Streamed, Cached]:
    """A prompt that the engine has read before, and what of it came from the cache by two accounts."""
    before = counter(await metrics(client, METRICS_S), HITS)
    reply = await _completion(client, model, asked, clock)
    after = counter(await metrics(client, METRICS_S), HITS) if before is not None else None
    grown = int(after - before) if before is not None and after is not None else None
    return reply, Cached(reply.prompt_tokens, reply.cached_tokens, grown)


async def _cache_again(
    client: httpx.AsyncClient,
    passes: _Passes,
    promise: Promise,
    clock: Callable[[], float],
    left_s: Callable[[], float],
) -> _Passes:
    """A cache that missed is asked once more, with a prompt that is long enough for any of them."""
    within_s = min(LIMIT_S, left_s())
    if passes.cached.hit is not False or promise.demo or within_s <= 0:
        return passes
    room = (passes.context_tokens or 4 * TOKENS_A_RULE * MANY_RULES) // (2 * TOKENS_A_RULE)
    asked = prompt(min(MANY_RULES, room))
    try:
        async with asyncio.timeout(within_s):
            await _completion(client, passes.model, asked, clock)
            _, cached = await _read_again(client, passes.model, asked, clock)
    except (TimeoutError, httpx.HTTPError, WarmUpFailed):
        return passes
    return passes if cached.hit is None else replace(passes, cached=cached)


async def _proven(
    client: httpx.AsyncClient,
    passes: _Passes,
    promise: Promise,
    progress: Callable[[str, float | None], None],
    clock: Callable[[], float],
    left_s: Callable[[], float],
) -> Proven | None:
    """Two long streams, when they are wanted: reading either may take as long as an engine may be silent."""
    tokens = promise.longest_tokens or passes.context_tokens
    if not promise.prove or tokens is None:
        return None
    progress(f"proving two streams of {tokens} tokens", None)
    limit_s = max(0.0, min(2 * (promise.hang_s or HANG_S), left_s()))
    return await prove(client, passes.model, min(tokens, passes.context_tokens or tokens), clock, limit_s)


def _failed(cause_id: str, title: str, remedy: str) -> WarmUpFailed:
    return WarmUpFailed(Cause(id=cause_id, title=title, remedy=remedy))


async def _models(client: httpx.AsyncClient) -> dict[str, Mapping[str, Any]]:
    response = await client.get("/v1/models")
    if response.status_code != 200:
        raise _refused("GET /v1/models", response.status_code, response.content)
    body = parsed(response.content)
    items = body.get("data") if isinstance(body, dict) else None
    listed: dict[str, Mapping[str, Any]] = {
        item["id"]: item
        for item in (items if isinstance(items, list) else [])
        if isinstance(item, dict) and isinstance(item.get("id"), str)
    }
    if not listed:
        raise _failed(
            "warmup.no_models",
            "the engine lists no models at /v1/models",
            "check that [engine] points to an OpenAI-compatible server with a model loaded",
        )
    return listed


def _chosen(listed: Mapping[str, Any], served_model: str | None) -> str:
    if served_model is None:
        return next(iter(listed))
    if served_model not in listed:
        raise _failed(
            "warmup.model_missing",
            f"the engine does not serve {served_model}; it lists {', '.join(listed)}",
            f'[engine] served_model = "{next(iter(listed))}"',
        )
    return served_model


def _context_tokens(item: Mapping[str, Any]) -> int | None:
    """vLLM: max_model_len. llama.cpp: meta.n_ctx (one stream's share), in older versions n_ctx_train only."""
    meta = item.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    for value in (item.get("max_model_len"), meta.get("n_ctx"), meta.get("n_ctx_train")):
        if isinstance(value, int) and value > 0:
            return value
    return None


async def _completion(client: httpx.AsyncClient, model: str, prompt: str, clock: Callable[[], float]) -> Streamed:
    reply = await stream(client, model, prompt, MAX_TOKENS, clock)
    if reply.refused:
        raise _refused("POST /v1/chat/completions", reply.status, reply.refused)
    if not reply.at_s and not reply.tokens:
        raise _failed(
            "warmup.empty", "the engine ended a completion without a single token", f"check the model; {_SEE_LOG}"
        )
    return reply


def _refused(what: str, status: int, body: bytes) -> WarmUpFailed:
    said = message(parsed(body)) or body[:200].decode(errors="replace").strip() or "an empty body"
    if status in (401, 403):
        return _failed(
            "warmup.key",
            f"the engine refuses our key: {what} answered {status}: {said}",
            "external: set [engine] key_file; command: pass {key_file} to the server",
        )
    return _failed("warmup.completion", f"{what} answered {status}: {said}", _SEE_LOG)
