"""An engine that comes to READY and ends at what somebody asks: how often that is tried, however seldom they ask."""

from __future__ import annotations

import pytest

from tests.e2e.box import kill9
from tests.e2e.conftest import MakeBox

FATAL = {"die_on_marker": "fatal"}
AT_ONCE = {"appliance.engine.lifecycle.STABLE_S": 0.0}
"""Any time in READY is long enough: only who was served decides."""


def test_an_engine_that_each_first_request_ends_is_given_up_until_somebody_mends_it(make_box: MakeBox) -> None:
    # given an engine that answers the appliance's own questions
    box = make_box(knobs=FATAL, patches=AT_ONCE).start()

    # when the first request of anybody ends it, three times, however long it stood idle before
    for phase in ("backoff", "backoff", "failed"):
        box.wait_ready(10.0)
        assert box.chat("a", text="fatal").status in (502, 503)
        box.wait_phase(phase, 10.0)

    # then somebody has to ask for the next start
    assert box.cli("restart").returncode == 0
    box.wait_ready(10.0)


@pytest.mark.parametrize("gateway_dies", [False, True])
def test_one_that_answers_others_in_between_comes_back_each_time(make_box: MakeBox, gateway_dies: bool) -> None:
    box = make_box(knobs=FATAL, patches=AT_ONCE).start()
    for _ in range(4):
        box.wait_ready(10.0)
        for tokens in (8, 100):  # the second takes longer than the pause between two probes of the gateway
            assert box.chat("a", text="hello", max_tokens=tokens).done
        if gateway_dies:
            kill9(box.gateway_pid)
            box.wait_ready(10.0)
        assert box.chat("a", text="fatal").status in (502, 503)
        box.wait_phase("backoff", 10.0)
