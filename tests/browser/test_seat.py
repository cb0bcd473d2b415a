"""The page of a seat in a real browser: own use and settings, and nothing of others."""

from __future__ import annotations

import pytest

from gateway.ledger.reading import usage
from tests.browser.chromium import Page
from tests.browser.conftest import log_in_as_seat
from tests.e2e.box import Box, until

pytestmark = pytest.mark.browser


def test_a_seat_key_opens_the_page_of_its_seat_and_no_other(box: Box, page: Page) -> None:
    log_in_as_seat(page, box, "a")
    assert page.text("h1") == "Seat a"
    page.goto(f"{box.url}/admin")
    assert page.value("document.querySelector('#token') !== null"), "the operator's page stays closed"
    page.goto(f"{box.url}/seat")
    with page.loading():
        page.click("form[action='/seat/logout'] button")
    assert page.value("document.querySelector('#key') !== null")


def test_own_streams_are_shown_and_others_are_not(box: Box, page: Page) -> None:
    log_in_as_seat(page, box, "a")
    calls = box.streams(("a", "b"), max_tokens=6000)
    page.until("document.querySelectorAll('.lane.busy').length === 1")
    page.until("document.querySelector('.verdict').innerText.includes('2 of 4 streams busy')")
    for call in calls:
        call.close()


def test_use_is_counted_and_the_ledger_is_read(box: Box, page: Page) -> None:
    for _ in range(3):
        assert box.chat("a").status == 200
    box.chat("b")
    ledger = box.home / "state/ledger.db"
    until("the ledger has all four", lambda: sum(of.requests for of in usage(ledger, 0, 4e9)) == 4, 10)
    log_in_as_seat(page, box, "a")
    assert page.text(".usage tbody tr:first-child th") == "today"
    assert page.text(".usage tbody tr:first-child td") == "3"


def test_settings_to_copy_hold_the_address_and_never_the_key(box: Box, page: Page) -> None:
    log_in_as_seat(page, box, "a")
    page.click("#agent-codex summary")
    page.until("document.querySelector('#agent-codex').open")
    text = page.text("#agent-codex")
    assert f"{box.url}/v1" in text
    assert "MOE_API_KEY" in text
    assert box.keys["a"] not in page.value("document.documentElement.outerHTML")
    page.until("document.querySelector('#clock:not([hidden])')")
    assert page.value("document.querySelector('#agent-codex').open"), "the refresh leaves it open"


@pytest.mark.parametrize("width", [1280, 520, 360])
def test_no_width_makes_the_page_scroll_sideways(box: Box, page: Page, width: int) -> None:
    log_in_as_seat(page, box, "a")
    page.size(width)
    page.click("#agent-claude-code summary")
    assert page.value("document.documentElement.scrollWidth") <= width
