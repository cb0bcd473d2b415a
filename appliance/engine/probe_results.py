"""What was measured of a warm engine becomes rows for people: observed, wanted, and what to do. Pure.

Rules:
- FAILED is what the engine showed to be wrong; what it did not show is UNKNOWN and degrades nobody.
- An ability that an engine may lack (images, partial answers) is a fact and no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from appliance.engine import probe_remedies as remedies
from appliance.engine.probe_forms import DIALECTS
from appliance.engine.probe_seen import Cached, Measured, Proven, Seen, Streamed
from appliance.engine.promise import Promise
from appliance.units import gib, rate
from gateway.state import Cause, EngineAbilities, ProbeResult, Verdict

PACE_TOKENS_MIN = 64
"""An answer with fewer says too little of a pace to be called too slow."""
PIECES = 8
HOST_BYTES_OFF = 0.01
HOST_BYTES_ROUNDED = 16 * 2**20
"""How the host's bytes may differ from the plan's: a share, and what two decimals of a GiB leave open on each card."""
VARIES = frozenset({"pace", "prove"})
"""What another start may show otherwise."""


def results(promise: Promise, seen: Measured) -> tuple[ProbeResult, ...]:
    """A row for each probe, what is needed most first."""
    rows = (
        _completion(seen.last),
        _cache(promise, seen.cached),
        _usage(promise, seen.last),
        _cached_tokens(promise, seen.last),
        _pace(promise, seen),
        _asked("tools", "Tool calls", seen.shown.tools, _TOOLS, promise.tools, remedies.tools(promise.kind)),
        _host_bytes(promise, seen.host_bytes),
        _prove(promise, seen.proven),
        _asked("json_object", "JSON answers", seen.shown.json_object, _JSON, False, remedies.JSON),
        _asked("json_schema", "JSON of a schema", seen.shown.json_schema, _SCHEMA, False, remedies.JSON),
        _thinking(promise, seen),
        _dialects(seen.abilities),
        _counters(seen.abilities),
        _continuation(seen.abilities),
        _images(seen.abilities),
    )
    return tuple(row for row in rows if row is not None)


def degraded(promise: Promise, rows: Sequence[ProbeResult]) -> Cause | None:
    """Why the engine may not serve; None = it may."""
    failed = [row for row in rows if row.needed and row.verdict is Verdict.FAILED]
    if not failed or promise.allow_degraded:
        return None
    told = "; ".join(f"{row.title}: {row.observed} (wanted: {row.wanted})" for row in failed)
    return Cause(
        id="engine.degraded",
        title=f"The engine does not show what it must. {told}",
        remedy=f"{failed[0].remedy}   or [engine] allow_degraded = true, to serve as it is",
        retry=all(row.id in VARIES for row in failed),
    )


def pace(at_s: Sequence[float], tokens: int | None) -> float | None:
    """Output tokens a second of one stream, from when its chunks came and how many tokens there were; None = too few
    chunks to tell. Of a long answer the median over pieces, so that one stall does not speak for all."""
    gaps = len(at_s) - 1
    if tokens is None or tokens < 2 or gaps < 1 or at_s[-1] <= at_s[0]:
        return None
    edges = [number * gaps // PIECES for number in range(PIECES + 1)] if gaps >= 2 * PIECES else [0, gaps]
    each = median((at_s[end] - at_s[start]) / (end - start) for start, end in pairwise(edges))
    mean = (at_s[-1] - at_s[0]) / gaps
    return (tokens - 1) / gaps / (each or mean)


# Rows

_TOOLS = "a tool is called with arguments of its schema, and its result is answered"
_JSON = "a JSON object"
_SCHEMA = "JSON of the schema"


def _row(
    id_: str, title: str, ok: bool | None, observed: str, wanted: str, needed: bool = False, remedy: str = ""
) -> ProbeResult:
    verdict = Verdict.UNKNOWN if ok is None else Verdict.OK if ok else Verdict.FAILED
    wrong = remedy if verdict is Verdict.FAILED else ""
    return ProbeResult(
        id=id_, title=title, verdict=verdict, observed=observed, wanted=wanted, needed=needed, remedy=wrong
    )


def _asked(id_: str, title: str, seen: Seen | None, wanted: str, needed: bool, remedy: str) -> ProbeResult:
    one = Seen(None, "not asked") if seen is None else seen
    return _row(id_, title, one.ok, one.observed, wanted, needed, remedy)


def _completion(last: Streamed) -> ProbeResult:
    return _row("completion", "Completions", True, f"two answers of up to {last.tokens or 1} tokens", "an answer", True)


def _cache(promise: Promise, cached: Cached) -> ProbeResult:
    told = [
        f"{tokens} {where}"
        for tokens, where in ((cached.by_usage, "by its usage"), (cached.by_metrics, "by its metrics"))
        if tokens is not None
    ]
    of = f" of {cached.prompt_tokens} tokens" if cached.prompt_tokens is not None else " tokens"
    observed = f"{', '.join(told)},{of}" if told else "it does not say, nor do its metrics"
    wanted = "a prompt that is read again comes from the cache"
    return _row("cache", "Prefix cache", cached.hit, observed, wanted, promise.declared, remedies.cache(promise.kind))


def _usage(promise: Promise, last: Streamed) -> ProbeResult:
    told = last.prompt_tokens is not None and last.tokens is not None
    observed = (
        f"prompt {last.prompt_tokens}, answer {last.tokens} tokens"
        if told
        else "a stream ended without its token counts"
    )
    wanted = "token counts at the end of a stream that asks for them"
    return _row("usage", "Usage of a stream", told, observed, wanted, promise.declared, remedies.USAGE)


def _cached_tokens(promise: Promise, last: Streamed) -> ProbeResult:
    cached = last.cached_tokens
    observed = "cached tokens are not told" if cached is None else f"{cached} cached"
    wanted = "usage says how much came from the cache; else waits rest on the gateway's own estimate for ever"
    remedy = remedies.cached_tokens(promise.kind)
    return _row("cached_tokens", "Cached tokens in usage", cached is not None, observed, wanted, False, remedy)


def _pace(promise: Promise, seen: Measured) -> ProbeResult:
    floor, shown = promise.floor_tok_per_s, seen.shown
    wanted = f"{floor:g} tok/s, the floor" if floor > 0 else "no floor was promised"
    remedy = remedies.pace(promise.kind)
    if shown.paced_limit_s is not None:
        observed = f"an answer did not end within {shown.paced_limit_s:.3g} s"
        return _row("pace", "Pace of one stream", False if floor > 0 else None, observed, wanted, floor > 0, remedy)
    reply = shown.paced or seen.last
    found = pace(reply.at_s, reply.tokens)
    if found is None or reply.tokens is None:
        return _row("pace", "Pace of one stream", None, "too few pieces of an answer to tell", wanted, floor > 0)
    fast = found >= floor
    ok = None if not fast and reply.tokens < PACE_TOKENS_MIN else fast
    observed = f"{rate(found)} tok/s over {reply.tokens} tokens"
    return _row("pace", "Pace of one stream", ok, observed, wanted, floor > 0 and promise.declared, remedy)


def _host_bytes(promise: Promise, found: int | None) -> ProbeResult | None:
    planned = promise.host_bytes
    if planned is None:
        return None
    wanted = f"{gib(planned)} as the plan says"
    if found is None:
        return _row("host_bytes", "Experts in host RAM", None, "the engine does not say", wanted, True)
    ok = abs(found - planned) <= max(HOST_BYTES_OFF * planned, HOST_BYTES_ROUNDED)
    observed = f"{gib(found)}, {found:,} bytes for {planned:,}"
    return _row("host_bytes", "Experts in host RAM", ok, observed, wanted, True, remedies.HOST_BYTES)


def _prove(promise: Promise, proven: Proven | None) -> ProbeResult | None:
    if proven is None:
        return None
    wanted = f"two streams at once of {proven.tokens} tokens each, to their end"
    if proven.failed:
        return _row("prove", "Two long streams", False, proven.failed, wanted, True, remedies.prove(promise.kind))
    observed = "; ".join(
        f"{run.prompt_tokens} tokens read in {run.prefill_s:.3g} s"
        + (f", then {rate(run.tok_per_s)} tok/s" if run.tok_per_s is not None else "")
        for run in proven.runs
    )
    return _row("prove", "Two long streams", True, observed, wanted, True)


def _thinking(promise: Promise, seen: Measured) -> ProbeResult:
    reply = seen.shown.paced or seen.last
    only, known = reply.thought and not reply.text, seen.shown.paced is not None
    if only:
        observed = f"{reply.tokens or 'all'} tokens of thought, and no answer among them"
        ok = False if known and reply.finish == "length" else None
    else:
        observed, ok = "thinks, then answers" if reply.thought else "answers at once", True
    wanted = "an answer, however few tokens a client allows"
    return _row("thinking", "Thinking", ok, observed, wanted, False, remedies.thinking(promise.kind))


def _dialects(shown: EngineAbilities) -> ProbeResult:
    known = shown.dialects is not None
    observed = ", ".join(map(_name, shown.dialects or ())) if known else "not asked"
    return _row("dialects", "Dialects", True if known else None, observed, f"any of {', '.join(map(_name, DIALECTS))}")


def _counters(shown: EngineAbilities) -> ProbeResult:
    told = ", ".join(f"{_name(path)} by {counter}" for path, counter in shown.counters.items())
    return _row("counters", "Token counts", True, told or "none: prompts are estimated", "exact, or an estimate")


def _continuation(shown: EngineAbilities) -> ProbeResult:
    told = ", ".join(map(_name, shown.continuation))
    observed = f"continued on {told}" if told else "answered anew: requests that want it are refused"
    return _row("continuation", "Partial answers", True, observed, "continued, or known not to be")


def _name(path: str) -> str:
    """A dialect's path as people say it."""
    return path.removeprefix("/v1/").replace("#", " with ")


def _images(shown: EngineAbilities) -> ProbeResult:
    observed = "not known" if shown.images is None else "read" if shown.images else "refused: the model reads text"
    return _row("images", "Images", None if shown.images is None else True, observed, "read, or known not to be")
