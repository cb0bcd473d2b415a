"""appliance/engine/warmup.py against a made-up engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import httpx
import pytest

from appliance.engine.probe_forms import CHAT, DIALECTS
from appliance.engine.promise import NOTHING, Promise
from appliance.engine.warmup import WarmUp, WarmUpFailed, warm_up
from gateway.state import EngineAbilities, Verdict

pytestmark = pytest.mark.anyio
Handler = Callable[[httpx.Request], httpx.Response]
MODELS = {"object": "list", "data": [{"id": "m1", "max_model_len": 4096}, {"id": "m2", "meta": {"n_ctx": 8192}}]}


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def delta(**values: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": values}]}


def usage(tokens: int, cached: int | None) -> dict[str, Any]:
    details = None if cached is None else {"cached_tokens": cached}
    return {
        "choices": [],
        "usage": {"prompt_tokens": 200, "completion_tokens": tokens, "prompt_tokens_details": details},
    }


class Engine:
    """Answers as told; keeps what it was asked. `cached`: per completion, the cached tokens it reports."""

    def __init__(self, *, cached: tuple[int | None, ...] = (0, 150), reply: Handler | None = None) -> None:
        self.cached = iter(cached)
        self.reply = reply
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.reply is not None:
            return self.reply(request)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json=MODELS)
        if request.method == "GET" or not json.loads(request.content).get("stream"):  # a probe
            return httpx.Response(404)
        return httpx.Response(
            200,
            content=sse(
                delta(role="assistant", content=None),
                delta(content="The"),
                delta(content=" capital is"),
                delta(content=" Paris"),
                usage(16, next(self.cached, None)),
            ),
        )


async def warmed(
    engine: Handler,
    *,
    key: str | None = "k",
    model: str | None = None,
    left_s: float = 60.0,
    promise: Promise = NOTHING,
    host_bytes: int | None = None,
    steps: list[tuple[str, float | None]] | None = None,
) -> WarmUp:
    ticks: Iterator[int] = count()
    return await warm_up(
        "http://engine",
        key,
        model,
        lambda step, fraction: None if steps is None else steps.append((step, fraction)),
        transport=httpx.MockTransport(engine),
        clock=lambda: next(ticks) * 0.5,
        left_s=lambda: left_s,
        promise=promise,
        host_bytes=lambda: host_bytes,
    )


async def test_two_identical_completions_measure_pace_and_cache() -> None:
    engine = Engine()
    result = await warmed(engine)
    # 15 tokens after the first chunk with output, in two ticks of half a second
    assert replace(result, results=(), notes=()) == WarmUp(
        models=("m1", "m2"),
        context_tokens=4096,
        tok_per_s=15.0,
        cached_tokens_ok=True,
        abilities=EngineAbilities(dialects=(CHAT,), images=False),
    )
    first, second = [json.loads(request.content) for request in engine.requests if request.method == "POST"][:2]
    assert first == second
    assert first["model"] == "m1"
    assert first["max_tokens"] == 16
    assert len(first["messages"][0]["content"]) > 2 * 128 * 5, "more than two of the largest cache blocks"
    assert all(request.headers["authorization"] == "Bearer k" for request in engine.requests)


async def test_the_served_model_is_asked_for_and_its_context_is_told() -> None:
    engine = Engine()
    result = await warmed(engine, model="m2", key=None)
    assert result.context_tokens == 8192
    assert json.loads(engine.requests[1].content)["model"] == "m2"
    assert "authorization" not in engine.requests[0].headers


async def test_the_probes_come_after_the_two_completions_and_progress_only_grows() -> None:
    engine = Engine()
    steps: list[tuple[str, float | None]] = []
    await warmed(engine, model="m2", steps=steps)
    posted = [json.loads(request.content) for request in engine.requests if request.method == "POST"]
    assert [body.get("stream", False) for body in posted][:3] == [True, True, False]
    assert {body["model"] for body in posted} == {"m2"}
    assert [step for step, _ in steps] == [
        "listing the models",
        "answering a first time",
        "answering a second time",
        "asking for the dialects",
        "asking for its token counts",
        "asking whether it continues an answer",
        "asking whether it reads images",
        "measuring its pace",
        "having it call a tool",
        "having it answer in JSON",
    ]
    parts = [part for _, part in steps if part is not None]
    assert parts == sorted(set(parts))


async def test_an_engine_without_time_for_probes_is_warm_all_the_same() -> None:
    result = await warmed(Engine(), left_s=-1.0)
    assert result.tok_per_s == 15.0
    assert result.abilities == EngineAbilities(dialects=DIALECTS)
    assert result.notes == ("not all probes ended within 0 s", "not all was shown within 0 s")


async def test_an_engine_that_falls_over_under_the_probes_is_warm_all_the_same() -> None:
    engine = Engine()

    def reply(request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and not json.loads(request.content).get("stream"):
            raise httpx.ReadError("gone")
        return engine(request)

    result = await warmed(reply)
    assert result.abilities == EngineAbilities(dialects=DIALECTS)
    assert f"{CHAT}: gone" in result.notes


@pytest.mark.parametrize(("cached", "expected"), [((0, 0), False), ((None, None), None)])
async def test_a_cache_that_misses_or_says_nothing(cached: tuple[int | None, ...], expected: bool | None) -> None:
    assert (await warmed(Engine(cached=cached))).cached_tokens_ok is expected


async def test_one_chunk_with_all_tokens_gives_no_pace() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json=MODELS)
        return httpx.Response(200, content=sse(delta(reasoning_content="all at once"), usage(16, 0)))

    assert (await warmed(Engine(reply=reply))).tok_per_s is None


def always(status: int, **body: Any) -> Handler:
    return lambda request: httpx.Response(status, **body)


def completion(response: Callable[[], httpx.Response]) -> Handler:
    return lambda request: httpx.Response(200, json=MODELS) if request.method == "GET" else response()


@pytest.mark.parametrize(
    ("reply", "cause", "says"),
    [
        (always(200, json={"data": []}), "warmup.no_models", "no models"),
        (always(200, content=b"<html>"), "warmup.no_models", "no models"),
        (always(401, json={"error": {"message": "Invalid API Key"}}), "warmup.key", "Invalid API Key"),
        (always(503, json={"error": "Loading"}), "warmup.completion", "503: Loading"),
        (
            completion(lambda: httpx.Response(400, json={"error": {"message": "no chat template"}})),
            "warmup.completion",
            "400: no chat template",
        ),
        (completion(lambda: httpx.Response(500, content=b"boom")), "warmup.completion", "500: boom"),
        (
            completion(lambda: httpx.Response(200, content=sse({"error": {"message": "out of memory"}}))),
            "warmup.completion",
            "out of memory",
        ),
        (completion(lambda: httpx.Response(200, content=sse(usage(0, 0)))), "warmup.empty", "single token"),
    ],
)
async def test_a_failure_has_a_cause(reply: Handler, cause: str, says: str) -> None:
    with pytest.raises(WarmUpFailed, match=says) as caught:
        await warmed(reply)
    assert caught.value.cause.id == cause
    assert caught.value.remedy


async def test_a_model_that_is_not_served_is_named_with_those_that_are() -> None:
    with pytest.raises(WarmUpFailed, match="m1, m2") as caught:
        await warmed(Engine(), model="other")
    assert caught.value.cause.id == "warmup.model_missing"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (httpx.ReadTimeout("slow"), "warmup.timeout"),
        (httpx.ConnectError("refused"), "warmup.connection"),
        (httpx.RemoteProtocolError("peer closed"), "warmup.connection"),
    ],
)
async def test_transport_errors_have_causes(error: httpx.HTTPError, cause: str) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(WarmUpFailed) as caught:
        await warmed(Engine(reply=reply))
    assert caught.value.cause.id == cause


async def test_what_failed_is_noted_for_the_log_and_ends_a_start_that_must_not_be_degraded() -> None:
    assert "tools: answered without a call: The capital is Paris" in (await warmed(Engine())).notes
    with pytest.raises(WarmUpFailed, match="Tool calls: answered without a call") as caught:
        await warmed(Engine(), promise=Promise(kind="vllm", allow_degraded=False))
    assert caught.value.cause.id == "engine.degraded"


async def test_host_ram_is_asked_for_where_a_plan_says_what_it_holds() -> None:
    result = await warmed(Engine(), promise=Promise(host_bytes=10**10), host_bytes=10**10)
    assert next(row for row in result.results if row.id == "host_bytes").verdict is Verdict.OK
