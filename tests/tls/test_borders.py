"""What the proxies must leave to the gateway: large bodies, refusals, and who asks."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import pytest
from starlette.requests import Request

from gateway import routes
from tests.gateway.running import ADMIN_TOKEN
from tests.gateway.wire import Answer, Wire, head
from tests.tls.conftest import Front, Fronted, ask, fronted_by
from tests.tls.forms import EVERY_FORM, SERVED, Form
from tests.tls.proxies import STARTS, Certificate
from tests.tls.snippets import GATEWAY, NAME, filled, snippet

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
ELSEWHERE = "127.0.0.7"
"""Another address of this machine: a client that is not the proxy."""


@EVERY_FORM
async def test_a_large_body_passes(fronted: Fronted, form: Form) -> None:
    padding = "x" * (8 * MIB)
    knobs = {"echo_body": 1, "context_tokens": 4 * MIB}
    async with fronted(knobs, context_tokens=4 * MIB) as front:
        answer = await front.exchange(ask(form, stream=False, tokens=5, user=padding))
        (echo,) = front.gateway.engine.stats.echoes
    assert answer.status == 200, answer.body
    assert answer.whole
    assert padding.encode() in base64.b64decode(echo["body_b64"])


@asynccontextmanager
async def half_sent(front: Front, request: bytes, sent: int) -> AsyncIterator[Wire]:
    """A connection on which only `sent` bytes of a request have gone out."""
    async with front.connect() as wire:
        await wire.send(request[:sent])
        yield wire


async def test_a_refusal_comes_before_the_body_was_sent(fronted: Fronted) -> None:
    request = ask(SERVED[0], None, user="x" * (8 * MIB))
    async with fronted() as front, half_sent(front, request, MIB) as wire:
        answer = await wire.answer()
    assert answer.status == 401
    assert answer.error()["message"]


async def test_a_refusal_is_read_by_who_sends_all_first(fronted: Fronted) -> None:
    async with fronted() as front:
        answer = await front.exchange(ask(SERVED[0], None, user="x" * (2 * MIB)))
    assert answer.status == 401


async def test_the_limit_of_bodies_is_the_gateways(fronted: Fronted) -> None:
    sizes = {"Host": NAME, "Content-Type": "application/json", "Content-Length": str(65 * MIB)}
    async with fronted() as front:
        answer = await front.exchange(head(SERVED[0].path, "a", sizes) + b"{")
    assert answer.status == 413
    assert "64 MiB" in answer.error()["message"]


async def test_a_full_box_says_so_in_its_own_words(fronted: Fronted) -> None:
    form = SERVED[0]
    async with (
        fronted({"silent_s": 30.0}, streams=1, admission={"queue_max": 0}) as front,
        front.connect(ask(form, "b")),
    ):
        await front.gateway.until(lambda: front.gateway.engine.stats.running == 1)
        answer = await front.exchange(ask(form))
    assert answer.status == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 59
    assert answer.headers["x-moe-reject-reason"] == "queue_full"
    assert answer.error()["code"] == "queue_full"


async def get(
    front: Front, path: str, token: str = "", headers: Mapping[str, str] | None = None, *, direct: bool = False
) -> Answer:
    """GET, perhaps with an admin token, from another address than the proxy's."""
    said = {"Host": NAME, **({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
    return await front.exchange(head(path, None, said, method="GET"), direct=direct, source=ELSEWHERE)


async def test_metrics_and_page_want_a_token(fronted: Fronted) -> None:
    claims = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "X-Real-IP": "127.0.0.1"}
    async with fronted() as front:
        for claim in ({}, claims, claims | {"Host": "127.0.0.1"}):
            assert (await get(front, "/metrics", headers=claim)).status == 401
            assert (await get(front, "/admin/status.json", headers=claim)).status == 401
        assert (await get(front, "/metrics", headers={"Host": "127.0.0.1"}, direct=True)).status == 401
        assert (await get(front, "/metrics", ADMIN_TOKEN)).status == 200
        assert (await get(front, "/admin/status.json", ADMIN_TOKEN)).status == 200


async def test_without_a_public_url_metrics_are_still_closed_to_the_outside(fronted: Fronted) -> None:
    async with fronted(public_url="") as front:
        assert (await get(front, "/metrics")).status == 401
        assert (await get(front, "/metrics", headers={"X-Forwarded-For": "127.0.0.1"})).status == 401


@pytest.mark.parametrize(("network", "wanted"), [("10.0.0.0/8", (403, 403)), ("127.0.0.0/8", (200, 401))])
@pytest.mark.parametrize("name", sorted(STARTS))
async def test_page_and_metrics_can_be_kept_to_a_network(
    name: str, network: str, wanted: tuple[int, int], certificate: Certificate
) -> None:
    start = partial(STARTS[name], change=partial(_kept_to, name, network))
    async with fronted_by(start, certificate)() as front:
        for path in ("/admin", "/%61dmin"):
            assert (await get(front, path)).status == wanted[0]
        for path in ("/admin/status.json", "/metrics", "/m%65trics"):
            assert (await get(front, path)).status == wanted[1]
        assert (await get(front, "/ready")).status == 200


def _kept_to(name: str, network: str, text: str) -> str:
    """The configuration with the page's addition for that network."""
    own = filled(snippet(name, 1), {"10.0.0.0/8": network})
    if name == "haproxy":
        return filled(text, {"    default_backend": own + "    default_backend"})
    gateway = text.partition("proxy_pass http://")[2].partition(";")[0]
    return filled(text, {"    location / {": filled(own, {GATEWAY: gateway}) + "    location / {"})


async def test_the_page_is_entered_with_a_cookie_for_tls_only(fronted: Fronted) -> None:
    form = f"token={ADMIN_TOKEN}".encode()
    said = {"Host": NAME, "Origin": f"https://{NAME}", "Content-Length": str(len(form))}
    said["Content-Type"] = "application/x-www-form-urlencoded"
    async with fronted() as front:
        entered = await front.exchange(head("/admin/login", None, said) + form)
        foreign = said | {"Origin": "https://elsewhere.example"}
        refused = await front.exchange(head("/admin/login", None, foreign) + form)
        cookie = entered.headers["set-cookie"]
        page = await get(front, "/admin", headers={"Cookie": cookie.partition(";")[0]})
    assert entered.status == 303
    assert "; secure" in cookie.lower()
    assert page.status == 200
    assert b"root" in page.body
    assert refused.status == 403


async def test_the_gateway_is_told_who_asks_and_nothing_that_the_client_claims(
    fronted: Fronted, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Request] = []

    def looked_at(request: Request, trusted: tuple[str, ...]) -> bool:
        seen.append(request)
        return False

    monkeypatch.setattr(routes, "_from_loopback", looked_at)
    async with fronted(public_url="") as front:
        await get(front, "/metrics", headers={"X-Forwarded-For": "10.9.9.9", "X-Forwarded-Proto": "http"})
    (request,) = seen
    assert request.client is not None
    assert request.client.host == "127.0.0.1"
    assert request.headers.getlist("x-forwarded-for") == [ELSEWHERE]
    assert request.headers.getlist("x-forwarded-proto") == ["https"]
    assert request.headers.getlist("host") == [NAME]
