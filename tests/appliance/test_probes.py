"""appliance/engine/probes.py against made-up engines with every quirk, and against the fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.probe_forms import (
    CHAT,
    COMPLETIONS,
    DIALECTS,
    FLAGGED,
    MESSAGES,
    RESPONSES,
    TOKENIZE,
    Answer,
    continues,
    prompt_tokens,
    sees_images,
)
from appliance.engine.probes import Shown, probe
from gateway.state import EngineAbilities
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving

pytestmark = pytest.mark.anyio
Reply = Callable[[dict[str, Any]], httpx.Response]
LLAMA = {CHAT: f"{CHAT}/input_tokens", RESPONSES: f"{RESPONSES}/input_tokens", MESSAGES: f"{MESSAGES}/count_tokens"}
VLLM = {CHAT: TOKENIZE, COMPLETIONS: TOKENIZE, MESSAGES: f"{MESSAGES}/count_tokens"}
HEAD, END = 2, 1
"""Tokens of a turn's head and of its end; every other token is a word."""


@dataclass
class Engine:
    """Counts words. `continued`: what it does with a partial answer; `counts_as`: what its counters think it does.

    "plain": continues; "flagged": when it is told to; "no_prompt": obeys add_generation_prompt only; "never";
    "dropped": leaves it out. `think`: tokens that the generation prompt has beyond a head.
    """

    counters: dict[str, str] = field(default_factory=lambda: dict(LLAMA))
    continued: str = "plain"
    counts_as: str = ""
    think: int = 0
    usage: bool = True
    image_tokens: int | None = None
    replies: dict[str, Reply] = field(default_factory=dict)
    metrics: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    inside: int = 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        assert self.inside == 0, "one at a time"
        self.inside += 1
        try:
            await asyncio.sleep(0)
            path = request.url.path
            if request.method == "GET":
                return httpx.Response(200 if path == "/metrics" and self.metrics else 404, text=self.metrics)
            body = json.loads(request.content)
            self.asked.append((path, body))
            return self.replies.get(path, lambda body: self._answer(path, body))(body)
        finally:
            self.inside -= 1

    def _answer(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if path in DIALECTS:
            return self._completion(path, body)
        if path not in self.counters.values():
            return httpx.Response(404, json={"error": {"message": "File Not Found", "code": 404}})
        name = "count" if path == TOKENIZE else "input_tokens"
        return httpx.Response(200, json={name: self.tokens(body, self.counts_as or self.continued)})

    def _completion(self, path: str, body: dict[str, Any]) -> httpx.Response:
        content = body["messages"][-1]["content"] if "messages" in body else ""
        if isinstance(content, list) and self.image_tokens is None:
            return httpx.Response(500, json={"error": {"message": "image input is not supported"}})
        tokens = self.tokens(body, self.continued)
        answer: dict[str, Any] = {
            CHAT: {"choices": [{"message": {"role": "assistant", "content": "red"}}]},
            COMPLETIONS: {"choices": [{"text": "red"}]},
            RESPONSES: {"object": "response", "output": []},
            MESSAGES: {"type": "message", "content": [{"type": "text", "text": "red"}]},
        }[path]
        usage: dict[str, Any] = {
            CHAT: {"prompt_tokens": tokens},
            COMPLETIONS: {"prompt_tokens": tokens},
            RESPONSES: {"input_tokens": tokens},
            MESSAGES: {"input_tokens": tokens - 3, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 1},
        }[path]
        return httpx.Response(200, json=answer | ({"usage": usage} if self.usage else {}))

    def tokens(self, body: dict[str, Any], how: str) -> int:
        if "prompt" in body:
            return len(body["prompt"].split())
        turns = body.get("messages", [{"content": body.get("input")}])
        content = turns[0]["content"]
        if isinstance(content, list):
            user = len(content[0]["text"].split()) + (self.image_tokens or 0)
        else:
            user = len(content.split())
        user += HEAD + END
        prompt = HEAD + self.think
        if len(turns) == 1 or how == "dropped":
            return user + prompt
        partial = HEAD + len(turns[1]["content"].split())
        if how == "plain" or (how == "flagged" and body.get("continue_final_message")):
            return user + partial
        closed = how in ("no_prompt", "flagged") and body.get("add_generation_prompt") is False
        return user + partial + END + (0 if closed else prompt)


async def asked(engine: Callable[[httpx.Request], Awaitable[httpx.Response]], **limits: float) -> Shown:
    transport = httpx.MockTransport(engine)
    async with httpx.AsyncClient(base_url="http://engine", transport=transport) as client:
        return await probe(client, "m", lambda step, part: None, **limits)


async def test_an_engine_like_llama_cpp() -> None:
    shown = await asked(Engine())
    assert shown == Shown(
        EngineAbilities(dialects=DIALECTS, counters=LLAMA, continuation=(CHAT, MESSAGES, FLAGGED), images=False)
    )


async def test_an_engine_like_vllm() -> None:
    shown = await asked(Engine(counters=VLLM, continued="flagged", image_tokens=4))
    assert shown.abilities == EngineAbilities(
        dialects=DIALECTS,
        counters=VLLM | {RESPONSES: TOKENIZE},  # the gateway has it count the text
        continuation=(FLAGGED,),
        images=True,
    )
    assert shown.notes == ()


@pytest.mark.parametrize("counters", [LLAMA, VLLM, {}], ids=["llama", "vllm", "no counters"])
@pytest.mark.parametrize(
    ("continued", "expected"),
    [
        ("plain", (CHAT, MESSAGES, FLAGGED)),
        ("flagged", (FLAGGED,)),
        ("never", ()),
        ("no_prompt", ()),
        ("dropped", ()),
    ],
)
@pytest.mark.parametrize("think", [0, END])
async def test_continuation_is_what_the_counts_show(
    counters: dict[str, str], continued: str, think: int, expected: tuple[str, ...]
) -> None:
    engine = Engine(counters=dict(counters), continued=continued, think=think)
    shown = await asked(engine)
    # where an answer begins with more than its head, a continued one has less: nothing is proved then
    assert shown.abilities.continuation == (() if think and continued != "no_prompt" else expected)


async def test_flags_that_only_completions_obey_are_found_behind_the_counter() -> None:
    shown = await asked(Engine(counters=dict(VLLM), continued="flagged", counts_as="never"))
    assert shown.abilities.continuation == (FLAGGED,)


async def test_a_continuation_that_only_the_counter_knows_is_not_believed() -> None:
    shown = await asked(Engine(continued="never", counts_as="plain"))
    assert shown.abilities.continuation == ()
    assert any("partial answer" in note for note in shown.notes)


async def test_a_refused_partial_answer_is_no_continuation() -> None:
    engine = Engine(counters={})

    def refuse(body: dict[str, Any]) -> httpx.Response:
        if len(body["messages"]) > 1:
            return httpx.Response(400, json={"error": {"message": "the last turn must be the user's"}})
        return engine._completion(CHAT, body)

    engine.replies[CHAT] = refuse
    assert (await asked(engine)).abilities.continuation == (MESSAGES,)


async def test_tokenize_of_llama_cpp_is_no_counter() -> None:
    def tokens(body: dict[str, Any]) -> httpx.Response:
        return httpx.Response(200, json={"tokens": []})

    shown = await asked(Engine(counters={}, replies={TOKENIZE: tokens}))
    assert shown.abilities.counters == {}
    assert shown.notes == ()


async def test_a_counter_that_disagrees_with_the_usage_is_not_used() -> None:
    def tokens(body: dict[str, Any]) -> httpx.Response:
        return httpx.Response(200, json={"count": 3})

    shown = await asked(Engine(counters={}, replies={TOKENIZE: tokens}))
    assert shown.abilities.counters == {}
    assert [note for note in shown.notes if note.startswith("/tokenize: counts 3 where")]


async def test_an_engine_without_usage_shows_dialects_and_nothing_that_needs_counts() -> None:
    abilities = (await asked(Engine(usage=False))).abilities
    assert abilities == EngineAbilities(dialects=DIALECTS, images=False)


def says(status: int, **answer: Any) -> Reply:
    return lambda body: httpx.Response(status, **answer)


@pytest.mark.parametrize(
    ("reply", "noted"),
    [
        (says(404, json={"detail": "Not Found"}), ""),
        (says(405), ""),
        (says(501, json={"error": "no"}), ""),
        (says(400, json={"error": {"message": "Path /v1/x Not Found"}}), ""),
        (says(200, content=b"<html>"), "answered 200 in another form"),
        (says(200, json={"choices": []}), "answered 200 in another form"),
        (says(200, json=[]), "answered 200 in another form"),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES, MESSAGES])
async def test_a_dialect_that_is_not_answered_is_not_served(path: str, reply: Reply, noted: str) -> None:
    shown = await asked(Engine(replies={path: reply}))
    assert shown.abilities.dialects == tuple(other for other in DIALECTS if other != path)
    assert path not in shown.abilities.counters
    assert shown.notes == ((f"{path}: {noted}",) if noted else ())


@pytest.mark.parametrize(
    ("reply", "noted"),
    [
        (says(400, json={"error": {"message": "model is sulking"}}), "answered 400"),
        (says(500, content=b"boom"), "answered 500"),
        (says(429), "answered 429"),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, RESPONSES, MESSAGES])
async def test_a_dialect_that_is_not_known_to_be_absent_is_left_to_the_engine(
    path: str, reply: Reply, noted: str
) -> None:
    shown = await asked(Engine(replies={path: reply}))
    assert shown.abilities.dialects == DIALECTS
    assert path not in shown.abilities.counters
    assert shown.notes == (f"{path}: {noted}",)


async def test_chat_was_proved_by_the_warm_up_and_stays() -> None:
    shown = await asked(Engine(replies={CHAT: says(503)}))
    assert shown.abilities.dialects == DIALECTS
    assert CHAT not in shown.abilities.counters
    assert shown.abilities.images is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(200, {"choices": [{"message": {}}], "usage": {"prompt_tokens": 21}}), True),
        (Answer(200, {"choices": [{"message": {}}], "usage": {"prompt_tokens": 20}}), False),  # dropped unseen
        (Answer(200, {"choices": [{"message": {}}]}), True),
        (Answer(200, None), None),
        (Answer(500, {"error": {"message": "image input is not supported"}}), False),
        (Answer(400, {}), False),
        (Answer(429, {}), None),
        (Answer(503, {}), None),
        (Answer(0, why="no answer within 20 s"), None),
    ],
)
def test_whether_images_are_read(answer: Answer, expected: bool | None) -> None:
    assert sees_images(answer, 20) is expected


