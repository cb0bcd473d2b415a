"""The bad input list: what is sent, and the answer it gets, on every inference route."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.gateway import forms
from tests.gateway.checks import line_of, refused
from tests.gateway.forms import CHAT, COMPLETIONS, LIMIT, MESSAGES, PATHS, RESPONSES, ROUTES
from tests.gateway.running import ADMIN_TOKEN, ENGINE_KEY, Running, key_of, running, seats_toml
from tests.gateway.wire import ask, connect, exchange, head, post

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
COUNT = "/v1/messages/count_tokens"


@dataclass(frozen=True, slots=True)
class Bad:
    """`body` is bytes, or fields merged into a good request of the route."""

    id: str
    status: int
    code: str
    body: Any = field(default_factory=dict)
    param: str | None = None
    routes: tuple[str, ...] = PATHS
    seat: str | None = "a"
    headers: Mapping[str, str] = field(default_factory=dict)
    says: str = ""


def several(name: str, value: Any, routes: tuple[str, ...] = PATHS) -> Bad:
    return Bad(
        f"{name}={json.dumps(value)[:20]}", 400, "one_sequence_only", {name: value}, name, routes=routes, says=name
    )


def wrong(name: str, value: Any, routes: tuple[str, ...] = PATHS) -> Bad:
    return Bad(
        f"{name}={json.dumps(value)[:20]}", 400, "invalid_request", {name: value}, name, routes=routes, says=name
    )


def key(id: str, status: int, code: str, headers: Mapping[str, str], says: str = "") -> Bad:
    return Bad(id, status, code, seat=None, headers=headers, says=says)


ONE_TEXT, OPENAI, TALKS, LISTS = (COMPLETIONS,), (CHAT, COMPLETIONS), (CHAT, MESSAGES), (RESPONSES,)
EMPTY = b'{"prompt": null, "model":null}'

TABLE = [
    # Not a JSON object
    Bad("no JSON", 400, "not_json", b"hello", says="not JSON"),
    Bad("cut JSON", 400, "not_json", b'{"model": "fake-model", "messages": [', says="not JSON"),
    Bad("not UTF-8", 400, "not_json", b'{"model": "\xff"}', says="not JSON"),
    Bad("JSON array", 400, "not_json", b'[{"model": "fake-model"}]', says="object"),
    Bad("JSON string", 400, "not_json", b'"hello"', says="object"),
    Bad("JSON null", 400, "not_json", b"null", says="object"),
    Bad("empty body", 400, "invalid_request", b"", says="no body"),
    Bad("deeply nested", 400, "not_json", b'{"a":' + b"[" * 100_000, says="not JSON"),
    Bad("too many brackets", 400, "too_intricate", b'{"a":[' + b"[]," * 1_100_000 + b"1]}", says="too many values"),
    Bad("too many commas", 400, "too_intricate", b'{"a":[' + b"1," * 4_100_000 + b"1]}", says="too many values"),
    Bad(
        "too many members",
        400,
        "too_intricate",
        b"{" + b",".join(b'"%d":0' % number for number in range(400_000)) + b"}",
        says="too many values",
    ),
    Bad("UTF-16", 400, "not_json", '{"messages": [{}], "prompt": "x"}'.encode("utf-16"), says="not JSON"),
    Bad("NaN", 400, "not_json", b'{"a": NaN}', says="not JSON"),
    Bad("NaN behind half a character", 400, "not_json", b'{"a": "\\ud83d", "b": NaN}', says="not JSON"),
    # Size and coding
    Bad("70 MB body", 413, "body_too_large", b'{"a":"' + b"x" * 70 * MIB + b'"}', says="64 MiB"),
    Bad("gzip", 415, "content_encoding", headers={"Content-Encoding": "gzip"}, says="Content-Encoding"),
    Bad("br", 415, "content_encoding", headers={"Content-Encoding": "br"}, says="Content-Encoding"),
    # Wrong types
    wrong("stream", "yes"),
    wrong("stream", 1),
    wrong("stream_options", [], OPENAI),
    wrong("stream_options", True, OPENAI),
    wrong("model", 5),
    wrong("model", ["fake-model"]),
    wrong("n", "x"),
    wrong("n", True),
    wrong("n", 1.5),
    wrong("best_of", "2"),
    wrong("n_cmpl", [1]),
    wrong("max_tokens", "many"),
    wrong("max_tokens", -1),
    wrong("max_tokens", True),
    wrong("max_completion_tokens", 1.5),
    wrong("max_output_tokens", -1),
    wrong("messages", "hi", TALKS),
    wrong("messages", [], TALKS),
    wrong("messages", {"role": "user"}, TALKS),
    wrong("messages", None, TALKS),
    wrong("input", [], LISTS),
    wrong("input", "", LISTS),
    wrong("input", {"role": "user"}, LISTS),
    wrong("input", 5, LISTS),
    wrong("prompt", None, ONE_TEXT),
    Bad("no messages", 400, "invalid_request", EMPTY, "messages", routes=TALKS, says="missing"),
    Bad("no prompt", 400, "invalid_request", b'{"messages": [{}]}', "prompt", routes=ONE_TEXT, says="missing"),
    Bad("no input", 400, "invalid_request", EMPTY, "input", routes=LISTS, says="missing"),
    # More than one sequence
    several("n", 4),
    several("n", 0),
    several("best_of", 2),
    several("n_cmpl", 3),
    several("use_beam_search", True),
    several("background", True),
    several("background", "yes"),
    several("prompt", ["one", "two"], ONE_TEXT),
    several("prompt", [[1, 2], [3, 4]], ONE_TEXT),
    several("prompt", ["one", [1, 2]], ONE_TEXT),
    several("prompt", [{"prompt_string": "a"}, {"prompt_string": "b"}], ONE_TEXT),
    Bad(
        "last n counts", 400, "one_sequence_only", b'{"messages":[{}],"input":"x","prompt":"x","n":1,"\\u006e":4}', "n"
    ),
    # Not here
    Bad("unknown model", 404, "model_not_found", {"model": "gpt-9"}, "model", says="fake-model"),
    Bad("empty model", 404, "model_not_found", {"model": ""}, "model"),
    # Keys
    key("no key", 401, "missing", {}, "no seat key"),
    key("empty key", 401, "missing", {"Authorization": "Bearer "}),
    key("no scheme", 401, "missing", {"Authorization": key_of("a")}, "Bearer KEY"),
    key("basic", 401, "missing", {"Authorization": "Basic YTpi"}),
    key("bad key", 401, "unknown", {"Authorization": "Bearer moe-wrong"}, "not known here"),
    key("bad x-api-key", 401, "unknown", {"x-api-key": "moe-wrong"}),
    key("key of an admin", 401, "unknown", {"x-api-key": ADMIN_TOKEN}, "admin token"),
    key("key of the engine", 401, "unknown", {"x-api-key": ENGINE_KEY}),
    key("long key", 401, "unknown", {"x-api-key": "k" * 5000}),
    key("disabled seat", 403, "disabled", {"x-api-key": key_of("d")}, "seat d is disabled"),
    key("expired seat", 403, "expired", {"x-api-key": key_of("e")}, "seat e expired"),
]


@pytest.mark.parametrize("bad", TABLE, ids=lambda bad: bad.id)
async def test_bad_input(bad: Bad) -> None:
    async with running(seats=seats_toml(disabled="d", expired="e")) as gateway:
        for path in bad.routes:
            await _is_refused(gateway, path, bad)
        await gateway.idle()
        assert gateway.engine.stats.requests == 0
        assert not [line for line in gateway.log if line["event"] == "request.failed"]


async def _is_refused(gateway: Running, path: str, bad: Bad) -> None:
    body = bad.body if isinstance(bad.body, bytes) else ask(path) | bad.body
    answer = await exchange(gateway, post(body, path=path, seat=bad.seat, headers=bad.headers))
    said = await refused(path, answer, gateway, bad.status, bad.code)
    assert said.param == (None if path == MESSAGES else bad.param), path
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
    assert bad.says in said.message, path
    assert len(said.message) < 500
    assert (await line_of(gateway, answer))["word"] == "refused"


ODD_ITEMS = [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]


@ROUTES
@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "best_of": 1, "n_cmpl": 1},
        {"n": None, "stream": None, "stream_options": None, "model": None, "max_tokens": None},
        {"use_beam_search": False, "background": False},
        {"prompt": [1, 2, 3], "unknown": {"a": [1]}},
        {"prompt": ["one"], "messages": ODD_ITEMS, "input": ODD_ITEMS, "system": None, "instructions": 5, "tools": 0},
        {"prompt": [[1, 2]], "max_tokens": 0, "messages": [{}, {"role": 5, "content": {"a": 1}}], "input": [1, None]},
        {"prompt_cache_key": "\ud83d", "metadata": {"\udc00": "\ud83d"}, "tools": [{"type": "\ud83d"}]},
        {"seed": 2**64, "temperature": 1e-300, "metadata": "x", "tools": [None, {"type": 5}, "f"]},
    ],
)
async def test_what_looks_odd_but_is_one_sequence_is_served(path: str, fields: dict[str, Any]) -> None:
    async with running() as gateway:
        answer = await exchange(gateway, post(ask(path) | {LIMIT[path]: 3} | fields, path=path))
        assert forms.whole(path, answer)
        assert gateway.engine.stats.peak_sequences == 1


@ROUTES
async def test_an_answer_of_any_length_may_be_asked_for(path: str) -> None:
    body = json.dumps(ask(path, "\ud83d", max_tokens=10**400)).encode()
    async with running({"context_tokens": 99}, context_tokens=99) as gateway:
        assert forms.whole(path, await exchange(gateway, post(body, path=path)))


@pytest.mark.parametrize("path", [*PATHS, COUNT])
async def test_a_body_that_does_not_arrive_is_a_408_that_heals(path: str) -> None:
    request = head(path, "a", {"Content-Length": "5000"}) + b"{"
    async with running(limits={"body_timeout_s": 0.1}) as gateway:
        answer = await exchange(gateway, request)
    assert answer.status == 408
    assert forms.error(path, answer).code in ("body_timeout", None)
    assert "x-should-retry" not in answer.headers
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", [*PATHS, COUNT])
async def test_a_full_body_budget_is_a_503_that_heals(path: str) -> None:
    request = head(path, "a", {"Content-Length": "5000"}) + b"{"
    limits = {"body_budget_bytes": 8000, "body_max_bytes": 6000}
    async with running(limits=limits) as gateway, connect(gateway, request) as first:
        await gateway.until(lambda: gateway.core.bodies.used_bytes == 5000)
        answer = await exchange(gateway, request.replace(key_of("a").encode(), key_of("b").encode()))
        assert answer.status == 503
        assert forms.error(path, answer).code in ("bodies_full", None)
        assert 10 <= int(answer.headers["retry-after"]) <= 59
        assert "x-should-retry" not in answer.headers
        assert answer.headers["x-request-id"]
        first.vanish()
        await gateway.until(lambda: gateway.core.bodies.used_bytes == 0)
        await gateway.idle()
