"""The operator's page in states that no other test's box is in: crowded, empty, failed, drained; at every width."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from gateway.snapshot import GatewaySnapshot
from gateway.state import BoxState, Phase, Severity
from tests.browser.chromium import Page
from tests.browser.conftest import grave_faults
from tests.gateway.test_admin import TOKEN, Site
from tests.status_sample import GPU, NOW_S, box, event, finding, gateway, lively, seat, waiting

pytestmark = pytest.mark.browser
LONG = "developer-with-a-long-name-0000"
WIDTHS = (1280, 981, 980, 821, 820, 700, 561, 560, 520, 431, 430, 360, 320)


def crowded() -> tuple[BoxState, GatewaySnapshot]:
    """Two hundred seats with long names, a hundred findings, a full line."""
    state, found = lively()
    seats = [
        seat(f"{LONG[:-3]}{n:03d}", max_streams=3, month_tokens=9_999_999, budget_tokens=20_000_000) for n in range(200)
    ]
    seats[1] = seats[1].model_copy(update={"state": "disabled", "off_by": LONG})
    line = tuple(waiting(n + 1, LONG) for n in range(32))
    events = tuple(event("operator.seat", float(n), "x" * 150, Severity.WARN, LONG) for n in range(50))
    findings = tuple(finding(f"check.number-{n}" + "-long" * 30) for n in range(100))
    changes = {"seats": tuple(seats), "waiting": line, "events": events}
    return state.model_copy(update={"findings": findings}), found.model_copy(update=changes)


def drained() -> tuple[BoxState, GatewaySnapshot]:
    """Cards that do not answer, and a mode that was set an hour ago."""
    state, found = lively()
    assert state.gauges is not None
    silent = state.gauges.model_copy(update={"at_s": NOW_S - 60, "error": "no answer from the driver for 60 s"})
    mode = {"mode": "drained", "mode_by": LONG, "mode_since_s": NOW_S - 4000}
    return state.model_copy(update={"gauges": silent}), found.model_copy(update=mode)


STATES = {
    "lively": lively(),
    "crowded": crowded(),
    "empty": (box(), gateway(0, seats=())),
    "failed": (
        box(Phase.FAILED, cause=GPU, log_tail=("CUDA error: " + "x" * 300,) * 20, models=("m" * 200,)),
        gateway(0),
    ),
    "drained": drained(),
}


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Site, str]]:
    """Pages of a made-up gateway, and where they are served."""
    made, ticks = Site(), itertools.count(step=10)
    made.clock = lambda: float(next(ticks))  # type: ignore[method-assign]
    sock = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(made.client().app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield made, f"http://127.0.0.1:{sock.getsockname()[1]}/admin"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("name", STATES)
def test_no_state_scrolls_sideways_or_keeps_anybody_out(
    name: str, site: tuple[Site, str], page: Page, axe_source: str
) -> None:
    made, url = site
    made.box, made.snapshot = STATES[name]
    with page.loading():
        page.goto(f"{url}#token={TOKEN}")
    page.until("document.querySelector('#clock:not([hidden])')")
    wide = {}
    for width in WIDTHS:
        page.size(width)
        found = page.value("document.documentElement.scrollWidth")
        if found > width:
            wide[width] = found
    assert wide == {}
    page.size(1280)
    page.media(still=True)
    assert grave_faults(page, axe_source) == []
