"""A prompt that is too long: a real 400 with true numbers, also on a full box, and what each client makes of it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.agents.clients import CLAUDE_CODE, PI, Client, Task
from tests.agents.stage import ANSWER, box

pytestmark = pytest.mark.anyio

START_S = 40.0
WINDOW = 24_000
"""Tokens; above the first prompt of each agent."""
TOO_LONG = "Where is the pear? " + "so many words " * 7_500
"""More than WINDOW at four bytes a token, less than an argument of a command line may have (128 KiB)."""
LONG = "Where is the pear? " + "so many words " * 4_300
THREE_TOO_LONG = {CLAUDE_CODE: 50_000, PI: 40_000}
"""Windows in which LONG fits twice behind the agent's own prompt, and not three times."""
SAYS_OURS = f"maximum context length is {WINDOW} tokens"
SAYS = {"claude-code": "prompt is too long", "codex": "ran out of room", "anthropic": f"tokens > {WINDOW} maximum"}
"""What a person reads; the others show our message."""


@pytest.mark.parametrize("is_full", [False, True], ids=["idle", "full"])
async def test_a_first_prompt_that_is_too_long_is_a_400(client: Client, is_full: bool, tmp_path: Path) -> None:
    knobs = {"context_tokens": WINDOW}
    async with box(tmp_path, [client], knobs, context_tokens=WINDOW) as here, AsyncExitStack() as stack:
        full = await stack.enter_async_context(AsyncExitStack())
        if is_full:
            await full.enter_async_context(here.full())
        # when
        run = await stack.enter_async_context(here.run(client, TOO_LONG))
        await here.gateway.until(lambda: bool(here.done(client)), START_S)
        # then: that is said at once, also while nobody could be served
        first = here.done(client)[0]
        assert (first["status"], first["code"]) == (400, "context_length_exceeded")
        await full.aclose()
        result = await run.result()
        if client is PI:  # it summarises, sends the prompt once more and ends without a word
            assert (result.code, result.stdout) == (0, ""), result.told()
            assert [line["status"] for line in await here.over(client)] == [400, 200, 400]
        else:
            assert result.code == 1, result.told()
            assert SAYS.get(client.name, SAYS_OURS) in (result.stdout + result.stderr).lower(), result.told()
            assert len(await here.over(client)) == 1


@pytest.mark.agents
@pytest.mark.parametrize("is_full", [False, True], ids=["idle", "full"])
@pytest.mark.parametrize("summarises", THREE_TOO_LONG, ids=str)
async def test_a_later_prompt_that_is_too_long_is_summarised(summarises: Client, is_full: bool, tmp_path: Path) -> None:
    client, window = summarises, THREE_TOO_LONG[summarises]
    knobs = {"context_tokens": window}
    async with box(tmp_path, [client], knobs, context_tokens=window) as here, AsyncExitStack() as stack:
        # given: two turns that fit
        for again in (False, True):
            async with here.run(client, Task(LONG, again)) as run:
                assert (await run.result()).stdout.strip() == ANSWER
        full = await stack.enter_async_context(AsyncExitStack())
        if is_full:
            await full.enter_async_context(here.full())
        # when: the next one does not
        run = await stack.enter_async_context(here.run(client, Task(LONG, again=True)))
        await here.gateway.until(lambda: len(here.done(client)) > 2, START_S)
        await full.aclose()
        result = await run.result()
        # then: the client makes room and has its answer; pi's print mode ends without showing it
        assert (result.code, result.stdout.strip()) == (0, "" if client is PI else ANSWER), result.told()
        expected = [200, 200, 400] + [200] * (2 if client is PI else 3)
        assert [line["status"] for line in await here.over(client)] == expected
