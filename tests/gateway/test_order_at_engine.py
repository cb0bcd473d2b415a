"""Prompts are at the engine in the order of their tickets where it matters: a cold one before those after it."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gateway.care import LEAD_S
from tests import virtual_time
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving
from tests.fake_engine.stats import RequestRecord
from tests.gateway.running import ENGINE_KEY, Running, key_of, running


async def ask(gateway: Running, seat: str, tokens: int, reply_tokens: int) -> None:
    """One request to its end."""
    body = {"messages": [{"role": "user", "content": seat * 4 * tokens}], "stream": True, "max_tokens": reply_tokens}
    headers = {"authorization": f"Bearer {key_of(seat)}", "x-request-id": seat}
    async with httpx.AsyncClient(trust_env=False, timeout=600) as client:
        answer = await client.post(f"{gateway.base_url}/v1/chat/completions", json=body, headers=headers)
        assert answer.text.endswith("data: [DONE]\n\n"), answer.text


async def seen(*asked: tuple[str, int, int]) -> list[RequestRecord]:
    """What the engine got of requests that came one right after the other: seat, tokens of prompt and reply."""
    loop = asyncio.get_running_loop()
    async with (
        serving(Knobs(), key=ENGINE_KEY, now=loop.time) as served,
        running(engine_url=served.url, sweep_s=1.0, floor_tok_per_s=100.0) as gateway,
    ):
        tasks = []
        for one in asked:
            known = len(gateway.core.limiter._places)
            tasks.append(asyncio.create_task(ask(gateway, *one)))
            await gateway.until(lambda known=known: len(gateway.core.limiter._places) > known)  # type: ignore[misc]
        await asyncio.gather(*tasks)
        return list(served.engine.stats.log)


@pytest.mark.parametrize("tokens", [60_000, 150_000])
def test_a_cold_prompt_is_at_the_engine_before_those_that_get_their_tickets_with_it(tokens: int) -> None:
    """All three wait for the first reply to end."""
    first, cold, *warm = virtual_time.run(seen(("d", 50, 400), ("a", tokens, 4), ("b", 50, 4), ("c", 50, 4)))
    assert [one.id for one in (first, cold, *warm)] == ["d", "a", "b", "c"]
    assert first.ended_s is not None
    assert cold.read_s is not None
    assert cold.arrived_s == pytest.approx(first.ended_s, abs=0.01)
    assert all(one.arrived_s == pytest.approx(cold.arrived_s + LEAD_S, abs=0.01) for one in warm)
    assert all(cold.read_s < (one.read_s or 0.0) for one in warm)


def test_prompts_that_are_not_cold_do_not_wait_for_each_other() -> None:
    first, *others = virtual_time.run(seen(("a", 3000, 4), ("b", 50, 4), ("c", 50, 4)))
    assert first.id == "a"
    assert all(one.arrived_s < first.arrived_s + 0.1 for one in others)


async def after_one_that_leaves(left_s: float) -> float:
    """How long a short prompt takes to be at the engine behind a cold one whose client leaves after so many seconds."""
    loop = asyncio.get_running_loop()
    async with (
        serving(Knobs(), key=ENGINE_KEY, now=loop.time) as served,
        running(engine_url=served.url, sweep_s=1.0) as gateway,
    ):
        cold = asyncio.create_task(ask(gateway, "a", 60_000, 4))
        await gateway.until(lambda: len(gateway.core.care.running) == 1)
        began_s = loop.time()
        short = asyncio.create_task(ask(gateway, "b", 50, 4))
        await asyncio.sleep(left_s)
        cold.cancel()
        await short
        return next(one.arrived_s for one in served.engine.stats.log if one.id == "b") - began_s


def test_nobody_waits_behind_a_cold_prompt_that_has_left() -> None:
    assert virtual_time.run(after_one_that_leaves(0.2)) == pytest.approx(0.2, abs=0.05)
