"""gateway.pages.latest and live: many pages cost one look and one drawing; no session gets another's form values."""

from __future__ import annotations

import re
from functools import partial

import pytest
from jinja2 import Environment

from gateway.core import Core
from gateway.observe import snapshot
from gateway.pages.assets import static_files, templates
from gateway.pages.latest import KEPT_S, Latest
from gateway.pages.live import LivePart
from gateway.pages.sessions import csrf
from gateway.snapshot import GatewaySnapshot
from gateway.status.compose import view
from gateway.status.views import StatusView
from tests.gateway.running import ADMIN_TOKEN, running
from tests.gateway.test_admin_actions import browser, value
from tests.status_sample import NOW_S, lively

SECRET = b"s" * 32
FORM = re.compile(
    r'action="/admin/actions/([a-z-]+)".*?name="csrf" value="([^"]*)"(?:>\s*<[^>]*name="seat" value="([^"]*)")?', re.S
)


class Looks:
    """A clock, and how often it was looked."""

    def __init__(self) -> None:
        self.count = 0
        self.clock_s = 0.0
        self.latest = Latest(self.make, lambda: self.clock_s)

    def make(self) -> StatusView:
        self.count += 1
        return view(*lively(), NOW_S)


def test_who_asks_in_the_same_second_gets_the_same_view() -> None:
    looks = Looks()
    first = looks.latest.view()
    looks.clock_s = KEPT_S - 0.001
    assert looks.latest.view() is first
    looks.clock_s = KEPT_S
    assert looks.latest.view() is not first
    assert looks.count == 2


def test_a_look_is_new_and_is_what_the_others_get_then() -> None:
    looks = Looks()
    first = looks.latest.view()
    now = looks.latest.look()
    assert now is not first
    assert looks.latest.view() is now


@pytest.fixture
def environment() -> Environment:
    return templates(static_files())


def test_two_sessions_get_the_same_drawing_with_their_own_form_values(environment: Environment) -> None:
    # given a view and two sessions
    live, seen = LivePart(environment), view(*lively(), NOW_S)
    one, two = (partial(csrf, SECRET, cookie) for cookie in ("one", "two"))
    # when both ask
    pages = {of: live.html(seen, of) for of in (one, two)}
    # then each form holds the value of its own session, action and seat
    for of, page in pages.items():
        forms = FORM.findall(page)
        assert len(forms) == page.count("<form") > 5
        assert all(found == of(action, seat) for action, found, seat in forms)
        assert page == environment.get_template("fragment.html").render(view=seen, csrf=of)


def test_a_view_is_drawn_once_and_another_one_anew(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    live = LivePart(environment)
    drawn: list[StatusView] = []
    draw = live._draw

    def drawing(seen: StatusView) -> None:
        drawn.append(seen)
        draw(seen)

    monkeypatch.setattr(live, "_draw", drawing)
    first, second = view(*lively(), NOW_S), view(*lively(), NOW_S + 1)
    for seen in (first, first, second, second):
        live.html(seen, partial(csrf, SECRET, "one"))
    assert drawn == [first, second]


@pytest.mark.anyio
async def test_what_an_action_changed_is_on_the_next_page() -> None:
    async with running() as site, browser(site) as client:
        assert "Paused by root" not in (await client.get("/admin/fragment")).text
        await client.post("/admin/actions/pause", data={"csrf": value(site, client, "pause")})
        assert "Paused by root" in (await client.get("/admin/fragment")).text


@pytest.mark.anyio
async def test_ten_pages_cost_one_look_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Core] = []

    def looking(core: Core) -> GatewaySnapshot:
        looks.append(core)
        return snapshot(core)

    monkeypatch.setattr("gateway.pages.site.snapshot", looking)
    async with running() as site, browser(site) as client:
        for _ in range(10):
            assert (await client.get("/admin/fragment")).status_code == 200
        bearer = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        assert (await client.get("/admin/fragment", headers=bearer)).status_code == 200
    assert 1 <= len(looks) <= 3
