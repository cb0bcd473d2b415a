"""[engine] kind = "vllm" under the daemon, with a stand-in for vLLM: boot, dialects, restart, deaths."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.box import Box, alive, command_line, kill9, until
from tests.e2e.client import request_bytes
from tests.e2e.conftest import MakeBox
from tests.fake_vllm import install, model_in

TOLD: dict[str, Any] = {"boot_s": 0.2}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "hi", "max_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/responses": {"input": "hi", "max_output_tokens": 4},
}

MakeVllm = Callable[..., Box]


@pytest.fixture
def make_vllm(tmp_path: Path, make_box: MakeBox) -> MakeVllm:
    """Makes boxes whose engine is the stand-in; keywords are its knobs."""
    python = install(tmp_path / "env")
    model = model_in(tmp_path / "tiny")

    def make(**told: Any) -> Box:
        tell(tmp_path, **told)
        table = {
            **{"kind": "vllm", "profile": "vllm-cpu-tiny", "python": str(python), "model": str(model)},
            "served_model": "fake-model",
            **{"env": {"FAKE_VLLM_KNOBS": f"@{tmp_path}/vllm.json"}, "grace_s": 2.0, "allow_degraded": True},
        }
        return make_box(tables={"engine": table})

    return make


def tell(folder: Path, **told: Any) -> None:
    """What the stand-in reads at its next start."""
    (folder / "vllm.json").write_text(json.dumps(TOLD | told))


def core_of(box: Box) -> int:
    """The pid of the engine's core."""
    return next(pid for pid in box.left() if command_line(pid).startswith("VLLM::EngineCore"))


def test_four_dialects_are_answered_over_a_socket_that_is_ours_alone(make_vllm: MakeVllm) -> None:
    # given
    box = make_vllm().start().wait_ready()
    engine = box.state()["engine"]
    # then: the socket
    path = Path(engine["url"].removeprefix("unix:"))
    assert path == box.runtime / "engine/sock"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    # the key: in its file, and in no argument and no log
    key = Path(engine["key_file"]).read_text().strip()
    assert key not in box.log
    assert all(key not in command_line(pid) for pid in box.left())
    assert all(f"VLLM_API_KEY={key}".encode() not in Path(f"/proc/{pid}/environ").read_bytes() for pid in box.left())
    # the dialects
    assert (engine["kind"], engine["models"]) == ("vllm", ["fake-model"])
    for where, body in BODIES.items():
        for stream in (False, True):
            asked = body | {"model": "fake-model", "stream": stream}
            answer = box.call(request_bytes("POST", where, box.keys["a"], json.dumps(asked).encode())).wait()
            assert (answer.status, answer.clean) == (200, True), (where, answer.told())
            if "completions" in where:  # the engine is made to say it in each chunk, and nobody asked for that
                assert (b'"usage"' in answer.body) is not stream, answer.body
    assert box.stop() == 0
    assert not path.exists()


def test_a_restart_makes_a_new_key_and_a_new_socket(make_vllm: MakeVllm) -> None:
    box = make_vllm().start().wait_ready()
    before = box.state()["engine"]
    key = Path(before["key_file"]).read_text()
    # when
    assert box.cli("restart").returncode == 0
    box.wait_state("served anew", lambda s: s["engine"]["start_id"] != before["start_id"], 20)
    after = box.wait_phase("ready")
    # then
    assert after["url"] == before["url"]
    assert Path(after["key_file"]).read_text() != key
    assert not alive(before["pid"])
    assert box.chat("a").status == 200


@pytest.mark.parametrize("victim", ["server", "core"])
def test_what_dies_is_started_anew_and_nothing_of_it_is_left(make_vllm: MakeVllm, victim: str) -> None:
    # given: children that outlive their server, as vLLM's may
    box = make_vllm(orphans=True).start().wait_ready()
    before, core = box.state()["engine"], core_of(box)
    # when
    kill9(before["pid"] if victim == "server" else core)
    # then
    box.wait_state("started anew", lambda s: s["engine"]["start_id"] != before["start_id"], 20)
    after = box.wait_phase("ready")
    assert not alive(before["pid"])
    assert not alive(core)
    assert after["restarts"] == before["restarts"] + 1
    assert box.chat("a").status == 200


def test_a_start_that_fails_says_why(make_vllm: MakeVllm) -> None:
    last = "(EngineCore pid=1) ValueError: No valid attention backend"
    box = make_vllm(fail_at="Starting to load model", fail_log=[last]).start()
    engine = box.wait_state("a cause", lambda s: s["engine"]["cause"] is not None, 20)["engine"]
    assert last.rpartition(": ")[2] in json.dumps(engine["cause"]) + json.dumps(engine["log_tail"])


def test_while_it_loads_it_hears_no_signal_and_is_ended_all_the_same(make_vllm: MakeVllm) -> None:
    box = make_vllm(hang_at="Starting to load model").start()
    box.wait_state("loading", lambda s: s["engine"]["step"] == "loading the weights", 20)
    engine = box.state()["engine"]["pid"]
    os.kill(engine, signal.SIGTERM)
    assert alive(engine)
    assert box.stop() == 0
    until("the engine is gone", lambda: not alive(engine), 5)
