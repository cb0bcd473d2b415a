"""One Chromium for all browser tests, boxes that serve, and the accessibility checker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.browser.chromium import Chromium, Page
from tests.e2e.box import ROOT, Box
from tests.e2e.conftest import box, make_box

__all__ = ["box", "make_box"]

AXE = ROOT / ".browser/node_modules/axe-core/axe.min.js"
_RUN = """
axe.run(document, {resultTypes: ['violations']}).then((found) => JSON.stringify(found.violations.map(
  (rule) => ({id: rule.id, impact: rule.impact, nodes: rule.nodes.map((node) => node.html.slice(0, 160))}))))
"""


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """The browser."""
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Page]:
    """A page without cookies, of which nothing may go wrong."""
    with chromium.page() as page:
        yield page
        assert page.faults == []


@pytest.fixture(scope="session")
def axe_source() -> str:
    """axe-core, which looks for what keeps people with a screen reader, a keyboard or weak eyes out."""
    assert AXE.exists(), f"{AXE} is missing: scripts/test --browser installs it"
    return AXE.read_text()


def grave_faults(page: Page, axe_source: str) -> list[dict[str, Any]]:
    """What axe-core finds serious or critical on the page as it is."""
    page.value(f"(() => {{ {axe_source}; return true; }})()")
    found: list[dict[str, Any]] = json.loads(page.value(_RUN))
    return [rule for rule in found if rule["impact"] in ("serious", "critical")]


def log_in(page: Page, box: Box) -> None:
    """As a person does: paste the token, press Enter."""
    page.goto(f"{box.url}/admin")
    page.until("document.activeElement.id === 'token'")
    page.write(box.admin_key)
    with page.loading():
        page.press("Enter")
    page.until("document.querySelector('#live .verdict')")


def log_in_as_seat(page: Page, box: Box, seat: str) -> None:
    """The same with the key of a seat, on its own page."""
    page.goto(f"{box.url}/seat")
    page.until("document.activeElement.id === 'key'")
    page.write(box.keys[seat])
    with page.loading():
        page.press("Enter")
    page.until("document.querySelector('#h-usage')")


def act_elsewhere(box: Box, action: str, seat: str = "") -> None:
    """An admin with a token does something while the page is open."""
    headers = {"authorization": f"Bearer {box.admin_key}", "accept": "application/json"}
    httpx.post(f"{box.url}/admin/actions/{action}", data={"seat": seat}, headers=headers).raise_for_status()


def lanes(page: Page) -> list[str]:
    """What each lane says."""
    script = "JSON.stringify([...document.querySelectorAll('#lanes .lane')].map((lane) => lane.innerText))"
    found: list[str] = json.loads(page.value(script))
    return found
