"""An engine that dies, hangs or will not start: clients are told the truth at once, and the gateway stays up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.e2e.box import Box, alive, kill9, until
from tests.e2e.client import Call
from tests.e2e.conftest import MakeBox

TOLD_S = 1.0


class HealthWatch:
    """Asks /health again and again; `bad` lists each answer that was not a 200."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._stop = threading.Event()
        self.asked = 0
        self.bad: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            answer = self._box.get("/health")
            self.asked += 1
            if answer.status != 200:
                self.bad.append(answer.told())

    def __enter__(self) -> HealthWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def check_ended(streams: list[Call], killed_s: float) -> None:
    """Each stream ended in time with an honest error and without a clean end."""
    for call in streams:
        answer = call.wait(5)
        assert answer.cut, answer.told()
        assert answer.in_stream_error is not None, answer.told()
        assert (answer.ended_s or 0) - killed_s < TOLD_S


def check_told(call: Call, killed_s: float, *, had_200: bool) -> float:
    """A waiter heard of it in time: 503 + Retry-After, or an error in its stream; returns the seconds."""
    answer = call.wait(5)
    told_s = (answer.ended_s or 0) - killed_s
    if had_200:
        assert answer.status == 200
        assert answer.cut, answer.told()
        assert answer.in_stream_error is not None, answer.told()
    else:
        assert answer.status == 503, answer.told()
        assert 10 <= int(answer.headers["retry-after"]) <= 59
        assert answer.headers["x-moe-reject-reason"] in ("engine_lost", "engine_not_ready")
    assert told_s < TOLD_S
    return told_s


def test_killed_engine_ends_streams_honestly_and_comes_back(make_box: MakeBox) -> None:
    # Its workers live on for a second: nobody may wait for their end.
    box = make_box(knobs={"grandchildren": 2}, tables={"engine": {"grace_s": 0.3}}).start().wait_ready()
    gateway_pid, engine_pid = box.gateway_pid, box.engine_pid
    streams = box.streams()
    early = [box.post(seat, text="early") for seat in ("a", "b", "e", "f")]
    for call in early:
        call.wait_bytes(b"200 OK")
    late = [box.post(seat, stream=seat in "ac", text="late") for seat in "aceg"]
    until("all wait", lambda: box.waiting() == 8, 1.0)
    with HealthWatch(box) as health:
        killed_s = kill9(engine_pid)
        told = [check_told(call, killed_s, had_200=True) for call in early]
        told += [check_told(call, killed_s, had_200=False) for call in late]
        check_ended(streams, killed_s)
        box.wait_state("the daemon says that it is gone", lambda s: s["engine"]["phase"] != "ready", TOLD_S / 2)
        took_s, _ = box.served("a", 10.0)
    print(f"MEASURED waiters told {max(told) * 1000:.0f} ms after kill -9 of the engine, served again {took_s:.2f} s")
    assert health.asked > 10
    assert not health.bad
    state = box.state()
    assert state["gateway"]["pid"] == gateway_pid
    assert state["engine"]["pid"] not in (None, engine_pid)
    assert state["engine"]["restarts"] == 1


@pytest.fixture(scope="module")
def ailing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Box]]:
    """Two boxes whose engine does not start, started together: most of their time is waiting."""
    home = tmp_path_factory.mktemp
    boxes = {
        "never ready": Box(home("never"), tables={"engine": {"start_timeout_s": 2.0}}, knobs={"never_ready": True}),
        "dies": Box(home("dies"), knobs={"fail_load": "CUDA out of memory. Tried to allocate 3.00 GiB"}),
    }
    for box in boxes.values():
        box.start()
    yield boxes
    faults = [fault for box in boxes.values() if (fault := box.close())]
    assert not faults, "\n".join(faults)


def test_engine_that_never_gets_ready_is_ended_with_that_cause(ailing: dict[str, Box]) -> None:
    box = ailing["never ready"]
    started = box.wait_phase("starting")
    engine = box.wait_phase("backoff", 8.0)
    assert engine["cause"]["id"] == "engine.never_ready"
    assert "within 2 s" in engine["cause"]["title"]
    assert engine["since_s"] - started["since_s"] < 4.0
    box.set_knobs()
    box.wait_ready(10.0)


