"""The proof of the KV tier in host RAM, against the fake engine with a tier and without one, and with broken ones."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import httpx
import pytest

from appliance.engine.host_kv_probe import RESET, TRIES, Proof, prove, question
from appliance.engine.warmup import WarmUp, warm_up
from gateway.state import Cause
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import Served, serving

pytestmark = pytest.mark.anyio
TIER = Knobs(time_scale=0.001, context_tokens=32_768, host_cache_tokens=100_000, reset_path=True)


async def asked(url: str, *, limit_s: float = 20.0) -> Proof | Cause:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        return await prove(client, "fake-model", 32_768, clock=time.monotonic, limit_s=limit_s, pause_s=0.0)


async def proven(knobs: Knobs) -> Proof | Cause:
    async with serving(knobs) as engine:
        return await asked(engine.url)


def why(found: Proof | Cause) -> str:
    assert isinstance(found, Cause)
    assert found.id == "engine.host_kv"
    assert found.remedy
    return found.title


async def test_a_prompt_that_comes_back_after_the_cards_forgot_it_is_the_proof() -> None:
    found = await proven(TIER)
    assert isinstance(found, Proof)
    assert found.prompt_tokens > 3000
    assert found.prompt_tokens - 64 < found.host_tokens <= found.prompt_tokens


async def test_an_engine_without_a_tier_gives_nothing_back() -> None:
    assert why(await proven(replace(TIER, host_cache_tokens=0))).startswith("only 0 of a prompt's")
    assert why(await proven(replace(TIER, host_fault="miss"))).startswith("only 0 of a prompt's")


async def test_a_tier_that_holds_less_than_half_of_the_prompt_is_none() -> None:
    assert why(await proven(replace(TIER, host_cache_tokens=640))).startswith("only 640 of")


async def test_a_tier_that_gives_back_something_else_is_found_out() -> None:
    assert "answered otherwise" in why(await proven(replace(TIER, host_fault="text")))


async def test_a_tier_that_ends_the_engine_is_found_out() -> None:
    assert "connection" in why(await proven(replace(TIER, host_fault="crash")))


async def test_without_a_way_to_drop_the_cache_nothing_is_proven_and_the_remedy_names_vllms() -> None:
    found = await proven(replace(TIER, reset_path=False))
    assert "no way to drop" in why(found)
    assert isinstance(found, Cause)
    assert "VLLM_SERVER_DEV_MODE" in found.remedy


async def test_what_takes_too_long_is_not_proven() -> None:
    async with serving(replace(TIER, hang=True)) as engine:
        assert "not proven within 0.05 s" in why(await asked(engine.url, limit_s=0.05))
        assert "no time left" in why(await asked(engine.url, limit_s=-1.0))


def reply(said: str, cached: int | None) -> httpx.Response:
    details = None if cached is None else {"cached_tokens": cached}
    usage = {"prompt_tokens": 1000, "completion_tokens": 3, "prompt_tokens_details": details}
    message = {"role": "assistant", "content": said}
    return httpx.Response(200, json={"choices": [{"message": message}], "usage": usage})


class Engine:
    """Answers completions in turn, and each reset with `resets` in turn; then with success."""

    def __init__(self, *replies: httpx.Response, resets: tuple[httpx.Response, ...] = ()) -> None:
        self.replies = iter(replies)
        self.resets = iter(resets)
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.raw_path.decode())
        if request.url.path == "/reset_prefix_cache":
            return next(self.resets, httpx.Response(200))
        return next(self.replies)


async def by(engine: Engine) -> Proof | Cause:
    ticks = iter(range(100))
    transport = httpx.MockTransport(engine)
    async with httpx.AsyncClient(base_url="http://engine", transport=transport) as client:
        return await prove(client, "m", None, clock=lambda: float(next(ticks)), limit_s=5.0, pause_s=0.0)


async def test_only_what_the_cards_cached_is_dropped() -> None:
    engine = Engine(reply("a", 0), reply("a", 960), reply("a", 960))
    assert await by(engine) == Proof(1000, 960, 1.0, 1.0)
    assert engine.asked == ["/v1/chat/completions", "/v1/chat/completions", RESET, "/v1/chat/completions"]
    assert RESET.endswith("reset_external=false")


async def test_an_answer_as_with_a_warm_cache_is_as_good_as_one_with_a_cold_one() -> None:
    assert isinstance(await by(Engine(reply("cold", 0), reply("warm", 960), reply("warm", 960))), Proof)
    assert isinstance(await by(Engine(reply("cold", 0), reply("warm", 960), reply("cold", 960))), Proof)
    assert "otherwise" in why(await by(Engine(reply("cold", 0), reply("warm", 960), reply("wrong", 960))))


async def test_an_engine_that_still_copies_is_asked_again() -> None:
    busy = httpx.Response(200, json={"success": False})
    later = Engine(reply("a", 0), reply("a", 960), reply("a", 0), reply("a", 960), resets=(busy, busy))
    assert isinstance(await by(later), Proof)
    assert later.asked.count(RESET) == 4
    never = Engine(reply("a", 0), reply("a", 960), resets=(busy,) * TRIES)
    assert "did not drop" in why(await by(never))


async def test_an_engine_that_does_not_say_what_was_cached_cannot_prove_it() -> None:
    found = await by(Engine(reply("a", None), reply("a", None)))
    assert "does not say" in why(found)
    assert isinstance(found, Cause)
    assert "--enable-prompt-tokens-details" in found.remedy


@pytest.mark.parametrize(
    "answer", [httpx.Response(500, text="no"), httpx.Response(200, text="{}"), httpx.Response(200, json={"choices": 1})]
)
async def test_an_engine_that_does_not_answer_a_long_prompt_proves_nothing(answer: httpx.Response) -> None:
    assert str(answer.status_code) in why(await by(Engine(answer)))


def test_the_prompt_is_another_one_each_time_and_fits_the_context() -> None:
    def text(context: int | None) -> str:
        return str(question("m", context)["messages"][0]["content"])

    assert text(None) != text(None)
    assert len(text(None).split()) > 3000
    assert len(text(2048).split()) < 600


async def warmed(engine: Served, *, host_kv: bool) -> tuple[WarmUp, list[str]]:
    steps: list[str] = []
    note: Any = lambda step, part: steps.append(step)  # noqa: E731
    return await warm_up(engine.url, None, None, note, host_kv=host_kv), steps


async def test_the_proof_comes_after_the_completions_and_before_the_other_probes() -> None:
    async with serving(TIER) as engine:
        warm, steps = await warmed(engine, host_kv=True)
        assert isinstance(warm.host_kv, Proof)
        assert steps[2:5] == [
            "answering a second time",
            "reading a prompt back from host RAM",
            "asking for the dialects",
        ]
        assert (await warmed(engine, host_kv=False))[0].host_kv is None


async def test_a_start_that_is_over_is_asked_nothing_more() -> None:
    async with serving(replace(TIER, reset_path=False)) as engine:
        warm, steps = await warmed(engine, host_kv=True)
        assert isinstance(warm.host_kv, Cause)
        assert steps[-1] == "reading a prompt back from host RAM"
