"""POST /admin/actions/NAME: only an admin, only from the session's own form, and what was done is said."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.actions import SEAT_ACTIONS, Actions
from gateway.keys import digest_of
from gateway.overlay import Mode
from gateway.pages.admin import COOKIE
from gateway.pages.seat import COOKIE as SEAT_COOKIE
from gateway.pages.sessions import csrf, issue
from gateway.pages.site import cookie_secret
from gateway.seats import AdminName
from tests.gateway.running import ADMIN_TOKEN, Running, key_of, running

JSON = {"accept": "application/json"}
BEARER = {"authorization": f"Bearer {ADMIN_TOKEN}"}
NAMES = ("drain", "pause", "resume", "disable-seat", "enable-seat", "reload", "restart-engine", "start-engine")


@asynccontextmanager
async def browser(site: Running, *, login: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=site.base_url, trust_env=False) as client:
        if login:
            assert (await client.post("/admin/login", data={"token": ADMIN_TOKEN})).status_code == 303
        yield client


def value(site: Running, client: httpx.AsyncClient, action: str, seat: str = "") -> str:
    """What the page puts into the form."""
    secret = cookie_secret(site.core.settings.state_dir / "cookie.secret")
    return csrf(secret, client.cookies[COOKIE], action, seat)


def untouched(site: Running) -> bool:
    return site.core.mode is Mode.SERVING and site.core.overlay.value.seats == {}


def test_the_names_are_those_that_the_page_knows() -> None:
    assert tuple(Actions(None).by_name()) == NAMES  # type: ignore[arg-type]
    assert set(NAMES) > SEAT_ACTIONS


@pytest.mark.anyio
async def test_a_form_of_the_session_acts_and_leads_back_to_the_page() -> None:
    async with running() as site, browser(site) as client:
        answer = await client.post("/admin/actions/pause", data={"csrf": value(site, client, "pause")})
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin#said")
        assert site.core.mode is Mode.PAUSED
        assert site.core.events.recent(1)[0].who == "root"
        fields = {"csrf": value(site, client, "disable-seat", "a"), "seat": "a"}
        answer = await client.post("/admin/actions/disable-seat", data=fields, headers=JSON)
        assert (answer.status_code, answer.json()["ok"]) == (200, True)
        assert list(site.core.overlay.value.seats) == ["a"]
        for name in ("content-security-policy", "cache-control"):
            assert name in answer.headers


@pytest.mark.anyio
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer moe-admin-guess"}, 401),
        ({"authorization": f"Bearer {key_of('a')}"}, 401),
        ({"x-api-key": key_of("a")}, 401),
        ({"cookie": f"{COOKIE}=v1.cm9vdA.99999999999.AAAA"}, 401),
        ({**BEARER, "sec-fetch-site": "cross-site"}, 403),
        ({**BEARER, "origin": "http://evil.example"}, 403),
    ],
)
async def test_nobody_else_acts(name: str, headers: dict[str, str], status: int) -> None:
    async with running() as site, browser(site, login=False) as client:
        answer = await client.post(f"/admin/actions/{name}", data={"seat": "a"}, headers=headers)
        assert answer.status_code == status
        assert untouched(site)
        assert site.core.events.recent() == ()


async def sessions_of_one_key(site: Running, client: httpx.AsyncClient) -> tuple[str, str]:
    """What a seat and an admin of the same name and the same key got when they logged in, (seat, admin): nothing but
    the page tells one session from the other."""
    admins = f'[admins.a]\ndigest = "{digest_of(key_of("a"))}"\n'
    site.core.admins.path.write_text(site.core.admins.path.read_text() + admins)
    site.core.look_at_files(force=True)
    for home, field in (("/seat", "key"), ("/admin", "token")):
        assert (await client.post(f"{home}/login", data={field: key_of("a")})).status_code == 303
        assert (await client.get(f"{home}/fragment")).status_code == 200
    return client.cookies[SEAT_COOKIE], client.cookies[COOKIE]


@pytest.mark.anyio
async def test_the_session_of_a_seat_is_no_admins() -> None:
    async with running() as site, browser(site, login=False) as client, browser(site, login=False) as other:
        seat, _ = await sessions_of_one_key(site, client)
        secret, before = cookie_secret(site.core.settings.state_dir / "cookie.secret"), site.core.events.recent()
        for cookie in (f"{COOKIE}={seat}", f"{SEAT_COOKIE}={seat}", f"{COOKIE}={seat}; {SEAT_COOKIE}={seat}"):
            headers = {"cookie": cookie}
            page = await other.get("/admin", headers=headers)
            assert 'action="/admin/login"' in page.text
            assert 'id="live"' not in page.text
            for path in ("/admin/status.json", "/admin/fragment"):
                assert (await other.get(path, headers=headers)).status_code == 401
            for name in NAMES:
                target = "b" if name in SEAT_ACTIONS else ""
                fields = {"csrf": csrf(secret, seat, name, target), "seat": target}
                answer = await other.post(f"/admin/actions/{name}", data=fields, headers=headers)
                assert answer.status_code == 401
        assert untouched(site)
        assert site.core.events.recent() == before


@pytest.mark.anyio
async def test_the_session_of_an_admin_is_no_seats() -> None:
    async with running() as site, browser(site, login=False) as client, browser(site, login=False) as other:
        _, admin = await sessions_of_one_key(site, client)
        for cookie in (f"{SEAT_COOKIE}={admin}", f"{COOKIE}={admin}", f"{SEAT_COOKIE}={admin}; {COOKIE}={admin}"):
            headers = {"cookie": cookie}
            page = await other.get("/seat", headers=headers)
            assert 'action="/seat/login"' in page.text
            assert "<h1>Seat a</h1>" not in page.text
            for path in ("/seat/status.json", "/seat/fragment"):
                assert (await other.get(path, headers=headers)).status_code == 401
        # nor does it act under that name
        secret = cookie_secret(site.core.settings.state_dir / "cookie.secret")
        fields, headers = {"csrf": csrf(secret, admin, "drain")}, {"cookie": f"{SEAT_COOKIE}={admin}"}
        assert (await other.post("/admin/actions/drain", data=fields, headers=headers)).status_code == 401
        assert untouched(site)


@pytest.mark.anyio
async def test_a_session_that_was_logged_out_acts_no_more() -> None:
    async with running() as site, browser(site) as client:
        # given a copy of a session, and of each of its forms
        headers = {"cookie": f"{COOKIE}={client.cookies[COOKIE]}"}
        forms = [(name, "a" if name in SEAT_ACTIONS else "") for name in NAMES]
        fields = {name: {"csrf": value(site, client, name, seat), "seat": seat} for name, seat in forms}
        # when it is logged out
        logout = {"csrf": value(site, client, "logout")}
        assert (await client.post("/admin/logout", data=logout)).status_code == 303
        before = site.core.events.recent()
        # then the copies do nothing
        async with browser(site, login=False) as other:
            for name in NAMES:
                answer = await other.post(f"/admin/actions/{name}", data=fields[name], headers=headers)
                assert answer.status_code == 401
        assert untouched(site)
        assert site.core.events.recent() == before


@pytest.mark.anyio
async def test_a_form_that_is_not_of_this_session_and_action_does_nothing() -> None:
    async with running() as site, browser(site) as client, browser(site, login=False) as other:
        secret = cookie_secret(site.core.settings.state_dir / "cookie.secret")
        former = client.cookies[COOKIE]
        another = issue(secret, AdminName("root"), site.core.admins.value, time.time() - 60)
        other.cookies.set(COOKIE, another)
        assert another != former
        assert (await other.get("/admin/status.json")).status_code == 200, "a session of the same admin, as good"
        good = value(site, client, "drain")
        bad = [
            "",
            "x",
            "é",
            good[:-1],
            value(site, other, "drain"),
            value(site, client, "pause"),
            value(site, client, "drain", "a"),
            csrf(b"o" * 32, former, "drain"),
        ]
        for token in bad:
            for headers in ({}, JSON):
                answer = await client.post("/admin/actions/drain", data={"csrf": token}, headers=headers)
                assert answer.status_code == 403
                assert "Go back" in answer.text
        assert (await client.post("/admin/actions/drain")).status_code == 403
        fields = {"csrf": value(site, client, "disable-seat", "a"), "seat": "b"}
        assert (await client.post("/admin/actions/disable-seat", data=fields)).status_code == 403, "of another seat"
        assert untouched(site)


@pytest.mark.anyio
async def test_a_token_of_a_program_needs_no_form_and_beside_a_session_counts_for_nothing() -> None:
    async with running() as site:
        async with browser(site, login=False) as client:
            answer = await client.post("/admin/actions/drain", headers=BEARER | JSON)
            assert answer.json() == {"ok": True, "said": site.core.events.recent(1)[0].text}
            assert site.core.mode is Mode.DRAINED
        async with browser(site) as client:
            assert (await client.post("/admin/actions/resume", headers=BEARER)).status_code == 403
        assert site.core.mode is Mode.DRAINED


@pytest.mark.anyio
async def test_looking_at_an_address_acts_on_nothing() -> None:
    async with running() as site, browser(site) as client:
        for name in NAMES:
            answer = await client.get(f"/admin/actions/{name}", headers=BEARER)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        for path in ("/admin/actions", "/admin/actions/", "/admin/actions/stop", "/admin/actions/drain/", "/drain"):
            assert (await client.post(path, headers=BEARER)).status_code in (404, 405)
        assert untouched(site)


@pytest.mark.anyio
async def test_what_was_not_done_is_said_and_the_way_back_shown() -> None:
    async with running() as site, browser(site) as client:
        answer = await client.post(
            "/admin/actions/restart-engine", data={"csrf": value(site, client, "restart-engine")}
        )
        assert answer.status_code == 409
        assert "no daemon looks after this engine" in answer.text
        assert 'href="/admin"' in answer.text
        evil = "<script>alert(1)</script>"
        fields = {"csrf": value(site, client, "disable-seat", evil), "seat": evil}
        answer = await client.post("/admin/actions/disable-seat", data=fields)
        assert answer.status_code == 409
        assert "<script>alert" not in answer.text
        assert (await client.post("/admin/actions/enable-seat", headers=BEARER | {"cookie": ""})).status_code in (
            400,
            403,
        )


@pytest.mark.anyio
async def test_a_long_form_and_a_seat_that_is_missing_are_refused() -> None:
    async with running() as site, browser(site, login=False) as client:
        answer = await client.post("/admin/actions/drain", headers=BEARER, content=b"seat=" + b"x" * 9000)
        assert answer.status_code == 413
        answer = await client.post("/admin/actions/disable-seat", headers=BEARER | JSON)
        assert (answer.status_code, answer.json()["ok"]) == (400, False)
        assert untouched(site)


@pytest.mark.anyio
async def test_a_session_ends_with_its_admin() -> None:
    async with running() as site, browser(site) as client:
        token = value(site, client, "drain")
        site.core.admins.path.write_text("")
        site.core.look_at_files(force=True)
        assert (await client.post("/admin/actions/drain", data={"csrf": token})).status_code == 401
        assert untouched(site)
