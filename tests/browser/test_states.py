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

from gateway.prewarm.queue import PrewarmState
from gateway.snapshot import GatewaySnapshot
from gateway.state import BoxState, Cause, HostKv, Phase, Severity
from tests.browser.chromium import Page
from tests.browser.conftest import grave_faults
from tests.gateway.test_admin import TOKEN, Site
from tests.status_sample import GPU, NOW_S, box, event, finding, gateway, lane, lively, seat, waiting, watch_row

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


def cold() -> tuple[BoxState, GatewaySnapshot]:
    """Long names in the cold lane, a lowered cap, many clients that change their prompts, a tier that is off."""
    state, found = lively()
    assert found.speed is not None
    why = Cause(id="engine.host_kv", title="no prompt came back from host RAM " + "x" * 80, remedy="y")
    rows = tuple(watch_row(f"{LONG[:-2]}{n:02d}", "claude-cli", lost_s=9000.0 - n) for n in range(30))
    line = tuple(
        waiting(n + 1, LONG, why="reading", why_s=99.0, why_tokens=900_000, uncached_tokens=900_000) for n in range(9)
    )
    more = {
        "waiting": line,
        "watch": rows,
        "lane": lane(closed=False, reading_seat=LONG, reading_tokens=900_000, next_seat=LONG, next_tokens=900_000),
        "speed": found.speed.model_copy(update={"cap": 3, "pace_tok_per_s": 31.0}),
        "prewarm": PrewarmState(of=5, done=1, given_up=3, now=f"a conversation of {LONG}", last_error="e" * 300),
    }
    tier = state.engine.model_copy(update={"host_kv": HostKv(bytes=1 << 36, off=why)})
    return state.model_copy(update={"engine": tier}), found.model_copy(update=more)


STATES = {
    "cold lane": cold(),
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