@given(
    user=st.integers(0, 500),
    head=st.integers(1, 9),
    end=st.integers(1, 3),
    word=st.integers(1, 4),
    first=st.integers(1, 4),
)
def test_an_open_answer_is_told_from_a_closed_one_whatever_the_template(
    user: int, head: int, end: int, word: int, first: int
) -> None:
    prompt = user + head
    one, two = first, first + word
    assert continues(prompt, prompt + one, prompt + two) is (first == word)
    closed = prompt + end + head
    if first == word:
        assert not continues(prompt, closed + one, closed + two)
    assert not continues(prompt, prompt, prompt)
    assert not continues(None, one, two)


@pytest.mark.parametrize("value", [None, "7", True, -1, 7.0])
def test_usage_that_is_no_number_says_nothing(value: Any) -> None:
    assert prompt_tokens(CHAT, Answer(200, {"usage": {"prompt_tokens": value}})) is None
    assert prompt_tokens(MESSAGES, Answer(200, {"usage": {"input_tokens": value}})) is None
    assert prompt_tokens(MESSAGES, Answer(200, {"usage": [value]})) is None


# Limits and costs


async def test_a_hanging_path_costs_its_own_limit_and_nothing_else() -> None:
    engine = Engine()

    async def hanging(request: httpx.Request) -> httpx.Response:
        if request.url.path == RESPONSES:
            await asyncio.Event().wait()
        return await engine(request)

    shown = await asked(hanging, probe_s=0.4)
    assert shown.abilities.dialects == DIALECTS
    assert RESPONSES not in shown.abilities.counters
    assert shown.abilities.continuation == (CHAT, MESSAGES, FLAGGED)
    assert shown.notes == (f"{RESPONSES}: no answer within 0.4 s",)


