"""gateway.routes on the wire: what is served where, to whom, in each phase of the engine, and what is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.state import BoxState, Cause, Phase
from tests.fake_engine.asking import MESSAGES, RESPONSES
from tests.gateway.running import ADMIN_TOKEN, Running, key_of, running, seats_toml
from tests.gateway.wire import CHAT, COMPLETIONS, Answer, Wire, chat, connect, exchange, head, post

pytestmark = pytest.mark.anyio

POSTED = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, MESSAGES + "/count_tokens", RESPONSES + "/input_tokens")


async def get(gateway: Running, path: str, seat: str | None = None, method: str = "GET", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await exchange(gateway, head(path, seat, named, method=method))


def set_phase(gateway: Running, phase: Phase, **more: Any) -> None:
    state = gateway.core.engine_state.model_copy(update={"phase": phase, **more})
    engine = gateway.core.engine if phase is Phase.READY else None
    gateway.core.engine_changed(BoxState(revision=2, engine=state), engine)


# Models


async def test_models_are_listed_for_a_seat() -> None:
    async with running() as gateway:
        answer = await get(gateway, "/v1/models", "a")
        other = await get(gateway, "/v1/models", x_api_key=key_of("b"))
    assert answer.status == other.status == 200
    [row] = answer.json()["data"]
    assert (row["id"], row["object"], row["max_model_len"]) == ("fake-model", "model", 262_144)


VERSION = {"anthropic_version": "2023-06-01"}


async def test_the_form_of_the_list_follows_the_client() -> None:
    async with running(models=("fake-model", "org/other")) as gateway:
        plain, anthropic = await get(gateway, "/v1/models", "a"), await get(gateway, "/v1/models", "a", **VERSION)
        for path in (
            "/v1/models/fake-model",
            "/v1/models/org/other",
            "/v1/models/org%2Fother",
            "/v1/models/fake-model?x=1",
        ):
            row, other = await get(gateway, path, "a"), await get(gateway, path, x_api_key=key_of("a"), **VERSION)
            assert row.json() in plain.json()["data"]
            assert other.json() in anthropic.json()["data"]
    assert plain.json()["object"] == "list"
    assert anthropic.json()["has_more"] is False
    assert anthropic.json()["data"][0]["max_input_tokens"] == 262_144


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/models/x", "/v1/models/fake-model/", "/v1/models/FAKE-MODEL"])
async def test_a_model_that_is_not_here_is_a_404_in_the_clients_form(path: str) -> None:
    async with running() as gateway:
        plain, anthropic = await get(gateway, path, "a"), await get(gateway, path, "a", **VERSION)
        nobody = await get(gateway, path, **VERSION)
    assert (plain.status, plain.error()["code"], plain.error()["type"]) == (404, "model_not_found", "not_found_error")
    assert (anthropic.status, anthropic.json()["error"]["type"]) == (404, "not_found_error")
    assert "fake-model" in anthropic.json()["error"]["message"]
    assert (nobody.status, nobody.json()["error"]["type"]) == (401, "authentication_error")


async def test_an_agent_that_asks_whether_anybody_is_there_is_answered_and_a_person_gets_the_page() -> None:
    async with running() as gateway:
        for path in ("/", "/api/hello", "/?x=1"):
            async with connect(gateway, head(path, None, method="HEAD")) as client:
                status, headers = await client.head()
                assert status == 200
                assert headers["x-request-id"]
            page = await get(gateway, path)
            assert (page.status, page.headers["location"]) == (307, "/admin")
        assert (await get(gateway, "/", method="POST")).status == 405


@pytest.mark.parametrize(
    ("path", "headers", "anthropic"),
    [
        ("/v1/messages/batches", {}, True),
        ("/v1/messages", {}, True),
        ("/v1/messages/count_tokens", {}, True),
        ("/v1/complete", VERSION, True),
        ("/nothing", VERSION, True),
        ("/v1/models/x", VERSION, True),
        ("/nothing", {}, False),
        ("/v1/responses", {}, False),
        ("/v1/responses/resp_1", {}, False),
        ("/v1/chat/completions", {}, False),
    ],
)
async def test_an_error_has_the_form_of_its_path_or_of_the_client(
    path: str, headers: dict[str, str], anthropic: bool
) -> None:
    async with running() as gateway:
        answer = await get(gateway, path, "a", **headers)
    assert answer.status in (404, 405)
    assert answer.headers["x-should-retry"] == "false"
    body = answer.json()
    assert (body.get("type") == "error") is anthropic
    assert set(body["error"]) == ({"type", "message"} if anthropic else {"message", "type", "param", "code"})


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [({}, 401, "missing"), ({"x_api_key": "moe-no"}, 401, "unknown"), ({"x_api_key": key_of("d")}, 403, "disabled")],
)
async def test_models_need_a_key(headers: dict[str, str], status: int, code: str) -> None:
    async with running(seats=seats_toml(disabled="d")) as gateway:
        answer = await get(gateway, "/v1/models", **headers)
    assert (answer.status, answer.error()["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-request-id"]


# Health


@pytest.mark.parametrize("phase", list(Phase))
async def test_health_ready_and_requests_in_each_phase(phase: Phase) -> None:
    async with running() as gateway:
        cause = Cause(id="x", title="it ran out of memory", remedy="buy some")
        set_phase(gateway, phase, step="loading 40 %", cause=cause, retry_at_s=gateway.core.now() + 20)
        health, ready = await get(gateway, "/health"), await get(gateway, "/ready")
        models, asked = await get(gateway, "/v1/models", "a"), await exchange(gateway, post(chat(stream=True)))
    assert (health.status, health.json()) == (200, {"status": "ok", "engine": str(phase)})
    assert models.status == 200
    if phase is Phase.READY:
        assert (ready.status, ready.json(), asked.status) == (200, {"status": "ready"}, 200)
        return
    for answer in (ready, asked):
        assert (answer.status, answer.error()["code"]) == (503, "engine_not_ready")
        assert answer.headers["x-moe-reject-reason"] == "engine_not_ready"
        assert 10 <= int(answer.headers["retry-after"]) <= 59
        assert "it ran out of memory" in answer.error()["message"]
        assert answer.headers["x-request-id"]


async def test_ready_says_when_the_gateway_drains() -> None:
    async with running() as gateway:
        gateway.core.drain()
        ready, health = await get(gateway, "/ready"), await get(gateway, "/health")
    assert (ready.status, ready.error()["code"], health.status) == (503, "draining", 200)


# Metrics


ROOT = {"authorization": f"Bearer {ADMIN_TOKEN}"}


@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [
        ({}, {}, 200),
        ({}, {"x_forwarded_for": "127.0.0.1"}, 401),
        ({}, {"x_forwarded_for": "203.0.113.9"}, 401),
        ({}, {"x_forwarded_for": "203.0.113.9"} | ROOT, 200),
        ({}, {"forwarded": "for=127.0.0.1"}, 401),
        ({}, {"x_real_ip": "127.0.0.1"}, 401),
        ({}, {"via": "1.1 proxy"}, 401),
        ({}, {"Host": "LOCALHOST:8080"}, 200),
        ({}, {"Host": "127.1.2.3:8080"}, 200),
        ({}, {"Host": "[::1]:8080"}, 200),
        ({}, {"Host": "box"}, 401),
        ({}, {"Host": "localhost.evil.example"}, 401),
        ({}, {"Host": "192.168.1.5:8080"}, 401),
        ({}, {"Host": "[::1"}, 200),
        ({}, {"Host": "["}, 401),
        ({}, {"Host": ""}, 401),
        ({}, {"Host": "box"} | ROOT, 200),
        ({"public_url": "https://box"}, {}, 401),
        ({"public_url": "https://box"}, {"authorization": f"Bearer {key_of('a')}"}, 401),
        ({"public_url": "https://box"}, ROOT, 200),
        ({"trusted_proxies": ("127.0.0.1",)}, {}, 401),
        ({"trusted_proxies": ("127.0.0.1",)}, {"x_forwarded_for": "127.0.0.1"}, 200),
        ({"trusted_proxies": ("127.0.0.1",)}, {"x_forwarded_for": "127.0.0.1, 203.0.113.9"}, 401),
        ({"trusted_proxies": ("127.0.0.1",)}, {"x_forwarded_for": "nobody"}, 401),
        ({"trusted_proxies": ("127.0.0.1",)}, {"x_forwarded_for": ""}, 401),
    ],
)
async def test_metrics_are_for_this_machine_and_for_admins(
    settings: dict[str, Any], headers: Mapping[str, str], status: int
) -> None:
    async with running(**settings) as gateway:
        answer = await get(gateway, "/metrics", **{"Host": "localhost"} | dict(headers))
    assert answer.status == status
    assert (b"moe_" in answer.body) == (status == 200)


async def test_a_proxy_that_adds_a_second_header_line_is_believed_and_the_client_is_not() -> None:
    lines = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
    lines += b"X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n"
    async with running(trusted_proxies=("127.0.0.1",)) as gateway:
        assert (await exchange(gateway, lines)).status == 401


# Everything else


ENGINE_PATHS = (
    "/slots", "/props", "/invocations", "/tokenize", "/detokenize", "/v1/embeddings", "/embeddings", "/docs",
    "/openapi.json", "/redoc", "/reset_prefix_cache", "/sleep", "/wake_up", "/completion", "/infill", "/apply-template",
    "/lora-adapters", "/v1/rerank", "/v1/score", "/pooling", "/server_info", "/load", "/version", "/collective_rpc",
    "/v1/audio/transcriptions", "/v1/chat/completions/input_tokens", "/ping", "/v1/responses/", "/v1/responses/x",
    "/v1/chat/completions/render", "/v1/responses/x/cancel", "/api/hello/", "/api", "/v1/complete",
    "/v1/chat//completions", "/V1/chat/completions", "/chat/completions", "/v1/load_lora_adapter", "/models/load",
    "/../v1/models", "/v1/model", "/health/", "/_fake/stats",
)  # fmt: skip


@pytest.mark.parametrize("path", ENGINE_PATHS)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_else_an_engine_serves_is_not_served(path: str, method: str) -> None:
    async with running() as gateway:
        answer = await get(gateway, path, "a", method=method)
        assert (answer.status, answer.error()["code"]) == (404, "unknown_path")
        assert answer.headers["x-should-retry"] == "false"
        assert gateway.engine.stats.requests == 0


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ready", "/metrics"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_the_plain_routes_are_read_only(path: str, method: str) -> None:
    async with running() as gateway:
        answer = await get(gateway, path, "a", method=method)
    assert (answer.status, answer.error()["code"]) == (405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]
    assert (answer.headers["x-should-retry"], answer.error()["type"]) == ("false", "invalid_request_error")
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
async def test_a_wrong_method_is_a_405(path: str, method: str) -> None:
    async with running() as gateway, connect(gateway, head(path, "a", method=method)) as client:
        status, headers = await client.head()
        assert (status, headers["allow"], headers["x-should-retry"]) == (405, "POST", "false")
        assert headers["x-request-id"]
        if method != "HEAD":
            body, whole = await client.rest(headers)
            assert whole
            error = json.loads(body)["error"]
            assert error["type"] == "invalid_request_error"
            assert error.get("code", "method_not_allowed") == "method_not_allowed"
            assert "Use POST" in error["message"]


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/chat", "/v1/completions/", CHAT + "/x", "/%00", "/a b"[:2]])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
@pytest.mark.parametrize("host", ["box", "[", "[::1", ""])
async def test_an_unknown_path_is_a_404(path: str, method: str, host: str) -> None:
    request = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nX-Request-Id: mine\r\n\r\n".encode()
    async with running() as gateway, connect(gateway, request) as client:
        status, headers = await client.head()
        assert (status, headers["x-should-retry"], headers["x-request-id"]) == (404, "false", "mine")
        if method != "HEAD":
            await _error(client, headers, "unknown_path")


async def _error(client: Wire, headers: dict[str, str], code: str) -> None:
    body, whole = await client.rest(headers)
    assert whole
    error = json.loads(body)["error"]
    assert (error["code"], error["param"]) == (code, None)
    assert error["type"] in ("invalid_request_error", "not_found_error")
