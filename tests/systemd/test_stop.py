"""`systemctl stop` while seats stream: who may end, ends; who may not, is told so; nothing is left."""

from __future__ import annotations

import threading
import time

import pytest

from tests.systemd.machine import Ran
from tests.systemd.service import RUN, UNIT, Service

pytestmark = pytest.mark.systemd


class Stopping:
    """`systemctl stop` in a thread."""

    def __init__(self, service: Service) -> None:
        self._ran: list[tuple[Ran, float]] = []
        self._thread = threading.Thread(target=self._stop, args=(service, time.monotonic()))
        self._thread.start()

    def _stop(self, service: Service, started_s: float) -> None:
        ran = service.systemctl("stop")
        self._ran.append((ran, time.monotonic() - started_s))

    def end(self) -> tuple[Ran, float]:
        """What it said, and how long it took, seconds."""
        self._thread.join(120)
        return self._ran[0]


def assert_nothing_is_left(service: Service, pids: dict[str, int]) -> None:
    """The unit is off in good order, and none of its processes is there."""
    shown = service.show("ActiveState", "Result", "ExecMainStatus")
    assert shown == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    assert [name for name, pid in pids.items() if service.machine.run(f"kill -0 {pid}").code == 0] == []
    assert service.machine.run(f"pgrep -u {UNIT}").out == ""
    assert not service.machine.path(RUN).exists()


def test_a_stream_that_ends_within_the_drain_ends_whole_and_the_one_that_does_not_is_told(service: Service) -> None:
    service.set_knobs(ms_per_token=[20.0])
    service.systemctl("restart").ok()
    pids = service.wait_ready().pids
    long, short = service.stream("ana", 3000), service.stream("ben", 60)
    stop = Stopping(service)
    ended, cut = short.wait(), long.wait()
    ran, took_s = stop.end()
    ran.ok()
    assert (ended.done, ended.clean, ended.in_stream_error) == (True, True, None), ended.told()
    assert cut.in_stream_error is not None, cut.told()
    assert cut.cut, cut.told()
    assert 2.5 < took_s < 15, took_s  # drain_s = 3, then the engine
    assert_nothing_is_left(service, pids)


def test_a_stop_of_an_idle_box_is_quick(service: Service) -> None:
    pids = service.pids
    ran, took_s = Stopping(service).end()
    ran.ok()
    assert took_s < 5
    assert_nothing_is_left(service, pids)


def test_an_engine_that_ignores_the_signal_holds_no_stop_up_and_leaves_no_children(service: Service) -> None:
    service.set_knobs(ignore_sigterm=True, grandchildren=2, grandchildren_setsid=True)
    service.systemctl("restart").ok()
    pids = service.wait_ready().pids
    ran, took_s = Stopping(service).end()
    ran.ok()
    assert took_s < 15
    assert_nothing_is_left(service, pids)


def test_while_it_stops_the_status_line_says_so(service: Service) -> None:
    call = service.stream("ana", 3000)
    stop = Stopping(service)
    seen = set()
    while call.answer.ended_s is None:
        seen.add(service.show_one("StatusText"))
        time.sleep(0.1)
    stop.end()[0].ok()
    assert any("stopping" in text for text in seen), seen