def test_engine_that_dies_at_each_start_is_given_up_and_starts_again_when_asked(ailing: dict[str, Box]) -> None:
    box = ailing["dies"]
    engine = box.wait_phase("failed", 20.0)
    assert engine["cause"]["id"] == "engine.gpu_memory"
    assert engine["restarts"] == 2
    assert any("CUDA out of memory" in line for line in engine["log_tail"])
    answer = box.chat("a")
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) == 59
    assert answer.headers["x-moe-reject-reason"] == "engine_not_ready"
    assert engine["cause"]["title"] in answer.json["error"]["message"]
    assert box.get("/health").status == 200
    gateway_pid = box.gateway_pid
    box.set_knobs()
    asked = box.cli("restart")
    assert (asked.returncode, asked.stdout) == (0, "the engine is being restarted\n")
    box.wait_ready(10.0)
    assert box.chat("a").done
    assert box.gateway_pid == gateway_pid


def test_engine_that_exits_with_0_unasked_has_crashed_and_comes_back(box: Box) -> None:
    engine_pid = box.engine_pid
    stream = box.streams(["a"])[0]
    box.engine("POST", "/_fake/knobs", {"exit_code": 0, "die_after_s": 0.05})
    answer = stream.wait(5)
    assert answer.cut, answer.told()
    assert answer.in_stream_error is not None
    cause = box.wait_phase("backoff", 3.0)["cause"]
    assert cause["id"] == "engine.exit_unasked"
    took_s, _ = box.served("a", 10.0)
    print(f"MEASURED served {took_s:.2f} s after an exit with 0")
    assert box.engine_pid != engine_pid


def test_engine_that_hangs_is_killed_and_comes_back(make_box: MakeBox) -> None:
    # The true limit is 5 probes of 2 s; the daemon runs with shorter ones here.
    patches = {"appliance.engine.health.HEALTH_S": 0.4}
    box = make_box(patches=patches, tables={"engine": {"grace_s": 0.3}}).start().wait_ready()
    engine_pid = box.engine_pid
    box.engine("POST", "/_fake/knobs", {"hang_health": True, "ignore_sigterm": True})
    hung_s = time.monotonic()
    engine = box.wait_phase("stopping", 6.0)
    took_s = time.monotonic() - hung_s
    print(f"MEASURED a hung engine was given up after {took_s:.2f} s")
    assert took_s < 3.2
    assert engine["cause"]["id"] == "engine.hung"
    assert "for 2 s" in engine["cause"]["title"]
    assert box.get("/health").status == 200
    box.wait_phase("ready", 12.0)
    assert box.engine_pid != engine_pid
    assert box.chat("a").done


def test_killed_guard_takes_the_engine_along_and_a_new_one_comes(make_box: MakeBox) -> None:
    box = make_box(knobs={"grandchildren": 2, "ignore_sigterm": True}, tables={"engine": {"grace_s": 0.3}}).start()
    engine_pid = box.wait_ready().engine_pid
    workers = box.stats()["grandchildren"]
    stream = box.streams(["a"])[0]
    killed_s = kill9(box.guard_pid)
    check_ended([stream], killed_s)
    engine = box.wait_phase("backoff", 6.0)
    assert engine["cause"]["id"] == "engine.guard_lost"
    assert not any(map(alive, [engine_pid, *workers]))
    box.served("a", 6.0)
    assert len(box.left()) == 6, box.told_left()


def test_an_engine_that_answers_with_an_error_while_it_dies_is_explained_by_its_end(make_box: MakeBox) -> None:
    dying = {"reject_status": 500, "die_in_request_s": 0.5, "last_words": "torch.OutOfMemoryError: CUDA out of memory."}
    box = make_box(knobs=dying, patches={"appliance.engine.run.DYING_S": 1.0}).start()
    assert box.wait_phase("backoff", 10.0)["cause"]["id"] == "engine.gpu_memory"
    box.set_knobs(reject_status=500)
    said = box.wait_state("a warm-up fails", lambda s: s["engine"]["cause"]["id"] == "warmup.completion", 10.0)
    assert said["engine"]["phase"] in ("stopping", "backoff")
