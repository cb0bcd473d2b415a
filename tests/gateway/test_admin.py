"""gateway.pages.admin: who sees the page, what every answer carries, and that nothing on it runs (also test_markup)."""

from __future__ import annotations

import json
import re
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from gateway.actions import Actions
from gateway.core import Core
from gateway.events import Events
from gateway.keys import digest_of
from gateway.logs import EVENTS
from gateway.pages.admin import COOKIE, AdminPages, admin_routes
from gateway.pages.admin_actions import AdminActions
from gateway.pages.assets import static_files
from gateway.pages.dispatch import HEADERS
from gateway.pages.forms import FORM_MAX_BYTES
from gateway.pages.latest import Latest
from gateway.pages.sessions import LIFETIME_S, csrf
from gateway.seats import Account, AdminBook, AdminName
from gateway.snapshot import GatewaySnapshot
from gateway.state import BoxState, Phase
from gateway.status.compose import view
from gateway.status.views import StatusView
from tests.status_sample import GPU, NOW_S, box, files, gateway

TOKEN = "moe-admin-token"
SEAT_KEY = "moe-seat-key"
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


def book(token: str = TOKEN, *, disabled: bool = False) -> AdminBook:
    return AdminBook({AdminName("root"): Account(name="root", digest=digest_of(token), disabled=disabled)})


@dataclass
class Site:
    """A gateway's admin pages with everything that a test may change."""

    box: BoxState = field(default_factory=box)
    snapshot: GatewaySnapshot = field(default_factory=gateway)
    admins: AdminBook = field(default_factory=book)
    now_s: float = NOW_S
    clock_s: float = 0.0

    def clock(self) -> float:
        return self.clock_s

    def client(self, base_url: str = "http://testserver") -> TestClient:
        def secure(request: Request) -> bool:
            return request.url.scheme == "https"

        pages = AdminPages(
            latest=Latest(lambda: view(self.box, self.snapshot, self.now_s), self.clock),
            admins=lambda: self.admins,
            log=structlog.get_logger(),
            events=Events(),
            secret=b"s" * 32,
            actions=AdminActions(Actions(cast(Core, None)), b"s" * 32),
            secure=secure,
            now=lambda: self.now_s,
            monotonic=self.clock,
        )
        return TestClient(Starlette(routes=admin_routes(pages)), base_url=base_url, follow_redirects=False)

    def logged_in(self) -> TestClient:
        client = self.client()
        assert client.post("/admin/login", data={"token": TOKEN}).status_code == 303
        return client


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# Logging in


