"""What a reply teaches: only an engine that was seen to read says how fast, and what it has read."""

from __future__ import annotations

import pytest

from tests.gateway.running import FAST, Running, running
from tests.gateway.wire import ask, connect, post

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
PROMPT = "word " * 10_000


async def told(gateway: Running, text: str, *, stream: bool) -> int:
    """The status of one answer; nothing runs any more."""
    async with connect(gateway, post(ask(CHAT, text, max_tokens=40, stream=stream), path=CHAT, seat="a")) as client:
        answer = await client.answer()
    await gateway.idle()
    return answer.status


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_in_one_piece_does_not_say_how_long_its_prompt_was_read(stream: bool) -> None:
    async with running(FAST) as gateway:
        assert await told(gateway, PROMPT, stream=stream) == 200
        assert gateway.core.care.known.curve.measured == stream
        assert gateway.core.care.index.held_tokens > 5_000, "usage says that it was read"
        assert ("ttft_s" in gateway.done()[0]) == stream


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
async def test_a_prompt_that_the_engine_refused_was_not_read(status: int, stream: bool) -> None:
    async with running(FAST | {"reject_status": status}) as gateway:
        assert await told(gateway, PROMPT, stream=stream) != 200
        assert gateway.core.care.index.held_tokens == 0
        assert "ttft_s" not in gateway.done()[0]
        gateway.set_knobs(reject_status=None)
        assert await told(gateway, PROMPT, stream=stream) == 200
        assert gateway.done()[1]["uncached_tokens"] > 5_000
