"""The operator's page in a real browser: what a person sees, does with mouse and keys, and what stays as it is."""

from __future__ import annotations

import os
import secrets
import signal

import pytest

from gateway.keys import SEAT_PREFIX, new_key
from tests.browser.chromium import Chromium, Page
from tests.browser.conftest import act_elsewhere, lanes, log_in
from tests.e2e.box import Box
from tests.e2e.conftest import MakeBox

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
        page.until("document.activeElement.id === 'token'")
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
    calls = box.streams(("a", "b", "c", "d"), max_tokens=6000)
    for number, seat in enumerate(("e", "f"), start=1):
        calls.append(box.post(seat))
        page.until(f"document.querySelectorAll('#queue tbody tr').length === {number}")
    assert page.text("#queue tbody tr:first-child .place") == "1"
    assert page.text("#queue tbody tr:nth-child(2) .who b") == "f"
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
    starts = "document.querySelector('#events').innerText.split('the engine is ready').length"
    before, started = page.value(starts), box.state()["engine"]["start_id"]
    open_and_confirm(page, "restart-engine")
    page.until("document.querySelector('#events').innerText.includes('engine.restart_asked')")
    # a fake engine may be back between two looks of the page: that it was away is told by what stays, its events
    page.until(f"{starts} > {before}", 30)
    page.until("document.querySelector('#engine .chip').innerText === 'Ready'", 30)
    assert box.state()["engine"]["start_id"] != started


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


def test_what_an_update_puts_in_front_leaves_the_rest_as_it_is(page: Page, box: Box) -> None:
    page.goto(f"{box.url}/admin")  # the login has the script and nothing that is live
    before = '<li id="one">1</li>\n<li id="two">2</li>\n'
    after = '\n<li id="new">0</li>\n<li id="two">2</li>\n<li id="last">3</li>'
    page.value(f"""(() => {{
      const list = (html) => Object.assign(document.createElement("ol"), {{innerHTML: html}});
      window.old = list({before!r});
      window.two = old.querySelector("#two");
      morphChildren(old, list({after!r}));
    }})()""")
    assert page.value("old.innerHTML") == after
    assert page.value("old.querySelector('#two') === two")


def test_a_question_stays_open_while_others_change_what_may_be_done(box: Box, page: Page) -> None:
    # given an open question about one seat
    log_in(page, box)
    page.click("[popovertarget='do-disable-seat-c']")
    page.until("document.activeElement.innerText === 'Cancel'")
    page.value("window.asked = document.activeElement, 0")
    # when another admin pauses the box and switches off the seat in the row above
    for action in ("pause", "disable-seat"):
        act_elsewhere(box, action, "b")
    page.until("document.getElementById('do-enable-seat-b') && document.getElementById('do-resume')")
    # then the question is open as before, and does what it says
    assert page.value("document.querySelector('#do-disable-seat-c').matches(':popover-open')")
    assert page.value("document.activeElement === asked")
    page.click("#do-disable-seat-c button[type=submit]")
    page.until("document.querySelector('#seat-c').innerText.includes('by root')")


def test_nothing_moves_under_a_pressed_button(box: Box, page: Page) -> None:
    log_in(page, box)
    where = (
        "(({x, y}) => [x + 5, y + 5])(document.querySelector(\"[popovertarget='do-drain']\").getBoundingClientRect())"
    )
    x, y = page.value(where)
    page.mouse("mousePressed", x, y)
    act_elsewhere(box, "pause")
    asked = len(page.requests)
    page.until_true(lambda: len(page.requests) >= asked + 2)
    assert page.value("document.getElementById('do-resume')") is None
    page.mouse("mouseReleased", x, y)
    page.until("document.getElementById('do-drain').matches(':popover-open')")
    page.until("document.getElementById('do-resume')")


def test_an_event_does_not_push_the_rows_below(box: Box, page: Page) -> None:
    log_in(page, box)
    top = "document.querySelector('#seats').getBoundingClientRect().top + scrollY"
    before, events = page.value(top), page.value("document.querySelectorAll('.event').length")
    for _ in range(3):
        act_elsewhere(box, "reload")
        act_elsewhere(box, "disable-seat", "e")
        act_elsewhere(box, "enable-seat", "e")
    page.until(f"document.querySelectorAll('.event').length > {events} + 4")
    assert page.value(top) == before


def test_one_question_at_a_time_so_that_no_old_answer_replaces_a_new_one(box: Box, page: Page) -> None:
    log_in(page, box)
    page.until("document.querySelector('#clock:not([hidden])')")
    page.value("""(() => {
      window.most = window.now = 0;
      window.answers = 0;
      const ask = fetch;
      window.fetch = async (...args) => {
        most = Math.max(most, ++now);
        await new Promise((go) => setTimeout(go, 300));
        try { return await ask(...args); } finally { now--; answers++; }
      };
      const again = () => document.dispatchEvent(new Event("visibilitychange"));
      for (let at = 0; at < 2000; at += 50) setTimeout(again, at);
    })()""")
    page.until("answers >= 4")
    assert page.value("most") == 1


def test_seats_whose_names_end_like_parts_of_the_page_are_told_apart(make_box: MakeBox, page: Page) -> None:
    box = make_box()
    box.keys |= {name: new_key(SEAT_PREFIX, secrets.token_bytes(32)) for name in ("a-b", "a-q", "a-e")}
    box.write_seats()
    box.start().wait_ready()
    log_in(page, box)
    ids = "[...document.querySelectorAll('[id]')].map((found) => found.id)"
    assert page.value(f"{ids}.length === new Set({ids}).size")
    open_and_confirm(page, "disable-seat-a-b")
    page.until("document.querySelector('#seat-a-b').innerText.includes('by root')")


def test_without_scripts_an_action_still_asks_and_is_done(box: Box, page: Page) -> None:
    log_in(page, box)
    page.scripts(on=False)
    page.goto(f"{box.url}/admin")
    page.click("[popovertarget='do-pause']")
    page.press("Enter")  # the question has the focus on what does it
    page.until("document.querySelector('#operator .mode')?.innerText.startsWith('Paused by root')")
    assert page.value("location.pathname") == "/admin"


def test_a_screen_reader_is_told_when_the_verdict_turns_and_not_of_every_figure(box: Box, page: Page) -> None:
    log_in(page, box)
    told = "document.querySelector('#told[role=status]').textContent"
    calls = box.streams(("a",), max_tokens=6000)
    page.until("document.querySelector('.sentence').textContent.includes('1 of 4')")
    assert page.value(told) == ""
    act_elsewhere(box, "pause")
    page.until(f"{told}.startsWith('Paused by root')")
    act_elsewhere(box, "resume")
    page.until(f"{told}.startsWith('Serving')")
    for call in calls:
        call.close()


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
