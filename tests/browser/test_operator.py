"""The operator's page in a real browser: what a person sees, does with mouse and keys, and what stays as it is."""

from __future__ import annotations

import os
import signal

import pytest

from tests.browser.chromium import Chromium, Page
from tests.browser.conftest import lanes, log_in
from tests.e2e.box import Box

pytestmark = pytest.mark.browser


def open_and_confirm(page: Page, action: str) -> None:
    page.click(f"[popovertarget='do-{action}']")
    page.until(f"document.getElementById('do-{action}').matches(':popover-open')")
    page.click(f"#do-{action} button[type=submit]")


def test_a_token_opens_the_page_and_logging_out_closes_it(box: Box, page: Page) -> None:
    log_in(page, box)
    assert page.text(".verdict .sentence") == "Serving: 0 of 4 streams busy, nobody waits."
    with page.loading():
        page.click("form[action='/admin/logout'] button")
    assert page.text("h1") == "moe-appliance"
    assert page.value("document.querySelector('#token') !== null")


def test_a_wrong_token_is_told_beside_the_form(box: Box, chromium: Chromium) -> None:
    with chromium.page() as page:
        page.goto(f"{box.url}/admin")
        page.write("moe-admin-nobody")
        with page.loading():
            page.press("Enter")
        assert "not known here" in page.text("[role=alert]")
        assert [fault for fault in page.faults if "401" not in fault] == [], "browsers report the status of a page"


def test_lanes_move_while_streams_run_and_come_free_after(box: Box, page: Page) -> None:
    # given the page of an idle box
    log_in(page, box)
    assert all("free" in lane for lane in lanes(page))
    # when two seats stream
    calls = box.streams(("a", "b"), max_tokens=6000)
    # then their lanes fill, and their tokens grow without a reload
    page.until("document.querySelectorAll('#lanes .lane.busy').length === 2")
    tokens = "Number(document.querySelector('#lanes .busy .detail span:nth-child(2)').innerText.replace(/\\D/g, ''))"
    first = page.until(tokens)
    page.until(f"{tokens} > {first}")
    assert page.value("document.querySelector('#lanes .busy .fill').getAttribute('width')") != "0"
    assert "Serving: 2 of 4 streams busy" in page.text(".verdict")
    assert page.value("document.title").startswith("Serving")
    # and come free when the clients leave
    for call in calls:
        call.close()
    page.until("document.querySelectorAll('#lanes .lane.busy').length === 0")


def test_who_waits_is_shown_with_the_place_in_line(box: Box, page: Page) -> None:
    log_in(page, box)
    calls = [*box.streams(("a", "b", "c", "d"), max_tokens=6000), box.post("e"), box.post("f")]
    page.until("document.querySelectorAll('#queue tbody tr').length === 2")
    assert page.text("#queue tbody tr:first-child .place") == "1"
    assert page.text("#queue tbody tr:nth-child(2) th") == "f"
    for call in calls:
        call.close()


def test_draining_asks_once_refuses_who_comes_and_is_undone(box: Box, page: Page) -> None:
    # given a box that serves
    log_in(page, box)
    assert page.value("document.getElementById('do-resume')") is None, "what makes no sense is not offered"
    # when the operator opens the question and leaves it
    page.click("[popovertarget='do-drain']")
    page.until("document.activeElement.innerText === 'Cancel'")
    page.press("Escape")
    page.until("!document.getElementById('do-drain').matches(':popover-open')")
    # then nothing was done
    assert box.chat("a").status == 200
    # when it is confirmed
    open_and_confirm(page, "drain")
    # then who comes is refused, and the page says who did it and how to undo it
    page.until("document.querySelector('#operator .mode')?.innerText.startsWith('Drained by root')")
    assert box.chat("a").status == 503
    assert "new requests are refused" in page.text("#said")
    page.until("document.querySelector('#events').innerText.includes('operator.mode')")
    # and when it is undone, it serves again
    open_and_confirm(page, "resume")
    page.until("document.querySelector('#operator .mode')?.innerText === ''")
    assert box.chat("a").status == 200


def test_pausing_holds_the_line_and_resuming_lets_it_through(box: Box, page: Page) -> None:
    log_in(page, box)
    open_and_confirm(page, "pause")
    page.until("document.querySelector('#operator .mode')?.innerText.startsWith('Paused by root')")
    call = box.post("a")
    page.until("document.querySelectorAll('#queue tbody tr').length === 1")
    open_and_confirm(page, "resume")
    answer = call.wait()
    assert (answer.status, answer.done) == (200, True)
    page.until("document.querySelectorAll('#queue tbody tr').length === 0")


def test_a_seat_is_switched_off_and_on_from_its_row(box: Box, page: Page) -> None:
    log_in(page, box)
    open_and_confirm(page, "disable-seat-b")
    page.until("document.querySelector('#seat-b').innerText.includes('by root')")
    assert box.chat("b").status == 403
    assert box.chat("a").status == 200
    open_and_confirm(page, "enable-seat-b")
    page.until("document.querySelector('#seat-b').innerText.includes('active')")
    assert box.chat("b").status == 200


