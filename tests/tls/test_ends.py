"""Ends that are none: clients that leave and engines that die, through each proxy."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.gateway.running import key_of, times_left
from tests.gateway.wire import Wire
from tests.tls.conftest import Front, Fronted, ask, fronted_by
from tests.tls.forms import EVERY_FORM, SERVED, Form
from tests.tls.proxies import Certificate, haproxy

pytestmark = pytest.mark.anyio

ALLOWED_S = 0.5
LATE: dict[str, Any] = {"early_response_s": 30.0}
"""No 200 while a test lasts: a proxy that waits for headers is the harder case."""


def killed(client: Wire) -> None:
    """The process is gone, and the kernel closes for it."""
    client.vanish()


def says_goodbye(client: Wire) -> None:
    """It ends TLS and waits for the other side to do the same, as asyncio does for up to 30 s."""
    client.writer.close()


def closed(client: Wire) -> None:
    """It ends TLS and closes, as most programs do."""
    says_goodbye(client)
    asyncio.get_running_loop().call_soon(client.vanish)


Gone = Callable[[Wire], None]
HOW = pytest.mark.parametrize(
    ("how", "early"),
    [
        pytest.param(killed, True, id="killed, headers out"),
        pytest.param(killed, False, id="killed, no headers yet"),
        pytest.param(closed, False, id="closed, no headers yet"),
    ],
)


@pytest.fixture
def left_at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When places were left, monotonic seconds."""
    return times_left(monkeypatch)


async def leaves(front: Front, client: Wire, how: Gone, left_at: list[float], where: str, engine: bool = True) -> None:
    """Let the client go away; the gateway must free its place, and the engine stop, in time."""
    gateway = front.gateway
    gone_s = time.monotonic()
    how(client)
    await gateway.until(lambda: len(left_at) > 0, 2.0)
    took = {"place_ms": left_at[0] - gone_s}
    if engine:
        await gateway.until(lambda: gateway.engine.stats.aborted == 1, 2.0)
        took["engine_ms"] = gateway.engine.stats.last_aborts[-1]["at_s"] - gone_s
    print("MEASURED", front.proxy.name, "gone", where, {name: round(1000 * s, 2) for name, s in took.items()})
    assert max(took.values()) < ALLOWED_S
    await gateway.until(lambda: len(gateway.done()) == 1)
    assert gateway.done()[0]["word"] == "client_gone"


@HOW
@EVERY_FORM
async def test_a_client_that_leaves_the_line(
    fronted: Fronted, form: Form, how: Gone, early: bool, left_at: list[float]
) -> None:
    limits = {"early_response_s": 0.05} if early else LATE
    async with (
        fronted({"silent_s": 30.0}, streams=1, limits=limits) as front,
        front.connect(ask(form, "b"), direct=True),
    ):
        gateway = front.gateway
        await gateway.until(lambda: gateway.engine.stats.running == 1)
        async with front.connect(ask(form)) as client:
            await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
            if early:
                assert (await client.head())[0] == 200
            await leaves(front, client, how, left_at, "in line", engine=False)
        assert gateway.engine.stats.requests == 1


@HOW
@EVERY_FORM
async def test_a_client_that_leaves_in_a_silent_prefill(
    fronted: Fronted, form: Form, how: Gone, early: bool, left_at: list[float]
) -> None:
    limits = {"early_response_s": 0.05} if early else LATE
    async with fronted({"silent_s": 30.0}, limits=limits) as front, front.connect(ask(form)) as client:
        await front.gateway.until(lambda: front.gateway.engine.stats.running == 1)
        if early:
            assert (await client.head())[0] == 200
        await leaves(front, client, how, left_at, "in prefill")