@pytest.mark.parametrize("limit_s", [0.5, 0.0, -3.0])
async def test_what_was_not_asked_in_time_was_not_shown(limit_s: float) -> None:
    engine = Engine()

    async def slow(request: httpx.Request) -> httpx.Response:
        if request.url.path == MESSAGES:
            await asyncio.Event().wait()
        return await engine(request)

    async with asyncio.timeout(5):
        shown = await asked(slow, limit_s=limit_s)
    assert shown.abilities == EngineAbilities(dialects=DIALECTS)
    assert shown.notes == (f"not all probes ended within {max(0.0, limit_s):g} s",)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.ReadError("")])
async def test_a_broken_connection_is_noted_and_raises_nothing(error: httpx.HTTPError) -> None:
    async def broken(request: httpx.Request) -> httpx.Response:
        raise error

    shown = await asked(broken)
    assert shown.abilities == EngineAbilities(dialects=DIALECTS)
    assert len(shown.notes) == len(DIALECTS) + 1


@pytest.mark.parametrize("counters", [LLAMA, VLLM, {}], ids=["llama", "vllm", "no counters"])
@pytest.mark.parametrize("continued", ["plain", "flagged", "never"])
async def test_the_engine_is_asked_for_few_tokens(counters: dict[str, str], continued: str) -> None:
    engine = Engine(counters=dict(counters), continued=continued)
    await asked(engine)
    run = [body for path, body in engine.asked if path in DIALECTS]
    assert len(run) <= 13
    assert sum(body.get("max_tokens", body.get("max_output_tokens")) for body in run) <= 30


# The fake engine


@pytest.mark.parametrize(
    ("knobs", "continuation"),
    [
        (Knobs(style="llama"), (CHAT, MESSAGES, FLAGGED)),
        (Knobs(style="vllm"), (MESSAGES, FLAGGED)),
        (Knobs(continues=False), ()),
        (Knobs(style="vllm", continues=False, images=True), ()),
    ],
)
async def test_the_fake_engine_shows_what_its_knobs_say(knobs: Knobs, continuation: tuple[str, ...]) -> None:
    async with serving(knobs) as engine, httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
        shown = await probe(client, knobs.model, lambda step, part: None)
    assert shown.notes == ()
    assert shown.abilities.dialects == DIALECTS
    assert shown.abilities.counters == LLAMA | {COMPLETIONS: TOKENIZE}
    assert shown.abilities.continuation == continuation
    assert shown.abilities.images is knobs.images


async def test_a_fake_engine_with_chat_alone() -> None:
    knobs = Knobs(dialects=(CHAT,), counts=())
    async with serving(knobs) as engine, httpx.AsyncClient(base_url=engine.url, trust_env=False) as client:
        shown = await probe(client, knobs.model, lambda step, part: None)
    assert shown == Shown(EngineAbilities(dialects=(CHAT,), continuation=(CHAT, FLAGGED), images=False))
