"""A long prompt that waits, in a real browser: why streams are free while others wait."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import grave_faults, lanes, log_in, log_in_as_seat
from tests.e2e.box import Box, until

pytestmark = pytest.mark.browser


@contextmanager
def gate_closed(box: Box) -> Iterator[None]:
    """a and b write on and on, c's long prompt is next, and d waits for it."""
    chance = random.Random(7)
    long = " ".join(f"{chance.randrange(10**6):06d}" for _ in range(40_000))
    calls = box.streams(("a", "b"), max_tokens=6000)
    try:
        calls.append(box.post("c", text=long))
        until("c is in line", lambda: box.waiting() == 1, 10)
        calls.append(box.post("d"))
        until("d is in line", lambda: box.waiting() == 2, 10)
        yield
    finally:
        for call in calls:
            call.close()


def test_a_closed_gate_is_told_with_its_end_and_is_no_fault(box: Box, page: Page, axe_source: str) -> None:
    log_in(page, box)
    with gate_closed(box):
        page.until("document.querySelectorAll('#queue tbody tr').length === 2")
        page.until("document.querySelector('.verdict').innerText.includes('held free for a ~')")
        assert page.value("document.querySelector('.verdict').className.includes('tone-ok')")
        assert "prompt of c, at most ~" in page.text(".verdict")
        assert "gate closed" in page.text("#cold")
        assert "The gate is closed for a ~" in page.text("#cold .cold-said")
        assert "held free for c" in lanes(page)[2]
        why = [page.text(f"#queue tbody tr:nth-child({place}) .why") for place in (1, 2)]
        assert sorted("comes next" in text for text in why) == [False, True]
        assert any("prompt of c is read first" in text for text in why)
        assert grave_faults(page, axe_source) == []


def test_who_waits_for_anothers_long_prompt_is_told_so_without_a_name(box: Box, page: Page) -> None:
    log_in_as_seat(page, box, "d")
    with gate_closed(box):
        page.until("document.querySelector('.own-queue .because')")
        assert "prompt of another seat is read first, about" in page.text(".own-queue .because")