@EVERY_FORM
@pytest.mark.parametrize("how", [killed, closed])
async def test_a_client_that_leaves_in_the_middle(
    fronted: Fronted, form: Form, how: Gone, left_at: list[float]
) -> None:
    knobs = {"reply_tokens": 200_000, "time_scale": 1.0}
    async with fronted(knobs) as front, front.connect(ask(form, tokens=200_000)) as client:
        await client.head()
        for _ in range(5):
            assert await client.chunk()
        await leaves(front, client, how, left_at, "in decode")


@EVERY_FORM
async def test_a_client_that_leaves_an_answer_that_is_no_stream(
    fronted: Fronted, form: Form, left_at: list[float]
) -> None:
    async with fronted({"silent_s": 30.0}) as front, front.connect(ask(form, stream=False)) as client:
        await front.gateway.until(lambda: front.gateway.engine.stats.running == 1)
        await leaves(front, client, killed, left_at, "not streamed")


@pytest.mark.parametrize("early", [True, False])
async def test_haproxy_takes_the_end_of_tls_for_leaving(
    certificate: Certificate, early: bool, left_at: list[float]
) -> None:
    """nginx does not: it finds out once the client closes the connection too. The page says so."""
    limits = {"early_response_s": 0.05} if early else LATE
    async with (
        fronted_by(haproxy, certificate)({"silent_s": 30.0}, limits=limits) as front,
        front.connect(ask(SERVED[0])) as client,
    ):
        await front.gateway.until(lambda: front.gateway.engine.stats.running == 1)
        if early:
            await client.head()
        await leaves(front, client, says_goodbye, left_at, "end of TLS alone")


async def test_without_its_option_haproxy_does_not_pass_it_on(certificate: Certificate) -> None:
    def spoilt(text: str) -> str:
        assert text.count("    option abortonclose\n") == 1
        return text.replace("    option abortonclose\n", "")

    async with (
        fronted_by(partial(haproxy, change=spoilt), certificate)({"silent_s": 30.0}, limits=LATE) as front,
        front.connect(ask(SERVED[0])) as client,
    ):
        await front.gateway.until(lambda: front.gateway.engine.stats.running == 1)
        killed(client)
        await asyncio.sleep(1.5 * ALLOWED_S)
        assert front.gateway.engine.stats.aborted == 0


@EVERY_FORM
@pytest.mark.parametrize("knobs", [{"cut_after": 5}, {"truncate_after": 5}, {"error_in_stream": 5}], ids=str)
async def test_an_engine_that_dies_is_no_end(fronted: Fronted, form: Form, knobs: dict[str, object]) -> None:
    async with fronted(knobs) as front:
        answer = await front.exchange(ask(form))
        await front.gateway.idle()
    assert answer.status == 200
    assert not answer.whole
    assert form.texts(answer.body) == 5
    assert b"error" in answer.events()[-1]
    assert b"[DONE]" not in answer.body
    assert front.gateway.done()[0]["word"] in ("engine_lost", "engine_error")


async def test_an_ordinary_client_sees_that_it_is_no_end(fronted: Fronted) -> None:
    def read(port: int, context: ssl.SSLContext) -> None:
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)
        try:
            connection.request("POST", SERVED[0].path, _json(SERVED[0]), {"Authorization": f"Bearer {key_of('a')}"})
            connection.getresponse().read()
        finally:
            connection.close()

    async with fronted({"cut_after": 5}) as front:
        context = front.context
        assert context is not None
        context.check_hostname = False  # it is asked for by its address
        with pytest.raises(http.client.IncompleteRead):
            await asyncio.to_thread(read, front.proxy.port, context)


def _json(form: Form) -> bytes:
    return ask(form).split(b"\r\n\r\n", 1)[1]


async def test_an_engine_that_is_gone_is_a_refusal_in_json(fronted: Fronted) -> None:
    async with fronted() as front:
        front.gateway.engine.die()
        answer = await front.exchange(ask(SERVED[0]))
    assert answer.status == 503
    assert answer.error()["code"] == "engine_lost"
    assert 1 <= int(answer.headers["retry-after"]) <= 59
