"""SIGTERM: admission stops at once, streams may end for a while or are ended honestly, and nothing is left."""

from __future__ import annotations

import signal
import socket
import time

from tests.e2e.box import Box, until
from tests.e2e.client import Answer, Call
from tests.e2e.conftest import MakeBox

ONE_STREAM = {"streams": 1}


def terminate(box: Box) -> float:
    """SIGTERM to the daemon, and wait until the gateway drains."""
    assert box.process is not None
    box.process.send_signal(signal.SIGTERM)
    at_s = time.monotonic()
    until("the gateway drains", lambda: "gateway.draining" in box.log, 2.0)
    return at_s


def check_draining(answer: Answer) -> None:
    """503, honest and whole."""
    assert (answer.status, answer.clean, answer.error) == (503, True, ""), answer.told()
    assert 10 <= int(answer.headers["retry-after"]) <= 59
    assert answer.headers["x-moe-reject-reason"] == "draining"


def check_gone(box: Box) -> None:
    """The daemon ended well and nothing is left."""
    assert box.process is not None
    assert box.process.wait(15) == 0, box.log[-3000:]
    assert not box.left(), box.told_left()
    assert "daemon.stopped" in box.log
    assert "gateway.hung" not in box.log
    assert "Traceback" not in box.log
    assert not list(box.runtime.glob("engine-*.key"))


def drained(make_box: MakeBox, drain_s: float, max_tokens: int) -> tuple[Box, Call, Call, float]:
    """A box with one stream and one waiter that was told to stop."""
    box = make_box(tables={"admission": ONE_STREAM, "gateway": {"drain_s": drain_s}}).start().wait_ready()
    stream = box.streams(["a"], max_tokens)[0]
    queued = box.post("b", stream=False)
    until("b waits", lambda: box.waiting() == 1, 2.0)
    return box, stream, queued, terminate(box)


def test_a_short_stream_ends_whole_while_all_others_are_refused(make_box: MakeBox) -> None:
    box, stream, queued, at_s = drained(make_box, drain_s=10.0, max_tokens=180)
    check_draining(queued.wait(2))
    check_draining(box.chat("c"))
    check_draining(box.chat("c", stream=False))
    print(f"MEASURED refused {(queued.answer.ended_s or 0) - at_s:.3f} s after SIGTERM")
    assert (queued.answer.ended_s or 0) - at_s < 0.5
    assert box.get("/health").status == 200
    assert box.get("/ready").status == 503
    assert not stream.answer.clean, "the stream was too short for this test"
    assert box.state()["stopping"]
    answer = stream.wait(10)
    assert answer.done, answer.told()
    assert answer.clean
    assert answer.in_stream_error is None
    check_gone(box)
    print(f"MEASURED exit 0 {time.monotonic() - (answer.ended_s or 0):.2f} s after the last stream")


def test_a_long_stream_is_ended_with_an_honest_error(make_box: MakeBox) -> None:
    box, stream, queued, at_s = drained(make_box, drain_s=0.5, max_tokens=5000)
    with socket.socket(socket.AF_UNIX) as idle, socket.socket(socket.AF_UNIX) as polling:
        # Neither keeps the daemon: a connection that says nothing, and an open long poll.
        for sock in (idle, polling):
            sock.connect(str(box.runtime / "control.sock"))
        path = f"/state?after={box.state()['revision']}&wait_s=50"
        polling.sendall(f"GET {path} HTTP/1.1\r\nhost: box\r\n\r\n".encode())
        check_draining(queued.wait(2))
        answer = stream.wait(5)
        assert answer.in_stream_error is not None, answer.told()
        assert answer.in_stream_error["code"] == "draining"
        assert answer.cut
        assert 0.4 < (answer.ended_s or 0) - at_s < 1.5
        check_gone(box)
    took_s = time.monotonic() - at_s
    print(f"MEASURED exit 0 {took_s:.2f} s after SIGTERM with drain_s 0.5")
    assert took_s < 5.0


def test_a_second_sigterm_ends_running_streams_at_once(make_box: MakeBox) -> None:
    box, stream, _, _ = drained(make_box, drain_s=30.0, max_tokens=5000)
    assert not stream.answer.ended_s
    assert box.process is not None
    box.process.send_signal(signal.SIGTERM)
    at_s = time.monotonic()
    answer = stream.wait(5)
    assert answer.in_stream_error is not None, answer.told()
    assert answer.cut
    assert (answer.ended_s or 0) - at_s < 1.0
    check_gone(box)


def test_a_stop_while_the_engine_loads_and_one_by_command(make_box: MakeBox) -> None:
    box = make_box(knobs={"never_ready": True}).start()
    box.wait_phase("starting")
    said = box.cli("stop")
    assert (said.returncode, said.stdout) == (0, "the box is being stopped\n")
    check_gone(box)
    assert box.cli("stop").returncode == 3
