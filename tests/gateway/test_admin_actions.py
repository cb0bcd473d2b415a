"""POST /admin/actions/NAME: only an admin, only from the session's own form, and what was done is said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.actions import SEAT_ACTIONS, Actions
from gateway.overlay import Mode
from gateway.pages.admin import COOKIE
from gateway.pages.sessions import csrf
from gateway.pages.site import cookie_secret
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


@pytest.mark.anyio
async def test_a_seats_cookie_of_the_seat_page_is_no_admins() -> None:
    async with running() as site, browser(site) as client:
        stolen = client.cookies[COOKIE]
        async with browser(site, login=False) as other:
            headers = {"cookie": f"moe_seat={stolen}"}
            assert (await other.post("/admin/actions/drain", headers=headers)).status_code == 401
        assert untouched(site)


@pytest.mark.anyio
async def test_a_form_that_is_not_of_this_session_and_action_does_nothing() -> None:
    async with running() as site, browser(site) as client, browser(site) as other:
        secret = cookie_secret(site.core.settings.state_dir / "cookie.secret")
        former = client.cookies[COOKIE]
        later = csrf(secret, former.replace("v1.", "v1.x"), "drain")
        good = value(site, client, "drain")
        bad = [
            "",
            "x",
            "é",
            good[:-1],
            later,
            value(site, client, "pause"),
            value(site, client, "drain", "a"),
            csrf(b"o" * 32, former, "drain"),
        ]
        if other.cookies[COOKIE] != former:  # logins within one second have one cookie
            bad.append(value(site, other, "drain"))
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
