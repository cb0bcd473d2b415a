"""axe-core finds no serious fault: on every page, light and dark, wide and narrow, busy and in trouble."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Chromium, Page
from tests.browser.conftest import grave_faults, log_in, log_in_as_seat
from tests.e2e.box import Box

pytestmark = pytest.mark.browser
LOOKS = [(dark, width) for dark in (False, True) for width in (1280, 520)]


def check(page: Page, axe_source: str) -> None:
    """All looks of the page as it is."""
    faults = {}
    for dark, width in LOOKS:
        page.media(dark=dark, still=True)
        page.size(width)
        found = grave_faults(page, axe_source)
        if found:
            faults["dark" if dark else "light", width] = found
    assert faults == {}


@pytest.mark.parametrize("path", ["/admin", "/seat"])
def test_the_logins(box: Box, page: Page, axe_source: str, path: str) -> None:
    page.goto(f"{box.url}{path}")
    check(page, axe_source)


def test_a_refused_login(box: Box, chromium: Chromium, axe_source: str) -> None:
    with chromium.page() as page:
        page.goto(f"{box.url}/admin")
        page.until("document.activeElement.id === 'token'")
        page.write("moe-admin-nobody")
        with page.loading():
            page.press("Enter")
        check(page, axe_source)


def test_the_operators_page_of_a_busy_box(box: Box, page: Page, axe_source: str) -> None:
    calls = [*box.streams(("a", "b", "c", "d"), max_tokens=9000), box.post("e")]
    log_in(page, box)
    page.until("document.querySelectorAll('#queue tbody tr').length === 1")
    check(page, axe_source)
    for call in calls:
        call.close()


def test_an_open_question_and_a_drained_box_with_a_seat_off(box: Box, page: Page, axe_source: str) -> None:
    log_in(page, box)
    for action in ("disable-seat-b", "drain"):
        page.click(f"[popovertarget='do-{action}']")
        page.until(f"document.getElementById('do-{action}').matches(':popover-open')")
        page.click(f"#do-{action} button[type=submit]")
        page.until("document.querySelector('#said').innerText !== ''")
    page.until("document.querySelector('#operator .mode')?.innerText.startsWith('Drained')")
    page.click("[popovertarget='do-resume']")
    page.until("document.getElementById('do-resume').matches(':popover-open')")
    check(page, axe_source)


def test_the_page_of_a_seat(box: Box, page: Page, axe_source: str) -> None:
    assert box.chat("a").status == 200
    log_in_as_seat(page, box, "a")
    page.click("#agent-codex summary")
    check(page, axe_source)
