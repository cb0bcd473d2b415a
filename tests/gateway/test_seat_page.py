"""gateway.pages.seat: who sees the page of a seat, that it holds nothing of others, and never a key."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field

import httpx
import pytest
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from gateway.agents.programs import AGENTS
from gateway.keys import digest_of
from gateway.ledger.rows import Usage
from gateway.logs import EVENTS
from gateway.pages.dispatch import HEADERS
from gateway.pages.latest import KEPT_S, Latest
from gateway.pages.seat import COOKIE, USAGE_S, SeatPages, seat_routes
from gateway.pages.seat_view import periods
from gateway.pages.sessions import LIFETIME_S, csrf
from gateway.seats import Account, SeatBook, SeatName
from gateway.snapshot import GatewaySnapshot
from gateway.state import BoxState, Phase
from gateway.status.compose import view
from tests.status_sample import NOW_S, box, cared, finding, gateway, lane, seat, stream, waiting, watch_row

KEYS = {"ana": "moe-key-of-ana", "ben": "moe-key-of-ben"}
ADMIN_TOKEN = "moe-admin-token"
USE = Usage("ana", requests=40, served=38, prompt_tokens=1_200_000, completion_tokens=30_000, hit_share=0.91,
            wait_p50_s=0.2, wait_p95_s=4.0)  # fmt: skip


def book(**changes: object) -> SeatBook:
    made = {name: Account(name=name, digest=digest_of(key)) for name, key in KEYS.items()}
    for name, account in changes.items():
        assert isinstance(account, Account)
        made[name] = account
    return SeatBook({SeatName(name): account for name, account in made.items()})


def two_seats() -> GatewaySnapshot:
    running = (stream("ana", request_id="req-of-ana"), stream("ben", request_id="req-of-ben"))
    line = (waiting(1, "ben"), waiting(2, "ana"))
    seats = (seat("ana"), seat("ben", tokens_out=77_777))
    return gateway(0, seats=seats).model_copy(update={"running": running, "waiting": line})


@dataclass
class Site:
    """The pages of seats with everything that a test may change."""

    box: BoxState = field(default_factory=lambda: box(findings=(finding("secret.finding"),)))
    snapshot: GatewaySnapshot = field(default_factory=two_seats)
    seats: SeatBook = field(default_factory=book)
    usage: Usage | None = USE
    asked: list[tuple[str, tuple[float, ...]]] = field(default_factory=list)
    now_s: float = NOW_S
    clock_s: float = 0.0

    async def used(self, seat: str, begins_s: tuple[float, ...]) -> tuple[Usage, ...] | None:
        self.asked.append((seat, begins_s))
        return None if self.usage is None else (self.usage,) * len(begins_s)

    def client(self, base_url: str = "http://testserver") -> TestClient:
        def secure(request: Request) -> bool:
            return request.url.scheme == "https"

        pages = SeatPages(
            latest=Latest(lambda: view(self.box, self.snapshot, self.now_s), lambda: self.clock_s),
            seats=lambda: self.seats,
            usage=self.used,
            log=structlog.get_logger(),
            secret=b"s" * 32,
            secure=secure,
            now=lambda: self.now_s,
            monotonic=lambda: self.clock_s,
        )
        return TestClient(Starlette(routes=seat_routes(pages)), base_url=base_url, follow_redirects=False)

    def logged_in(self, name: str = "ana") -> TestClient:
        client = self.client()
        assert client.post("/seat/login", data={"key": KEYS[name]}).status_code == 303
        return client


# Logging in and out


def test_a_visitor_gets_the_form_and_a_key_opens_the_page() -> None:
    client = Site().client()
    form = client.get("/seat")
    assert form.status_code == 200
    assert 'action="/seat/login"' in form.text
    answer = client.post("/seat/login", data={"key": f" {KEYS['ana']}\n"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/seat")
    assert "<h1>Seat ana</h1>" in client.get("/seat").text


@pytest.mark.parametrize(("base_url", "secure"), [("http://testserver", False), ("https://testserver", True)])
def test_the_cookie_is_of_this_page_alone(base_url: str, secure: bool) -> None:
    answer = Site().client(base_url).post("/seat/login", data={"key": KEYS["ana"]})
    parts = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/seat", f"max-age={LIFETIME_S}"} <= parts
    assert ("secure" in parts) is secure


@pytest.mark.parametrize(("key", "said"), [("", "Paste"), ("moe-guess", "not known"), (ADMIN_TOKEN, "/admin")])
def test_what_is_no_key_is_refused_and_neither_logged_nor_repeated(key: str, said: str) -> None:
    with capture_logs() as logs:
        answer = Site().client().post("/seat/login", data={"key": key})
    assert answer.status_code == 401
    assert said in answer.text
    assert "set-cookie" not in answer.headers
    assert not key or key not in answer.text + json.dumps(logs)
    assert [entry["event"] for entry in logs] == ["seat.refused"]
    assert logs[0]["event"] in EVENTS


def test_after_five_failures_in_a_minute_only_the_right_key_is_taken() -> None:
    site = Site()
    client = site.client()
    for _ in range(5):
        assert client.post("/seat/login", data={"key": "no"}).status_code == 401
    site.clock_s = 20.0
    answer = client.post("/seat/login", data={"key": "no"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "40")
    assert client.post("/seat/login", data={"key": KEYS["ana"]}).status_code == 303


@pytest.mark.parametrize(
    "changed",
    [
        Account(name="ana", digest=digest_of("moe-another-key")),
        Account(name="ana", digest=digest_of(KEYS["ana"]), disabled=True),
        Account(name="ana", digest=digest_of(KEYS["ana"]), off_by="root"),
        Account(name="ana", digest=digest_of(KEYS["ana"]), expires_s=NOW_S - 1),
    ],
    ids=["rotated", "disabled", "switched off", "expired"],
)
def test_a_session_ends_with_its_key_and_its_seat(changed: Account) -> None:
    site = Site()
    client = site.logged_in()
    site.seats = book(ana=changed)
    assert 'action="/seat/login"' in client.get("/seat").text
    assert client.get("/seat/fragment").status_code == 401
    assert client.get("/seat/status.json").status_code == 401


def test_a_session_ends_with_its_time() -> None:
    site = Site()
    client = site.logged_in()
    site.now_s += LIFETIME_S
    assert client.get("/seat/fragment").status_code == 401


def test_an_admins_cookie_opens_no_seat() -> None:
    from gateway.pages.sessions import issue
    from gateway.seats import AdminBook, AdminName

    admins = AdminBook({AdminName("ana"): Account(name="ana", digest=digest_of(KEYS["ana"]))})
    client = Site().client()
    client.cookies.set(COOKIE, issue(b"s" * 32, AdminName("ana"), admins, NOW_S), path="/seat")
    assert client.get("/seat/fragment").status_code == 401


def test_logging_out_needs_the_form_of_the_session() -> None:
    client = Site().logged_in()
    assert client.post("/seat/logout", data={"csrf": "guess"}).status_code == 403
    assert client.get("/seat/fragment").status_code == 200
    value = re.findall(r'name="csrf" value="([^"]+)"', client.get("/seat").text)[0]
    assert client.post("/seat/logout", data={"csrf": value}).status_code == 303
    assert client.get("/seat/fragment").status_code == 401


def test_another_sites_form_is_refused() -> None:
    answer = Site().client().post("/seat/login", data={"key": KEYS["ana"]}, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403


@pytest.mark.parametrize("path", ["/seat", "/seat/fragment", "/seat/status.json", "/seat/nothing", "/seat/login"])
def test_every_answer_carries_the_headers(path: str) -> None:
    for client in (Site().client(), Site().logged_in()):
        answer = client.get(path)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


# What is on it


def test_own_streams_and_places_are_there_and_nothing_of_others() -> None:
    client = Site().logged_in()
    for path in ("/seat", "/seat/fragment", "/seat/status.json"):
        text = client.get(path).text
        assert "req-of-ana" in text
        for foreign in (
            "req-of-ben",
            ">ben<",
            '"ben"',
            "77 777",
            "77777",
            "secret.finding",
            "mend ",
            "seats.toml",
            "pid",
        ):
            assert foreign not in text, (path, foreign)
    assert client.get("/seat/status.json").json()["queue"][0]["position"] == 2


def waits_for_ben() -> GatewaySnapshot:
    """ana waits for a prompt of ben, whose client changes what it sends as hers does."""
    line = (
        waiting(1, "ben", why="quiet", why_s=9.0, uncached_tokens=77_123),
        waiting(2, "ana", why="gate", why_s=23.0, why_tokens=77_123, uncached_tokens=800),
    )
    seats = (
        seat("ana", hit_share=0.71, expected_share=0.953, expected_tokens=900, over_share=True),
        seat("ben", expected_share=0.313, expected_tokens=31_313),
    )
    changes = {
        "waiting": line,
        "lane": lane(next_seat="ben", next_tokens=77_123),
        "watch": (watch_row("ana", lost_s=63.4), watch_row("ben", "codex", lost_s=777.0)),
        "seats": seats,
    }
    return cared(gateway(0)).model_copy(update=changes)


def test_an_own_wait_is_told_with_its_reason_and_nothing_of_the_other_but_a_length() -> None:
    client = Site(snapshot=waits_for_ben()).logged_in()
    html, told = client.get("/seat/fragment").text, client.get("/seat/status.json")
    assert "a ~77K prompt of another seat is read first, about 23 s" in html
    for foreign in (">ben<", '"ben"', "of ben", "77123", "77 123", "codex", "777", "31 %", "31313", "31 313"):
        assert foreign not in html + told.text, foreign


def test_an_own_client_that_changes_its_prompts_is_told_with_the_remedy() -> None:
    html = Site(snapshot=waits_for_ben()).logged_in().get("/seat/fragment").text
    assert "Since the gateway started: 71 %, where ~95 % should have been there." in html
    assert "4 of the last 10 turns changed what was sent before" in html
    assert "byte 18 212, in system prompt" in html
    assert "CLAUDE_CODE_ATTRIBUTION_HEADER=0" in html
    assert "You have used more in the last minutes" in html


def test_a_client_that_changes_nothing_is_left_in_peace() -> None:
    quiet = waits_for_ben().model_copy(update={"watch": (watch_row("ana", changed=0, last=None),)})
    assert "claude-cli" not in Site(snapshot=quiet).logged_in().get("/seat/fragment").text


def test_a_program_may_ask_with_the_key_itself() -> None:
    answer = Site().client().get("/seat/status.json", headers={"authorization": f"Bearer {KEYS['ben']}"})
    assert answer.json()["seat"] == "ben"


@pytest.mark.parametrize("name", AGENTS)
def test_the_settings_of_every_agent_name_the_address_and_no_key(name: str) -> None:
    html = Site().logged_in().get("/seat").text
    block = html.split(f'id="agent-{name}"')[1].split("</details>")[0]
    assert "http://testserver" in block
    assert KEYS["ana"] not in html


def test_an_address_that_is_none_is_not_shown() -> None:
    client = Site().logged_in()
    html = client.get("/seat", headers={"host": 'evil"><script>'}).text
    assert "evil" not in html
    assert "http://box.example:8080" in html


def test_without_a_model_the_settings_say_why_they_are_missing() -> None:
    site = Site(box=box(Phase.STARTING, models=()))
    assert site.logged_in().get("/seat").text.count("The box has no model loaded now") == len(AGENTS)


def test_use_is_asked_for_three_periods_and_not_at_every_look() -> None:
    site = Site()
    client = site.logged_in()
    for site.clock_s in (0.0, 1.0, USAGE_S - 1):
        client.get("/seat/fragment")
    assert site.asked == [("ana", tuple(begin for _, begin in periods(NOW_S)))]
    site.clock_s = USAGE_S
    client.get("/seat/fragment")
    assert len(site.asked) == 2


def test_many_open_pages_look_at_the_box_once_a_second() -> None:
    site = Site()
    client = site.logged_in()
    before = client.get("/seat/status.json").json()["sentence"]
    site.snapshot = gateway(0)
    assert client.get("/seat/status.json").json()["sentence"] == before
    site.clock_s = KEPT_S
    assert client.get("/seat/status.json").json()["sentence"] == "The box serves: 0 of 4 streams busy, nobody waits."


def test_periods_are_calendar_days_weeks_and_months() -> None:
    friday_the_15th_of_january_2027 = NOW_S
    begins = dict(periods(friday_the_15th_of_january_2027))
    assert [NOW_S - begins[label] for label in begins] == [8 * 3600, 4 * 86_400 + 8 * 3600, 14 * 86_400 + 8 * 3600]


def test_without_a_ledger_the_page_says_so() -> None:
    html = Site(usage=None).logged_in().get("/seat").text
    assert "No ledger can be read now" in html


@pytest.mark.parametrize(
    ("share", "said"), [(0.91, "Good:"), (0.4, "What breaks the cache:"), (None, "Nothing is known yet")]
)
def test_a_hit_rate_is_explained(share: float | None, said: str) -> None:
    usage = Usage("ana", requests=3, hit_share=share)
    html = Site(usage=usage).logged_in().get("/seat/fragment").text
    assert said in html
    assert ("A beginning that changes" in html) is (share == 0.4)


@pytest.mark.parametrize(("expected", "said"), [(0.42, "what was read anew was new"), (0.9, "What breaks the cache:")])
def test_a_low_hit_rate_that_was_expected_is_nobodys_fault(expected: float, said: str) -> None:
    rows = (seat("ana", hit_share=0.4, expected_share=expected),)
    site = Site(snapshot=gateway(0, seats=rows), usage=Usage("ana", requests=3, hit_share=0.4))
    assert said in site.logged_in().get("/seat/fragment").text
    site.snapshot = site.snapshot.model_copy(update={"watch": (watch_row("ana"),)})
    assert "What breaks the cache:" in site.logged_in().get("/seat/fragment").text, "a client changes what it sent"


def test_a_budget_is_shown_with_what_it_means() -> None:
    rows = (seat("ana", month_tokens=31_000_000, budget_tokens=30_000_000, over_budget=True),)
    html = Site(snapshot=gateway(0, seats=rows)).logged_in().get("/seat/fragment").text
    assert "31.0 M" in html
    assert "none is refused for it" in html


@pytest.mark.parametrize(
    ("site", "said"),
    [
        (Site(), "The box serves: 2 of 4 streams busy, 2 requests wait."),
        (Site(box=box(Phase.STARTING, step="loading")), "its engine is starting: loading."),
        (Site(snapshot=gateway(0, mode="drained", mode_by="root")), "The operator takes no new requests for now"),
        (Site(snapshot=gateway(0, mode="paused", mode_by="root")), "The operator has paused the line"),
        (Site(snapshot=gateway(0, draining=True)), "The box restarts its gateway"),
    ],
)
def test_the_box_is_told_in_a_sentence_for_those_who_use_it(site: Site, said: str) -> None:
    assert said in site.logged_in().get("/seat/fragment").text


def test_a_copied_cookie_is_worth_nothing_after_logging_out() -> None:
    client = Site().logged_in("ana")
    copied = client.cookies[COOKIE]
    answer = client.post("/seat/logout", data={"csrf": csrf(b"s" * 32, copied, "logout")})
    assert answer.status_code == 303
    client.cookies.set(COOKIE, copied, path="/seat")
    assert client.get("/seat/fragment").status_code == 401
    assert client.post("/seat/login", data={"key": KEYS["ana"]}).status_code == 303
    assert client.get("/seat/fragment").status_code == 200


@pytest.mark.anyio
async def test_pages_that_ask_while_the_ledger_is_read_wait_for_the_same_answer() -> None:
    # given a session, and a ledger that is slow
    site, go = Site(), asyncio.Event()

    async def slow(seat: str, begins_s: tuple[float, ...]) -> tuple[Usage, ...]:
        site.asked.append((seat, begins_s))
        await go.wait()
        return (USE,) * len(begins_s)

    site.used = slow  # type: ignore[method-assign]
    app = site.client().app
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://box") as client:
        bearer = {"authorization": f"Bearer {KEYS['ana']}"}
        asking = [asyncio.create_task(client.get("/seat/status.json", headers=bearer)) for _ in range(20)]
        while not site.asked:
            await asyncio.sleep(0)
        # when one of them leaves and the ledger answers
        asking.pop(0).cancel()
        go.set()
        answers = await asyncio.gather(*asking)
    # then the ledger was asked once, and all others have the answer
    assert len(site.asked) == 1
    assert {answer.json()["usage"][0]["requests"]["text"] for answer in answers} == {"40"}
