"""The gateway's own socket: the caller is who the kernel says, root may name another, and nobody else may."""

from __future__ import annotations

import asyncio

import pytest
from starlette.testclient import TestClient

from gateway.actions import Actions
from gateway.overlay import Mode
from gateway.routes import control_app
from tests.gateway.forms import CHAT
from tests.gateway.running import Running, key_of, running
from tests.gateway.wire import call


def asked(site: Running, user: str, path: str, method: str = "POST") -> tuple[int, dict[str, object]]:
    client = TestClient(control_app(site.core), client=(user, 1000))
    answer = client.request(method, path)
    return answer.status_code, answer.json() if answer.headers["content-type"] == "application/json" else {}


@pytest.mark.anyio
async def test_an_action_is_done_and_said_and_its_caller_noted() -> None:
    async with running() as site:
        status, body = asked(site, "ana", "/pause")
        assert (status, body["ok"], site.core.mode) == (200, True, Mode.PAUSED)
        assert site.core.events.recent(1)[0].who == "ana"
        assert asked(site, "ana", "/disable-seat?seat=a")[0] == 200
        assert asked(site, "ana", "/disable-seat?seat=nobody")[0] == 409
        assert asked(site, "ana", "/disable-seat")[0] == 400
        assert asked(site, "ana", "/drain", "GET")[0] == 405
        assert asked(site, "ana", "/reload")[1] == {"reloaded": True, "seats": 5, "off": ["a"]}
        told = site.core.events.recent()
        assert asked(site, "ana", "/reload?edited=1")[1] == {"reloaded": True, "seats": 5, "off": ["a"]}
        assert site.core.events.recent() == told
        asked(site, "ana", "/enable-seat?seat=a")
        assert asked(site, "ana", "/reload")[1] == {"reloaded": True, "seats": 5}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("user", "claimed", "noted"),
    [("root", "carla", "carla"), ("root", "", "root"), ("root", "a b\n", "root"), ("ana", "carla", "ana")],
)
async def test_only_root_may_name_the_person_behind_it(user: str, claimed: str, noted: str) -> None:
    async with running() as site:
        client = TestClient(control_app(site.core), client=(user, 0))
        client.post("/pause", params={"who": claimed})
        assert site.core.events.recent(1)[0].who == noted


@pytest.mark.anyio
async def test_the_events_are_there_to_read() -> None:
    async with running() as site:
        for _ in range(3):
            asked(site, "ana", "/pause")
        status, body = asked(site, "ana", "/events", "GET")
        events = body["events"]
        assert isinstance(events, list)
        assert (status, len(events)) == (200, 3)


@pytest.mark.anyio
async def test_a_seat_that_is_switched_off_while_its_body_comes_is_refused() -> None:
    async with running() as site:
        reader, writer = await asyncio.open_connection(site.host, site.port)
        body = b'{"model": "fake-model", "messages": [{"role": "user", "content": "x"}]}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key_of('a')}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body[:-1])
        await site.until(lambda: bool(site.core.live))
        await Actions(site.core).disable_seat("a", "ana")
        writer.write(body[-1:])
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"switched off" in answer
        await site.idle()


@pytest.mark.anyio
@pytest.mark.parametrize("stream", [True, False])
async def test_the_daemon_is_told_which_start_of_the_engine_answered_somebody_to_the_end(stream: bool) -> None:
    async with running({"reject_status": 500}) as site:
        for knobs in ({}, {"reject_status": None, "cut_after": 3}):
            site.set_knobs(**knobs)
            await call(site, CHAT, stream=stream)
            await site.idle()
            assert asked(site, "ana", "/live", "GET")[1]["served"] == ""
        site.set_knobs(cut_after=None)
        assert (await call(site, CHAT, stream=stream)).status == 200
        await site.idle()
        assert asked(site, "ana", "/live", "GET")[1]["served"] == "static"
