"""A real completion, twice, before the engine is called ready: it answers, how fast, and whether its prefix
cache works. Then what else it can do (probes.py), which fails nothing.

Talks HTTP to the engine and reads the clock. Tokens are counted by the engine's `usage`, never by chunks.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from appliance.engine import host_kv_probe, probes
from appliance.engine.connect import engine_client
from appliance.engine.host_kv_probe import Proof
from gateway.errors import MoeError
from gateway.state import Cause, EngineAbilities

LIMIT_S = 60.0
MAX_TOKENS = 16
_SEE_LOG = "see the engine's log: moe-appliance status"
_PROMPT = (
    "This is a check that the server works before people use it. Read the rules, then answer. "
    + " ".join(f"Rule {number}: keep the answer short, plain and polite." for number in range(1, 13))
    + " Question: what is the capital of France?"
)
"""About 190 tokens: longer than any engine's cache block that we know of (vLLM: 16 to 128 tokens)."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the engine showed. None: it does not say.

    `models`: the ids that it lists. `context_tokens`: longest prompt and answer. `tok_per_s`: output pace of
    one stream after its first token. `cached_tokens_ok`: the second, identical prompt came from the cache.
    `notes`: what was odd about the probes of its abilities, for the log. `host_kv`: what came of the KV tier in host
    RAM; a Cause = it must not be used, and nothing more was asked.
    """

    models: tuple[str, ...]
    context_tokens: int | None
    tok_per_s: float | None
    cached_tokens_ok: bool | None
    abilities: EngineAbilities = field(default_factory=EngineAbilities)
    notes: tuple[str, ...] = ()
    host_kv: Proof | Cause | None = None


class WarmUpFailed(MoeError):
    """The engine serves HTTP but no completions; `cause` says why."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.title, cause.remedy)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _Pass:
    tok_per_s: float | None
    cached_tokens: int | None


async def warm_up(
    url: str,
    key: str | None,
    served_model: str | None,
    progress: Callable[[str, float | None], None],
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    clock: Callable[[], float] = time.monotonic,
    limit_s: float = LIMIT_S,
    probe_limit_s: Callable[[], float] = lambda: probes.LIMIT_S,
    host_kv: bool = False,
    sequence_folder: Path | None = None,
) -> WarmUp:
    """Lists the models and runs one completion twice, within `limit_s` seconds; then probes. Raises WarmUpFailed.

    `url` is the engine's, without /v1; `served_model` None = the first model listed. `probe_limit_s` is asked
    once the completions are done. `host_kv`: the engine was started with a KV tier in host RAM, which is to be proven.
    `sequence_folder`: where it can save the cache of a sequence.
    """
    async with engine_client(url, key, limit_s, transport=transport, reuse=False) as client:
        warm, model = await _warmed(client, served_model, progress, clock, limit_s)
        if host_kv:
            progress("reading a prompt back from host RAM", 0.5)
            proof = await host_kv_probe.prove(client, model, warm.context_tokens, clock=clock, limit_s=probe_limit_s())
            warm = replace(warm, host_kv=proof)
            if isinstance(proof, Cause):
                return warm
        shown = await probes.probe(client, model, progress, limit_s=probe_limit_s(), sequence_folder=sequence_folder)
    return replace(warm, abilities=shown.abilities, notes=shown.notes)


async def _warmed(
    client: httpx.AsyncClient,
    served_model: str | None,
    progress: Callable[[str, float | None], None],
    clock: Callable[[], float],
    limit_s: float,
) -> tuple[WarmUp, str]:
    """The two completions, and the model that gave them."""
    try:
        async with asyncio.timeout(limit_s):
            progress("listing the models", 0.0)
            listed = await _models(client)
            model = _chosen(listed, served_model)
            progress("answering a first time", 0.1)
            first = await _completion(client, model, clock)
            progress("answering a second time", 0.4)
            second = await _completion(client, model, clock)
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
    cached = second.cached_tokens
    warm = WarmUp(
        models=tuple(listed),
        context_tokens=_context_tokens(listed[model]),
        tok_per_s=second.tok_per_s or first.tok_per_s,
        cached_tokens_ok=None if cached is None else cached > 0,
    )
    return warm, model


def _failed(cause_id: str, title: str, remedy: str) -> WarmUpFailed:
    return WarmUpFailed(Cause(id=cause_id, title=title, remedy=remedy))


async def _models(client: httpx.AsyncClient) -> dict[str, Mapping[str, Any]]:
    response = await client.get("/v1/models")
    if response.status_code != 200:
        raise _refused("GET /v1/models", response.status_code, response.content)
    body = _json(response.content)
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


async def _completion(client: httpx.AsyncClient, model: str, clock: Callable[[], float]) -> _Pass:
    request = {
        "model": model,
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first_s: float | None = None
    last_s = 0.0
    usage: Mapping[str, Any] = {}
    async with client.stream("POST", "/v1/chat/completions", json=request) as response:
        if response.status_code != 200:
            raise _refused("POST /v1/chat/completions", response.status_code, await response.aread())
        async for line in response.aiter_lines():
            event = _json(line.removeprefix("data:").encode()) if line.startswith("data:") else None
            if not isinstance(event, dict):
                continue
            if "error" in event:
                raise _refused("POST /v1/chat/completions", response.status_code, json.dumps(event).encode())
            if isinstance(event.get("usage"), dict):
                usage = event["usage"]
            if _has_output(event):
                last_s = clock()
                first_s = last_s if first_s is None else first_s
    tokens = usage.get("completion_tokens")
    if first_s is None and not tokens:
        raise _failed(
            "warmup.empty", "the engine ended a completion without a single token", f"check the model; {_SEE_LOG}"
        )
    pace = None
    if first_s is not None and isinstance(tokens, int) and tokens > 1 and last_s > first_s:
        pace = (tokens - 1) / (last_s - first_s)
    return _Pass(pace, _cached_tokens(usage))


def _has_output(event: Mapping[str, Any]) -> bool:
    """Whether the chunk carries text, reasoning or a tool call; the first chunk names the role only."""
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    delta = choices[0].get("delta")
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def _cached_tokens(usage: Mapping[str, Any]) -> int | None:
    details = usage.get("prompt_tokens_details")
    value = details.get("cached_tokens") if isinstance(details, dict) else None
    return value if isinstance(value, int) else None


def _refused(what: str, status: int, body: bytes) -> WarmUpFailed:
    message = _message(body)
    if status in (401, 403):
        return _failed(
            "warmup.key",
            f"the engine refuses our key: {what} answered {status}: {message}",
            "external: set [engine] key_file; command: pass {key_file} to the server",
        )
    return _failed("warmup.completion", f"{what} answered {status}: {message}", _SEE_LOG)


def _message(body: bytes) -> str:
    """The error's message in OpenAI's form or one near it; else the beginning of the body."""
    parsed = _json(body)
    if isinstance(parsed, dict):
        error = parsed.get("error", parsed)
        if isinstance(error, str):
            return error
        if isinstance(error, dict):
            for name in ("message", "detail"):
                if isinstance(error.get(name), str):
                    return str(error[name])
    return body[:200].decode(errors="replace").strip() or "an empty body"


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
