"""The bad input list: what is sent, and the answer it gets, on both inference routes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.gateway.running import ADMIN_TOKEN, ENGINE_KEY, key_of, running, seats_toml
from tests.gateway.wire import CHAT, COMPLETIONS, ask, connect, exchange, head, post

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
BOTH = (CHAT, COMPLETIONS)


@dataclass(frozen=True, slots=True)
class Bad:
    """`body` is bytes, or fields merged into a good request of the route. `type` is the error's type."""

    id: str
    status: int
    code: str
    body: Any = field(default_factory=dict)
    param: str | None = None
    type: str = "invalid_request_error"
    routes: tuple[str, ...] = BOTH
    seat: str | None = "a"
    headers: Mapping[str, str] = field(default_factory=dict)
    says: str = ""


def several(name: str, value: Any, routes: tuple[str, ...] = BOTH) -> Bad:
    return Bad(
        f"{name}={json.dumps(value)[:20]}", 400, "one_sequence_only", {name: value}, name, routes=routes, says=name
    )


def wrong(name: str, value: Any, routes: tuple[str, ...] = BOTH) -> Bad:
    return Bad(
        f"{name}={json.dumps(value)[:20]}", 400, "invalid_request", {name: value}, name, routes=routes, says=name
    )


def key(id: str, status: int, code: str, headers: Mapping[str, str], says: str = "") -> Bad:
    kind = "authentication_error" if status == 401 else "permission_error"
    return Bad(id, status, code, seat=None, headers=headers, type=kind, says=says)


ONE_CHAT, ONE_TEXT = (CHAT,), (COMPLETIONS,)

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
    # Size and coding
    Bad("70 MB body", 413, "body_too_large", b'{"a":"' + b"x" * 70 * MIB + b'"}', says="64 MiB"),
    Bad("gzip", 415, "content_encoding", headers={"Content-Encoding": "gzip"}, says="Content-Encoding"),
    Bad("br", 415, "content_encoding", headers={"Content-Encoding": "br"}, says="Content-Encoding"),
    # Wrong types
    wrong("stream", "yes"),
    wrong("stream", 1),
    wrong("stream_options", []),
    wrong("stream_options", True),
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
    wrong("messages", "hi", ONE_CHAT),
    wrong("messages", [], ONE_CHAT),
    wrong("messages", {"role": "user"}, ONE_CHAT),
    wrong("messages", None, ONE_CHAT),
    wrong("prompt", None, ONE_TEXT),
    Bad("no messages", 400, "invalid_request", b'{"prompt": "hi"}', "messages", routes=ONE_CHAT, says="missing"),
    Bad("no prompt", 400, "invalid_request", b'{"messages": [{}]}', "prompt", routes=ONE_TEXT, says="missing"),
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
    Bad("last n counts", 400, "one_sequence_only", b'{"messages":[{}],"prompt":"x","n":1,"\\u006e":4}', "n"),
    # Not here
    Bad("unknown model", 404, "model_not_found", {"model": "gpt-9"}, "model", "not_found_error", says="fake-model"),
    Bad("empty model", 404, "model_not_found", {"model": ""}, "model", "not_found_error"),
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
CASES = [pytest.param(path, bad, id=f"{bad.id} {path[4:8]}") for bad in TABLE for path in bad.routes]


@pytest.mark.parametrize(("path", "bad"), CASES)
async def test_bad_input(path: str, bad: Bad) -> None:
    body = bad.body if isinstance(bad.body, bytes) else ask(path) | bad.body
    async with running(seats=seats_toml(disabled="d", expired="e")) as gateway:
        answer = await exchange(gateway, post(body, path=path, seat=bad.seat, headers=bad.headers))
        error = answer.error()
        assert (answer.status, error["code"], error["param"], error["type"]) == (
            bad.status,
            bad.code,
            bad.param,
            bad.type,
        )
        assert answer.whole
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])
        assert bad.says in error["message"]
        assert len(error["message"]) < 500
        await gateway.idle()
        assert gateway.engine.stats.requests == 0
        line = gateway.done()[0]
        assert (line["status"], line["code"], line["word"]) == (bad.status, bad.code, "refused")
        assert line["request_id"] == answer.headers["x-request-id"]
        assert not [line for line in gateway.log if line["event"] == "request.failed"]


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "best_of": 1, "n_cmpl": 1},
        {"n": None, "stream": None, "stream_options": None, "model": None, "max_tokens": None},
        {"use_beam_search": False, "background": False},
        {"prompt": [1, 2, 3], "unknown": {"a": [1]}},
        {"prompt": ["one"], "messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}]},
        {"prompt": [[1, 2]], "max_tokens": 0},
        {"seed": 2**64, "temperature": 1e-300},
    ],
)
async def test_what_looks_odd_but_is_one_sequence_is_served(path: str, fields: dict[str, Any]) -> None:
    async with running() as gateway:
        answer = await exchange(gateway, post(ask(path) | {"max_tokens": 3} | fields, path=path))
        assert answer.status == 200
        assert gateway.engine.stats.peak_sequences == 1


async def test_a_body_that_does_not_arrive_is_a_408_that_heals() -> None:
    request = head(CHAT, "a", {"Content-Length": "5000"}) + b"{"
    async with running(limits={"body_timeout_s": 0.2}) as gateway:
        answer = await exchange(gateway, request)
    assert (answer.status, answer.error()["code"]) == (408, "body_timeout")
    assert "x-should-retry" not in answer.headers
    assert answer.headers["x-request-id"]


async def test_a_full_body_budget_is_a_503_that_heals() -> None:
    request = head(CHAT, "a", {"Content-Length": "5000"}) + b"{"
    limits = {"body_budget_bytes": 8000, "body_max_bytes": 6000}
    async with running(limits=limits) as gateway, connect(gateway, request) as first:
        await gateway.until(lambda: gateway.core.bodies.used_bytes == 5000)
        answer = await exchange(gateway, request.replace(key_of("a").encode(), key_of("b").encode()))
        assert (answer.status, answer.error()["code"]) == (503, "bodies_full")
        assert 10 <= int(answer.headers["retry-after"]) <= 59
        assert "x-should-retry" not in answer.headers
        assert answer.headers["x-request-id"]
        first.vanish()
        await gateway.idle()