def test_the_engine_is_restarted_and_the_page_follows_it(box: Box, page: Page) -> None:
    log_in(page, box)
    before = box.engine_pid
    open_and_confirm(page, "restart-engine")
    page.until("document.querySelector('#engine .chip').innerText !== 'Ready'")
    page.until("document.querySelector('#engine .chip').innerText === 'Ready'", 30)
    assert box.engine_pid != before


def test_a_broken_seat_file_is_told_when_it_is_read_again(box: Box, page: Page) -> None:
    log_in(page, box)
    good = box.seats_file.read_text()
    box.seats_file.write_text("[seats")
    page.until("document.querySelector('#findings')?.innerText.includes('is broken')")
    with page.quiet("409"):
        open_and_confirm(page, "reload")
        page.until("document.querySelector('#said').classList.contains('not-done')")
    box.seats_file.write_text(good)
    page.until("document.querySelector('#findings') === null")


def test_an_action_can_be_done_with_the_keyboard_alone(box: Box, page: Page) -> None:
    # given the page, and no mouse
    log_in(page, box)
    # when somebody tabs to Pause and opens it
    page.tab_to("[popovertarget='do-pause']")
    assert page.value("getComputedStyle(document.activeElement).outlineStyle") != "none", "the focus can be seen"
    page.press("Enter")
    # then the focus is in the question, on what does it
    page.until("document.activeElement.matches('#do-pause button[type=submit]')")
    page.press("Enter")
    page.until("document.querySelector('#operator .mode')?.innerText.startsWith('Paused by root')")
    # and goes on from what the page says, since the button is gone
    page.until("document.activeElement.id === 'said'")
    page.tab_to("[popovertarget='do-resume']")
    page.press(" ")
    page.until("document.activeElement.matches('#do-resume button[type=submit]')")
    page.press("Enter")
    page.until("document.querySelector('#operator .mode')?.innerText === ''")


def test_focus_selection_and_open_questions_outlive_the_refresh(box: Box, page: Page) -> None:
    log_in(page, box)
    page.value("getSelection().selectAllChildren(document.querySelector('#seat-a th'))")
    page.click("[popovertarget='do-disable-seat-c']")
    page.until("document.querySelector('#do-disable-seat-c').matches(':popover-open')")
    page.until("document.activeElement.innerText === 'Cancel'")
    page.value("window.asked = document.activeElement, window.told = live.querySelector('#gateway dd').innerText, 0")
    # when the live part was replaced at least once
    page.until("live.querySelector('#gateway dd').innerText !== told")
    assert page.value("document.querySelector('#do-disable-seat-c').matches(':popover-open')")
    assert page.value("document.activeElement === asked")
    page.press("Escape")
    page.until("document.activeElement.matches(\"[popovertarget='do-disable-seat-c']\")")


def test_without_scripts_an_action_still_asks_and_is_done(box: Box, page: Page) -> None:
    log_in(page, box)
    page.scripts(on=False)
    page.goto(f"{box.url}/admin")
    page.click("[popovertarget='do-pause']")
    page.press("Enter")  # the question has the focus on what does it
    page.until("document.querySelector('#operator .mode')?.innerText.startsWith('Paused by root')")
    assert page.value("location.pathname") == "/admin"


def test_nothing_but_the_box_is_asked_and_nothing_is_inline(box: Box, page: Page) -> None:
    log_in(page, box)
    page.until("document.querySelector('#clock:not([hidden])')")
    assert {url.split("/", 3)[2] for url in page.requests} == {f"127.0.0.1:{box.port}"}
    assert page.value("document.querySelectorAll('[style], style, script:not([src])').length") == 0


def test_a_gateway_that_is_gone_is_told_and_the_page_comes_back(box: Box, chromium: Chromium) -> None:
    with chromium.page() as page:
        log_in(page, box)
        os.kill(box.gateway_pid, signal.SIGSTOP)
        page.until("!document.querySelector('#stale').hidden", 20)
        # the daemon replaces a gateway that hangs
        page.until("document.querySelector('#stale').hidden", 30)


@pytest.mark.parametrize("width", [1280, 768, 520, 360])
def test_no_width_makes_the_page_scroll_sideways(box: Box, page: Page, width: int) -> None:
    log_in(page, box)
    page.size(width)
    assert page.value("document.documentElement.scrollWidth") <= width
    hidden = page.value(
        """[...document.querySelectorAll('main *')].filter((found) => {
          const box = found.getBoundingClientRect();
          return box.width > 1 && box.right > innerWidth + 1 && !found.closest('pre, .unseen, [popover]');
        }).map((found) => found.outerHTML.slice(0, 120))"""
    )
    assert hidden == []


def test_dark_is_dark_and_light_is_light(box: Box, page: Page) -> None:
    log_in(page, box)
    brightness = """(() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)
      .map(Number).reduce((sum, part) => sum + part))()"""
    page.media(dark=False)
    assert page.value(brightness) > 600
    page.media(dark=True)
    assert page.value(brightness) < 120


def test_who_wants_no_motion_gets_none(box: Box, page: Page) -> None:
    log_in(page, box)
    page.media(still=True)
    moving = "document.getAnimations().length"
    calls = box.streams(("a",), max_tokens=3000)
    page.until("document.querySelectorAll('#lanes .lane.busy').length === 1")
    assert page.value(moving) == 0
    for call in calls:
        call.close()
