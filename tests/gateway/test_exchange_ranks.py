"""gateway.exchange, whole: what never reaches the engine, and which of two that wait it gets first."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from gateway import admission
from tests.gateway import forms
from tests.gateway.checks import line_of
from tests.gateway.forms import CHAT, COMPLETIONS, MESSAGES, RESPONSES, ROUTES, STREAM_OR_NOT
from tests.gateway.running import Running, running
from tests.gateway.wire import Answer, ask, exchange, post

pytestmark = pytest.mark.anyio

CONTROL: dict[str, Any] = {
    "priority": -1,
    "cache_salt": "s",
    "kv_transfer_params": {"do_remote_prefill": True},
    "ec_transfer_params": {"a": 1},
    "request_id": "mine",
    "vllm_xargs": {"a": 1},
    "prompt_logprobs": 5,
    "id_slot": 0,
    "cache_prompt": False,
    "n_cache_reuse": 1,
    "lora": [{"id": 0, "scale": 1}],
    "rid": "mine",
    "extra_key": "k",
    "lora_path": "/etc",
    "session_params": {"id": 1},
    "bootstrap_host": "10.0.0.1",
    "bootstrap_port": 1,
    "bootstrap_room": 1,
    "routed_dp_rank": 1,
    "data_parallel_rank": 1,
    "custom_logit_processor": "code",
}
"""Written out here, and not taken from the code: who takes one off that list must take it off this one."""


async def at_engine(gateway: Running, path: str, body: dict[str, Any]) -> Any:
    """What the engine gets of `body`."""
    answer = await exchange(gateway, post(body, path=path))
    assert forms.whole(path, answer)
    return json.loads(base64.b64decode(gateway.engine.stats.echoes[-1]["body_b64"]))


@ROUTES
@STREAM_OR_NOT
async def test_no_field_that_acts_on_the_whole_engine_reaches_it(path: str, stream: bool) -> None:
    fields = {"stream": stream, "metadata": {"priority": "mine"}, "max_tokens": 3}
    fields |= forms.WITH_USAGE if path in (CHAT, COMPLETIONS) and stream else {}
    plain = ask(path, **fields)
    async with running({"echo_body": 1}) as gateway:
        assert await at_engine(gateway, path, plain) == plain
        assert await at_engine(gateway, path, CONTROL | plain) == plain
        for name, value in CONTROL.items():
            assert await at_engine(gateway, path, plain | {name: value}) == plain, name


# A helper and a turn

TOOLS: dict[str, dict[str, Any]] = {
    CHAT: {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
    RESPONSES: {"type": "function", "name": "look", "parameters": {"type": "object"}},
    MESSAGES: {"name": "look", "input_schema": {"type": "object"}},
}
TALKS = pytest.mark.parametrize("path", list(TOOLS), ids=forms.NAMES.get)
SESSIONS = ("x-claude-code-session-id", "session-id", "session_id", "x-session-id")
FIRST_TEXT = "fix the pear"


class Line:
    """A box of one stream, which is busy, and those who wait for it in turn."""

    def __init__(self, gateway: Running, path: str) -> None:
        self.gateway = gateway
        self.path = path
        self.asked: list[asyncio.Task[Answer]] = []

    async def ask(self, name: str, seat: str, *, tools: bool, text: str = FIRST_TEXT, **headers: str) -> Answer:
        """A small request called `name`."""
        offer = {"tools": [TOOLS[self.path]]} if tools else {}
        body = ask(self.path, text, stream=True, max_tokens=2, **offer)
        named = {"X-Request-Id": name} | {key.replace("_", "-"): value for key, value in headers.items()}
        return await exchange(self.gateway, post(body, path=self.path, seat=seat, headers=named))

    async def join(self, name: str, seat: str, *, tools: bool, text: str = FIRST_TEXT, **headers: str) -> None:
        """The same, when it waits."""
        before = len(self.gateway.core.limiter.view().waiting)
        self.asked.append(asyncio.create_task(self.ask(name, seat, tools=tools, text=text, **headers)))
        await self.gateway.until(lambda: len(self.gateway.core.limiter.view().waiting) == before + 1)

    async def hold(self) -> None:
        """Occupy the stream."""
        self.gateway.set_knobs(stall_after=0)
        held = asyncio.create_task(self.ask("held", "e", tools=True, text="hold"))
        await self.gateway.until(lambda: self.gateway.core.limiter.running == 1)
        await self.gateway.until(lambda: self.gateway.engine.stats.running == 1)
        self.gateway.set_knobs(stall_after=None)
        self.held = held

    async def served(self) -> list[str]:
        """Free the stream; the others in the order in which the engine got them."""
        self.held.cancel()
        for answer in await asyncio.gather(*self.asked):
            assert forms.whole(self.path, answer)
        log = [record.id for record in self.gateway.engine.stats.log]
        return log[log.index("held") + 1 :]


@TALKS
@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("turns_of", ["a", "b"], ids=["own", "others"])
async def test_the_first_small_call_of_a_named_run_lets_a_turn_pass(path: str, session: str, turns_of: str) -> None:
    async with running(streams=1) as gateway:
        line = Line(gateway, path)
        await line.hold()
        helper = {session: "one"} if session != "session_id" else {}
        if session == "session_id":  # an underscore in a header's name
            line.asked.append(asyncio.create_task(underscored(line)))
            await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
        else:
            await line.join("helper", "a", tools=False, **helper)
        await line.join("turn", turns_of, tools=True, text="another")
        assert await line.served() == ["turn", "helper"]
        lines = {name: await line_of(gateway, answer) for name, answer in zip("ht", await answers(line), strict=True)}
    assert (lines["h"]["helper"], lines["t"].get("helper", False)) == (True, False)


async def underscored(line: Line) -> Answer:
    named = {"X-Request-Id": "helper", "session_id": "one"}
    return await exchange(
        line.gateway, post(ask(line.path, FIRST_TEXT, stream=True, max_tokens=2), path=line.path, headers=named)
    )


async def answers(line: Line) -> list[Answer]:
    return [await task for task in line.asked]


@TALKS
@pytest.mark.parametrize("turns_of", ["a", "b"], ids=["own", "others"])
async def test_a_small_call_in_a_run_with_tools_lets_a_turn_pass(path: str, turns_of: str) -> None:
    async with running(streams=1) as gateway:
        line = Line(gateway, path)
        for seat in ("a", "b"):  # both were served before: neither is the newcomer
            await line.ask("before", seat, tools=True)
        await line.hold()
        await line.join("helper", "a", tools=False)
        await line.join("turn", turns_of, tools=True)
        assert await line.served() == ["turn", "helper"]


@TALKS
async def test_a_small_call_of_who_never_had_tools_waits_its_turn_and_no_longer(path: str) -> None:
    async with running(streams=1) as gateway:
        line = Line(gateway, path)
        await line.hold()
        await line.join("plain", "a", tools=False)
        await line.join("turn", "a", tools=True, text="another")
        assert await line.served() == ["plain", "turn"]


@TALKS
@pytest.mark.parametrize("turns_of", ["a", "b"], ids=["own", "others"])
async def test_a_helper_that_has_waited_long_enough_is_a_turn(
    path: str, turns_of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert admission.HELPER_PATIENCE_S == 30.0
    monkeypatch.setattr(admission, "HELPER_PATIENCE_S", 0.1)
    async with running(streams=1) as gateway:
        line = Line(gateway, path)
        await line.hold()
        await line.join("helper", "a", tools=False, x_session_id="one")
        await line.join("turn", turns_of, tools=True, text="another")
        assert gateway.core.limiter.policy.order() != sorted(gateway.core.limiter.policy.order()), "the turn is first"
        await asyncio.sleep(0.15)
        assert await line.served() == ["helper", "turn"]