def test_a_visitor_gets_the_form_and_a_token_opens_the_page() -> None:
    client = Site().client()
    form = client.get("/admin")
    assert form.status_code == 200
    assert 'action="/admin/login"' in form.text
    assert "Serving" not in form.text
    answer = client.post("/admin/login", data={"token": f" {TOKEN}\n"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/admin")
    page = client.get("/admin")
    assert "Serving: 2 of 4 streams busy, nobody waits." in page.text


@pytest.mark.parametrize(("base_url", "secure"), [("http://testserver", False), ("https://testserver", True)])
def test_the_cookie_stays_out_of_scripts_and_of_other_sites(base_url: str, secure: bool) -> None:
    answer = Site().client(base_url).post("/admin/login", data={"token": TOKEN})
    parts = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/admin", f"max-age={LIFETIME_S}"} <= parts
    assert ("secure" in parts) is secure


def test_a_wrong_token_is_refused_and_neither_logged_nor_repeated() -> None:
    with capture_logs() as logs:
        answer = Site().client().post("/admin/login", data={"token": "moe-admin-guess"})
    assert answer.status_code == 401
    assert "not known here" in answer.text
    assert "set-cookie" not in answer.headers
    assert "moe-admin-guess" not in answer.text + json.dumps(logs)
    assert [entry["event"] for entry in logs] == ["admin.refused"]
    assert logs[0]["event"] in EVENTS


def test_a_seat_key_is_never_accepted() -> None:
    client = Site().client()
    answer = client.post("/admin/login", data={"token": SEAT_KEY})
    assert answer.status_code == 401
    assert "seat key" in answer.text
    for path in ("/admin", "/admin/fragment", "/admin/status.json"):
        assert client.get(path, headers=bearer(SEAT_KEY)).status_code == 401


def test_a_disabled_admin_is_told_so() -> None:
    answer = Site(admins=book(disabled=True)).client().post("/admin/login", data={"token": TOKEN})
    assert answer.status_code == 403
    assert "disabled" in answer.text


def test_after_five_failures_in_a_minute_only_the_right_token_is_taken() -> None:
    site = Site()
    client = site.client()
    for _ in range(5):
        assert client.post("/admin/login", data={"token": "no"}).status_code == 401
    site.clock_s = 20.0
    answer = client.post("/admin/login", data={"token": "no"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "40")
    assert client.get("/admin/status.json", headers=bearer()).status_code == 200
    assert client.post("/admin/login", data={"token": TOKEN}).status_code == 303
    site.clock_s = 60.0
    assert client.post("/admin/login", data={"token": "no"}).status_code == 401, "what was braked was not counted"


@pytest.mark.parametrize("path", ["/admin/login", "/admin/logout"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 303),
        ({"sec-fetch-site": "same-origin", "origin": "null"}, 303),
        ({"sec-fetch-site": "none"}, 303),
        ({"origin": "http://testserver"}, 303),
        ({"origin": "https://TestServer"}, 303),
        ({"origin": "https://box.example"}, 303),
        ({"origin": "https://proxy.example", "x-forwarded-host": "proxy.example"}, 303),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://testserver"}, 403),
        ({"sec-fetch-site": "same-site", "origin": "http://other.testserver"}, 403),
        ({"origin": "http://testserver.evil"}, 403),
        ({"origin": "http://testserver:81"}, 403),
        ({"origin": "http://[evil"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_a_form_of_another_site_is_refused(path: str, headers: dict[str, str], status: int) -> None:
    site = Site(box=box().model_copy(update={"public_url": "https://box.example/"}))
    answer = site.client().post(path, data={"token": TOKEN}, headers=headers)
    assert answer.status_code == status
    assert ("set-cookie" in answer.headers) is (status == 303)


def test_browsers_are_told_to_name_the_origin_of_our_own_forms() -> None:
    """With no-referrer they would say `Origin: null`. Source: Fetch, append a request `Origin` header."""
    assert HEADERS["referrer-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"token=" + b"a" * FORM_MAX_BYTES, 413),
        (b"", 401),
        (b"\xff\xfe=&&&", 401),
        (b"&".join(b"token=a" for _ in range(99)), 401),
    ],
)
def test_a_form_that_is_none_is_refused(body: bytes, status: int) -> None:
    assert Site().client().post("/admin/login", content=body).status_code == status


def test_without_an_admin_the_form_says_how_to_make_one() -> None:
    assert "There is no admin yet" in Site(admins=AdminBook({}, file_missing=True)).client().get("/admin").text


def test_logging_out_ends_the_session_of_this_browser() -> None:
    client = Site().logged_in()
    assert client.post("/admin/logout").status_code == 403, "no form of ours"
    value = csrf(b"s" * 32, client.cookies[COOKIE], "logout")
    assert client.post("/admin/logout", data={"csrf": value}).status_code == 303
    assert client.get("/admin/fragment").status_code == 401


@pytest.mark.parametrize("admins", [book("moe-admin-other"), book(disabled=True), AdminBook({})])
def test_a_session_dies_with_its_admin_or_token(admins: AdminBook) -> None:
    site = Site()
    client = site.logged_in()
    assert client.get("/admin/fragment").status_code == 200
    site.admins = admins
    assert client.get("/admin/fragment").status_code in (401, 403)


def test_a_session_dies_after_its_time() -> None:
    site = Site()
    client = site.logged_in()
    site.now_s += LIFETIME_S
    assert client.get("/admin/fragment").status_code == 401


def test_a_made_up_cookie_opens_nothing() -> None:
    client = Site().client()
    client.cookies.set(COOKIE, "v1.cm9vdA.9999999999.AAAA", path="/admin")
    assert client.get("/admin/fragment").status_code == 401


# What is there


def test_the_json_is_the_view_and_curl_needs_no_cookie() -> None:
    answer = Site().client().get("/admin/status.json", headers=bearer())
    assert answer.headers["content-type"] == "application/json"
    assert StatusView.model_validate_json(answer.content).verdict.rule == 20


def test_head_answers_like_get_without_a_body() -> None:
    client = Site().logged_in()
    for path in ("/admin", "/admin/fragment", "/admin/status.json", "/admin/static/admin.css"):
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"]


def test_static_files_are_open_and_may_be_kept() -> None:
    client = Site().client()
    assert set(static_files()) == {"admin.css", "admin.js", "icon.svg"}
    for asset in static_files().values():
        assert "immutable" in client.get(asset.url).headers["cache-control"]
    assert client.get("/admin/static/admin.js").headers["cache-control"] == "public, max-age=60"


@pytest.mark.parametrize(
    "path", ["/admin/x", "/admin/static/", "/admin/static/x.js", "/admin/static/../admin.py", "/admin/static/%2e%2e/a"]
)
def test_anything_else_is_404(path: str) -> None:
    assert Site().logged_in().get(path).status_code == 404


OWN = {"script-src", "style-src", "img-src", "connect-src", "form-action"}
ANSWERS = [
    ("GET", "/admin"),
    ("GET", "/admin/"),
    ("GET", "/admin/fragment"),
    ("GET", "/admin/status.json"),
    ("GET", "/admin/login"),
    ("POST", "/admin/login"),
    ("POST", "/admin/logout"),
    ("POST", "/admin/fragment"),
    ("PUT", "/admin"),
    ("GET", "/admin/logout"),
    ("GET", "/admin/nothing"),
    ("GET", "/admin/static/admin.css"),
    ("HEAD", "/admin"),
]


@pytest.mark.parametrize(("method", "path"), ANSWERS)
@pytest.mark.parametrize("known", [True, False])
def test_every_answer_carries_the_headers(method: str, path: str, known: bool) -> None:
    client = Site().logged_in() if known else Site().client()
    headers = client.request(method, path).headers
    expected = dict(HEADERS)
    if "/static/" in path:
        expected["cache-control"] = "public, max-age=60"
    assert {name: headers[name] for name in HEADERS} == expected


def test_the_policy_allows_nothing_inline_and_nobody_else() -> None:
    rules = dict(rule.split(" ", 1) for rule in HEADERS["content-security-policy"].split("; "))
    assert {name for name, who in rules.items() if who == "'self'"} == OWN
    assert {who for name, who in rules.items() if name not in OWN} == {"'none'"}
    assert {"default-src", "frame-ancestors", "base-uri"} <= set(rules)


def test_no_page_of_another_origin_may_embed_an_answer() -> None:
    assert HEADERS["cross-origin-resource-policy"] == "same-origin"
    assert HEADERS["x-content-type-options"] == "nosniff"


@pytest.mark.anyio
async def test_an_answer_to_head_has_the_length_and_no_body() -> None:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    await (
        Site()
        .client()
        .app({"type": "http", "method": "HEAD", "path": "/admin", "query_string": b"", "headers": []}, receive, send)
    )
    assert b"".join(message.get("body", b"") for message in sent) == b""
    assert int(dict(sent[0]["headers"])[b"content-length"]) > 500


# Nothing on it can run


STATES = {
    "busy": Site(snapshot=gateway(4, 3)),
    "idle": Site(snapshot=gateway(0)),
    "empty": Site(snapshot=gateway(0, seats=(), files=files(missing=True))),
    "loading": Site(box=box(Phase.STARTING, step="loading the model", progress=0.62), snapshot=gateway(0)),
    "no progress": Site(box=box(Phase.STARTING, step="loading"), snapshot=gateway(0)),
    "backoff": Site(box=box(Phase.BACKOFF, cause=GPU, retry_at_s=NOW_S + 3), snapshot=gateway(0)),
    "extra": Site(snapshot=gateway(3, streams_max=2)),
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("path", ["/admin", "/admin/fragment"])
def test_no_page_holds_inline_styles_or_scripts(name: str, path: str) -> None:
    html = STATES[name].logged_in().get(path).text
    tags = re.findall(r"<[a-zA-Z](?:[^>\"']|\"[^\"]*\"|'[^']*')*>", html)
    assert len(tags) > 20
    for tag in tags:
        bare = re.sub(r"\"[^\"]*\"|'[^']*'", '""', tag)
        assert not re.search(r"\s(?:style|on\w+)\s*=", bare), tag
        assert not re.match(r"<(?:style|img src=x)", tag), tag
        assert not re.search(r"\b(?<!target)(?:src|href|action)=\"(?!/admin|#)", tag), tag
    scripts = re.findall(r"<script[^>]*>[^<]*", html)
    assert all(re.fullmatch(r'<script src="/admin/static/admin\.js\?v=[0-9a-f]+" defer>', tag) for tag in scripts)
    assert len(scripts) == (1 if path == "/admin" else 0)


def test_a_login_error_is_shown_as_text_and_the_form_holds_no_script() -> None:
    html = Site().client().post("/admin/login", data={"token": EVIL}).text
    assert "alert(1)" not in html
    assert len(re.findall(r"<script", html)) == 1


def test_the_script_takes_the_token_from_the_fragment_and_writes_no_html() -> None:
    script = static_files()["admin.js"].body.decode()
    assert '"#token="' in script
    assert "history.replaceState" in script
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\.style\b", script)


def test_the_lanes_have_as_many_rows_as_streams_may_run() -> None:
    html = STATES["busy"].logged_in().get("/admin/fragment").text
    assert len(re.findall(r'<li class="lane ', html)) == 4
    assert "aria-live" not in html, "what changes each second would be read aloud each second"


def test_a_copied_cookie_is_worth_nothing_after_logging_out() -> None:
    # given a session, and somebody who copied its cookie
    site = Site()
    client = site.client()
    client.post("/admin/login", data={"token": TOKEN})
    copied = client.cookies[COOKIE]
    # when a form of another session, and then its own, logs it out
    assert client.post("/admin/logout", data={"csrf": csrf(b"s" * 32, "another", "logout")}).status_code == 403
    assert client.get("/admin/fragment").status_code == 200
    assert client.post("/admin/logout", data={"csrf": csrf(b"s" * 32, copied, "logout")}).status_code == 303
    # then the copy opens nothing
    client.cookies.set(COOKIE, copied, path="/admin")
    assert client.get("/admin/fragment").status_code == 401
    # and who logs in again in the same second is in
    assert client.post("/admin/login", data={"token": TOKEN}).status_code == 303
    assert client.get("/admin/fragment").status_code == 200
