"""[engine] kind = "vllm" under the daemon, with a stand-in for vLLM: what is watched while it loads and serves."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.box import Box, alive, command_line, until
from tests.e2e.conftest import MakeBox
from tests.fake_vllm import install, model_in

LOADING = "Loading safetensors checkpoint shards:   0%"
SOON: dict[str, float | str] = {
    "appliance.engine.health.METRICS_S": 0.1,
    "appliance.engine.progress_watch.IDLE_S": 1.0,
    "appliance.engine.progress_watch.HANG_MIN_S": 0.5,
    "appliance.engine.run.LOOK_S": 0.1,
}
"""What takes minutes on a box."""

MakeWatched = Callable[..., Box]


@pytest.fixture
def make_watched(tmp_path: Path, make_box: MakeBox) -> MakeWatched:
    """Makes boxes whose engine is the stand-in, with `told` as its knobs and `engine` in its table."""
    python = install(tmp_path / "env")
    model = model_in(tmp_path / "tiny")

    def make(*, told: dict[str, Any], engine: dict[str, Any], patches: dict[str, float | str] | None = None) -> Box:
        tell(tmp_path, **told)
        table = {
            **{"kind": "vllm", "profile": "vllm-cpu-tiny", "python": str(python), "model": str(model)},
            "served_model": "fake-model",
            "env": {"FAKE_VLLM_KNOBS": f"@{tmp_path}/vllm.json"},
            **{"grace_s": 0.5, "allow_degraded": True, "canary_s": 0.5},
        }
        return make_box(tables={"engine": table | engine}, patches=SOON | (patches or {}))

    return make


def tell(folder: Path, **told: Any) -> None:
    """What the stand-in reads at its next start."""
    (folder / "vllm.json").write_text(json.dumps({"boot_s": 0.2} | told))


def engine_of(box: Box) -> httpx.Client:
    """The engine itself, past the gateway."""
    engine = box.state()["engine"]
    headers = {"authorization": "Bearer " + Path(engine["key_file"]).read_text().strip()}
    transport = httpx.HTTPTransport(uds=engine["url"].removeprefix("unix:"))
    return httpx.Client(transport=transport, base_url="http://engine", headers=headers, timeout=0.3)


def stop_core(box: Box) -> int:
    """SIGSTOP to the engine's core; its pid, once the engine does nothing more."""
    core = next(pid for pid in box.left() if command_line(pid).startswith("VLLM::EngineCore"))
    os.kill(core, signal.SIGSTOP)
    until("it hangs", lambda: hangs(box), 5)
    return core


def hangs(box: Box) -> bool:
    """Whether a token does not come."""
    with engine_of(box) as client:
        try:
            client.post("/v1/completions", json={"model": "fake-model", "prompt": "x", "max_tokens": 1})
        except httpx.ReadTimeout:
            return True
    return False


@pytest.mark.parametrize("used", [True, False], ids=["while a stream runs", "idle"])
def test_a_core_that_stands_still_is_found_though_health_and_metrics_answer(
    make_watched: MakeWatched, used: bool
) -> None:
    # given: only one of the two ways can find it
    ways = {"hang_s": 1.0} if used else {"hang_s": 600.0}
    box = make_watched(told={}, engine=ways).start().wait_ready()
    before = box.state()["engine"]
    core = stop_core(box)
    # when
    call = box.post("a") if used else None
    hung_s = time.monotonic()
    # then
    given_up = box.wait_state("given up", lambda s: s["engine"]["cause"] is not None, 15)["engine"]
    took_s = time.monotonic() - hung_s
    assert given_up["cause"]["id"] == "engine.hung"
    assert ("a stream runs" if used else "idle") in given_up["cause"]["title"]
    if call is not None:
        assert call.wait(10).status in (200, 503)
    box.wait_state("started anew", lambda s: s["engine"]["start_id"] not in ("", before["start_id"]), 20)
    after = box.wait_phase("ready")
    assert not alive(core)
    assert after["restarts"] == before["restarts"] + 1
    assert box.chat("a").status == 200
    print(f"MEASURED a core that stands still was given up after {took_s:.2f} s ({'used' if used else 'idle'})")


def test_a_healthy_engine_that_is_idle_is_let_be(make_watched: MakeWatched) -> None:
    box = make_watched(told={}, engine={}).start().wait_ready()
    before = box.state()["engine"]["start_id"]
    until("it is asked for tokens", lambda: asked(box) >= 3, 20)
    assert box.state()["engine"]["start_id"] == before
    assert box.state()["engine"]["phase"] == "ready"


def asked(box: Box) -> int:
    """How often the engine was asked for one token."""
    with engine_of(box) as client:
        log = client.get("/_fake/stats").json()["log"]
    return sum(1 for one in log if one["path"] == "/v1/completions" and one["tokens"] == 1)


def test_a_step_that_stands_still_ends_the_start_with_its_name(make_watched: MakeWatched) -> None:
    limits: dict[str, float | str] = {
        "appliance.engine.step_limits.FIRST_FACTOR": 0.001,
        "appliance.engine.step_limits.LOOK_MAX_S": 0.3,
    }
    box = make_watched(told={"hang_at": LOADING}, engine={}, patches=limits).start()
    engine = box.wait_state("a cause", lambda s: s["engine"]["cause"] is not None, 20)["engine"]
    assert engine["cause"]["id"] == "engine.step_timeout"
    assert "loading the weights" in engine["cause"]["title"]


def test_the_second_load_says_how_long_it_still_takes(make_watched: MakeWatched) -> None:
    # given
    box = make_watched(told={"boot_s": 3.0}, engine={}).start()
    first = box.wait_state("loading", lambda s: s["engine"]["step"] == "loading the weights", 20)["engine"]
    assert (first["left_s"], first["start_progress"]) == (None, None)
    box.wait_ready()
    assert box.state()["engine"]["left_s"] is None
    # when
    assert box.cli("restart").returncode == 0
    # then
    loading = box.wait_state(
        "loading again", lambda s: s["engine"]["phase"] == "starting" and s["engine"]["left_s"], 20
    )["engine"]
    assert 0 < loading["left_s"] < 30
    assert 0 <= loading["start_progress"] < 1
    told = box.cli("status").stdout
    assert " left" in told
    answer = box.chat("a")
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 10
    box.wait_ready()


def test_a_line_that_must_come_and_does_not_keeps_it_from_serving(make_watched: MakeWatched, tmp_path: Path) -> None:
    box = make_watched(told={}, engine={"plugins": {"exl3": "exl3 kernels are in place"}}).start()
    engine = box.wait_state("a cause", lambda s: s["engine"]["cause"] is not None, 20)["engine"]
    assert "exl3" in engine["cause"]["title"]
    tell(tmp_path, plugin_line="exl3 kernels are in place")
    assert box.cli("restart").returncode == 0
    box.wait_ready()
