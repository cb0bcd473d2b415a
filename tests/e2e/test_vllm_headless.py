"""A box that only computes for box 0, with a stand-in for vLLM's ranks. A listener of the test is box 0."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.box import Box, alive, free_port, kill9
from tests.e2e.conftest import MakeBox
from tests.fake_vllm import install, model_in

MakePart = Callable[..., Box]
SOON: dict[str, float | str] = {
    "appliance.engine.lifecycle.BACKOFF_FIRST_S": 0.1,
    "appliance.engine.vllm.head.AGAIN_S": 0.1,
}


class Head:
    """Box 0 as far as its master port goes: takes connections and says nothing, from `come` to `go`."""

    def __init__(self) -> None:
        self.port = free_port()
        self._door: socket.socket | None = None
        self._taken: list[socket.socket] = []
        self._taking: threading.Thread | None = None

    def come(self) -> None:
        """Listen."""
        self._door = door = socket.create_server(("127.0.0.1", self.port))
        self._taking = threading.Thread(target=self._take, args=(door,))
        self._taking.start()

    def _take(self, door: socket.socket) -> None:
        with suppress(OSError):
            while True:
                self._taken.append(door.accept()[0])

    def go(self) -> None:
        """All connections end, and no more are taken."""
        if self._door is not None and self._taking is not None:
            self._door.shutdown(socket.SHUT_RDWR)
            self._taking.join()
            self._door.close()
        self._door = None
        while self._taken:
            self._taken.pop().close()


@pytest.fixture
def head() -> Iterator[Head]:
    head = Head()
    yield head
    head.go()


@pytest.fixture
def make_part(tmp_path: Path, make_box: MakeBox, head: Head) -> MakePart:
    """Makes the box of rank 1; keywords go into [engine], `knobs` to the stand-in."""
    python, model = install(tmp_path / "env"), model_in(tmp_path / "tiny")

    def make(*, knobs: dict[str, Any] | None = None, **engine: Any) -> Box:
        (tmp_path / "vllm.json").write_text(json.dumps(knobs or {}))
        nodes = {"nnodes": 2, "node_rank": 1, "master_addr": "127.0.0.1", "host": "127.0.0.1", "interface": "lo"}
        table = {
            **{"kind": "vllm", "profile": "vllm-cpu-tiny", "python": str(python), "model": str(model)},
            **{"served_model": "fake-model", "pipeline_parallel": 2, "grace_s": 2.0},
            **{"env": {"FAKE_VLLM_KNOBS": f"@{tmp_path}/vllm.json"}, "nodes": nodes | {"master_port": head.port}},
        }
        return make_box(tables={"engine": table | engine}, patches=SOON)

    return make


def started_anew(box: Box, before: dict[str, Any]) -> dict[str, Any]:
    """The state once another start is well; nothing of the one before is left."""
    box.wait_state("started anew", lambda s: s["engine"]["start_id"] not in ("", before["start_id"]), 20)
    after = box.wait_phase("ready")
    assert not alive(before["pid"])
    assert after["restarts"] == before["restarts"] + 1
    return after


def test_it_is_well_without_a_server_and_starts_anew_when_box_0_has_gone(make_part: MakePart, head: Head) -> None:
    # given a box 0 that is not there yet
    box = make_part().start()
    step = f"waiting for box 0 at 127.0.0.1:{head.port}"
    box.wait_state("waiting", lambda s: s["engine"]["step"] == step, 20)
    # when
    head.come()
    before = box.wait_phase("ready")
    # then
    assert (before["url"], before["key_file"], before["models"], before["cause"]) == (None, None, [], None)
    # when box 0 goes
    head.go()
    left = box.wait_state("ended", lambda s: s["engine"]["step"] == step, 20)["engine"]
    assert left["cause"]["id"] == "engine.nodes_left"
    assert f"127.0.0.1:{head.port} has gone (closed the connection)" in left["cause"]["title"]
    assert not alive(before["pid"])
    # and when it is back
    head.come()
    started_anew(box, before)
    assert box.stop() == 0


def test_its_gateway_sends_everybody_to_box_0_and_its_page_finds_nothing_wrong(make_part: MakePart, head: Head) -> None:
    head.come()
    box = make_part().start()
    box.wait_phase("ready")
    for answer in (box.chat("a", stream=False), box.get("/ready")):
        assert answer.status == 503
        assert "This box computes for 127.0.0.1; ask there." in answer.body.decode()
        assert "engine_not_ready" in answer.body.decode()
        assert "retry-after" not in answer.headers
    assert box.chat("a").headers["x-should-retry"] == "false"
    shown = box.control("GET", "/status", socket_name="gateway")[1]
    where = f"helps box 0 at 127.0.0.1:{head.port}"
    assert (shown["verdict"]["rule"], shown["verdict"]["text"].startswith(f"Serving as a part: {where}")) == (22, True)
    assert (shown["engine"]["headline"], shown["engine"]["step"]) == ("Ready", where)


def test_a_process_that_dies_is_started_anew(make_part: MakePart, head: Head) -> None:
    head.come()
    box = make_part(knobs={"orphans": True}).start()
    before = box.wait_phase("ready")
    kill9(before["pid"])
    started_anew(box, before)
    assert box.stop() == 0


def test_a_box_0_that_goes_again_and_again_is_still_waited_for(make_part: MakePart, head: Head) -> None:
    box = make_part().start()
    for _ in range(3):
        head.come()
        before = box.wait_phase("ready")
        head.go()
        box.wait_state("ended", lambda s, pid=before["pid"]: s["engine"]["pid"] not in (pid,), 20)
    assert box.wait_phase("preparing")["cause"]["id"] == "engine.nodes_left"
    assert box.stop() == 0


def test_ranks_that_never_find_the_others_are_ended_and_told_of(make_part: MakePart, head: Head) -> None:
    head.come()
    box = make_part(knobs={"hang_at": "ever"}, start_timeout_s=1.0).start()
    cause = box.wait_state("a cause", lambda s: s["engine"]["cause"] is not None, 20)["engine"]["cause"]
    assert cause["id"] == "engine.nodes_apart"
