"""A daemon that is killed leaves nothing behind, and the next one starts on the same folder and port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tests.e2e.box import MARK, alive, command_line, kill9, until
from tests.e2e.conftest import MakeBox

GONE_S = 10.0
WORKERS = {"grandchildren": 2}


def test_killed_daemons_leave_nothing(make_box: MakeBox) -> None:
    kinds = {"strays": {"grandchildren_setsid": True}, "deaf": {"ignore_sigterm": True}}
    patient = {"engine": {"grace_s": 30.0}}  # the default; a daemon that died leaves no time for it
    boxes = [make_box(name, knobs=WORKERS | knobs, tables=patient).start() for name, knobs in kinds.items()]
    for box in boxes:
        workers = box.wait_ready().stats()["grandchildren"]
        assert len(box.left()) == 6, box.told_left()  # daemon, gateway, guard, engine, two workers
        assert set(workers) < set(box.left())
    streams = [box.streams(["a"])[0] for box in boxes]
    killed_s = max([kill9(box.pid) for box in boxes])
    until("nothing is left", lambda: not any(box.left() for box in boxes), GONE_S, 0.1)
    print(f"MEASURED nothing left {time.monotonic() - killed_s:.2f} s after kill -9 of the daemon")
    for box, stream in zip(boxes, streams, strict=True):
        assert stream.wait(5).cut, stream.answer.told()
        assert box.process is not None
        box.process.wait()
    boxes[0].set_knobs()
    boxes[0].start().wait_ready()  # the port is free, nothing is in the way
    assert boxes[0].chat("a").done
    assert boxes[0].stop() == 0


def test_what_a_killed_guard_left_is_ended_by_the_next_start_and_nothing_else(make_box: MakeBox) -> None:
    box = make_box(knobs=WORKERS | {"ignore_sigterm": True}, tables={"engine": {"grace_s": 0.3}}).start().wait_ready()
    daemon, guard, engine, gateway = box.pid, box.guard_pid, box.engine_pid, box.gateway_pid
    workers = box.stats()["grandchildren"]
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env=os.environ | {MARK: box.mark},
        start_new_session=True,
    )
    try:
        for pid in (guard, gateway):
            os.kill(pid, signal.SIGSTOP)  # neither can act between the two kills; the gateway keeps the port
        for pid in (daemon, guard):
            kill9(pid)
        # A guard that dies takes its direct child along (PR_SET_PDEATHSIG); the workers stay.
        until("the engine ends with its guard", lambda: not alive(engine), 3.0)
        assert sorted([gateway, *workers, stranger.pid]) == box.left(), box.told_left()
        assert box.process is not None
        box.process.wait()
        box.set_knobs()
        box.start().wait_ready()
        assert not any(map(alive, [gateway, *workers]))
        assert box.log.count('"daemon.swept"') == 2
        assert alive(stranger.pid), command_line(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()
    assert box.stop() == 0
