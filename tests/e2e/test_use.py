"""`plan use`, `engine use`: tried in a running box, and what served before returns when they fail."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.environments import manifest
from appliance.engine.environments.manifest import Manifest
from tests.box.boxes import furnish
from tests.checkpoint.packs.fixtures import pack_folder
from tests.e2e.box import ROOT, Box, kill9, until
from tests.e2e.conftest import MakeBox
from tests.fake_nvml import FakeNvml, scenarios
from tests.fake_vllm import KNOBS, install, model_in

__all__ = ["pack_folder"]

STUDY = ROOT / "plans/deepseek-v4.1-flash-2x-rtx-pro-6000.json"
LOST = ("--hf-overrides", '{"e": {experts_json}, "t": "{tensors}", "g": "{engram}"}')
"""Where a made-up engine is told the rest of the plan."""

OOM = (
    "(EngineCore pid=7) ERROR 11-30 09:55:30 [core.py:1330] torch.OutOfMemoryError: CUDA out of memory. Tried to "
    "allocate 2.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 665.56 MiB is free."
)
ENDS_IN_OOM = {"boot_s": 0.2, "fail_at": "Starting to load model", "fail_log": [OOM], "exit_code": 1}
SLOW = {"boot_s": 0.2, "engine": {"ms_per_token": [20.0]}}
Make = Callable[..., Box]


@pytest.fixture
def cards(tmp_path: Path) -> FakeNvml:
    """Two cards that the study's plan fits."""
    fake = FakeNvml(tmp_path / "cards", scenarios.TWO_GOOD)
    furnish(fake.root)
    return fake


def driver(cards: FakeNvml) -> dict[str, str]:
    """What has the box find them."""
    known = ("LD_LIBRARY_PATH", "PATH")
    return {name: value for name, value in cards.environ().items() if name in known or name.startswith("FAKE")}


@pytest.fixture
def make_vllm(tmp_path: Path, make_box: MakeBox) -> Make:
    """A box whose engine is the stand-in for vLLM, in the environment `good`; `bad` ends in OOM, `other` is as good."""
    model = model_in(tmp_path / "tiny")

    def make(**engine: Any) -> Box:
        for name, knobs in (("good", SLOW), ("other", SLOW), ("bad", ENDS_IN_OOM)):
            environment(tmp_path / "box/state/engines", name, knobs)
        table = {
            **{"kind": "vllm", "profile": "vllm-cpu-tiny", "environment": "good", "model": str(model)},
            **{"served_model": "fake-model", "grace_s": 2.0, "allow_degraded": True, **engine},
        }
        return make_box(tables={"engine": table})

    return make


def environment(engines: Path, name: str, knobs: dict[str, Any], identity: str = "", at_s: float = 1.0) -> None:
    """An environment as `engine install` leaves it, around the stand-in; the name means it from now on."""
    identity = identity or name.encode().hex()[:12].ljust(12, "0")
    folder = engines / f"{name}-{identity}"
    python = install(folder / "venv")
    told = f"export {KNOBS}={shlex.quote(json.dumps(knobs))}\n"
    python.write_text(python.read_text().replace("\n", f"\n{told}", 1))
    (folder / "venv/.used").touch()
    made = Manifest(name, identity, "0" * 64, "3.11.7", {"vllm": "0.26.0"}, at_s, 1.0, 1, "test")
    (folder / "manifest.json").write_bytes(manifest.to_json(made))
    (engines / name).unlink(missing_ok=True)
    (engines / name).symlink_to(folder.name)


def serves(box: Box) -> dict[str, Any] | None:
    """The engine's state once it is READY and nothing is about to change."""
    engine: dict[str, Any] = box.state()["engine"]
    return engine if engine["phase"] == "ready" and not engine["leaving"] else None


def test_an_environment_that_ends_in_oom_leaves_the_old_one_serving_again(make_vllm: Make) -> None:
    # given a box that serves
    box = make_vllm().start().wait_ready()
    before = box.state()["engine"]

    # when another environment is tried that ends while it loads
    said = box.cli("engine", "use", "bad", limit_s=60.0)

    # then the verb says why, and what to do about it
    assert said.returncode != 0
    assert "GPU" in said.stderr
    assert "memory" in said.stderr

    # and what served before serves again, in the very same environment, with the cause on the page
    engine = until("the old one serves", lambda: serves(box), 30.0)
    assert engine["start_id"] != before["start_id"]
    assert engine["environment"] == before["environment"]
    assert engine["trial"] is None
    assert engine["reverted"]["cause"]["id"] == "engine.gpu_memory"
    assert box.chat("a", text="hello").done
    row = next(row for row in page_findings(box) if row["id"] == "engine.reverted")
    assert "bad" in row["observed"]
    assert [event for event in box.state()["events"] if event["kind"] == "engine.pair"]


def page_findings(box: Box) -> list[dict[str, Any]]:
    """The findings as the operator's page shows them."""
    findings: list[dict[str, Any]] = json.loads(box.get("/admin/status.json", box.admin_key).body)["findings"]
    return findings


def test_a_plan_that_ends_in_oom_leaves_the_old_plan_serving_again(
    make_box: MakeBox, cards: FakeNvml, pack_folder: Any, tmp_path: Path
) -> None:
    # given a box that serves with a plan, and another plan that passes every check and ends in OOM all the same
    python = install(tmp_path / "env")
    told = f"case \"$*\" in *doomed*) {KNOBS}='{json.dumps(ENDS_IN_OOM)}';; *) {KNOBS}='{{\"boot_s\": 0.2}}';; esac"
    python.write_text(python.read_text().replace("\n", f"\n{told}\nexport {KNOBS}\n", 1))
    doomed = tmp_path / "doomed.json"
    shutil.copy(STUDY, doomed)
    engine = {
        **{"kind": "vllm", "profile": "vllm-cpu-tiny", "python": str(python), "served_model": "fake-model"},
        **{"placement": "command", "plan_args": ["--tokenizer", "{plan_file}", *LOST], "allow_degraded": True},
    }
    tables = {"engine": engine, "plan": {"file": str(STUDY), "checkpoint": str(pack_folder("study"))}}
    box = make_box(tables=tables, environ=driver(cards), patches={"appliance.examine.ROOT": str(cards.root)}).start()
    box.wait_ready()

    # when it is used
    said = box.cli("plan", "use", str(doomed), limit_s=90.0)

    # then the verb says so, with what the plan is short of, and the old plan serves
    assert said.returncode != 0
    assert "memory" in said.stderr
    state = until("the old plan serves", lambda: serves(box) and box.state(), 30.0)
    assert state["plan"]["file"] == str(STUDY)
    reverted = state["engine"]["reverted"]
    assert "doomed" in reverted["tried"]["plan_file"]
    assert reverted["cause"]["id"] == "engine.gpu_memory"
    assert "CUDA out of memory" in reverted["cause"]["evidence"]
    assert f"moe-appliance plan make --checkpoint {pack_folder('study')} --gpus 2 " in reverted["cause"]["remedy"]
    assert "doomed" in next(row for row in page_findings(box) if row["id"] == "engine.reverted")["observed"]
    assert box.chat("a").done


def test_an_environment_that_comes_to_ready_is_kept_over_a_restart_of_the_box(make_vllm: Make) -> None:
    box = make_vllm().start().wait_ready()
    said = box.cli("engine", "use", "other", limit_s=60.0)
    assert said.returncode == 0, said.stderr
    tried = box.state()["engine"]
    assert tried["environment"].startswith("other-")
    assert tried["trial"] is not None, "it has to stand for 5 minutes first"

    # a stop during that time says nothing against it
    box.stop()
    box.start().wait_ready()
    assert box.state()["engine"]["environment"].startswith("other-")


def test_a_newer_installation_waits_until_it_is_tried(make_vllm: Make, tmp_path: Path) -> None:
    # given a box that serves in what a name meant, and a newer installation of that name, which ends in OOM
    box = make_vllm().start().wait_ready()
    served = box.state()["engine"]["environment"]
    environment(tmp_path / "box/state/engines", "good", ENDS_IN_OOM, "f" * 12, at_s=2.0)

    # when the engine is restarted, and the box
    start_id = box.state()["engine"]["start_id"]
    assert box.cli("restart").returncode == 0
    until("it serves anew", lambda: (now := serves(box)) and now["start_id"] != start_id, 30.0)
    row = next(row for row in page_findings(box) if row["id"] == "engine.newer")
    box.stop()
    box.start().wait_ready()

    # then it serves in what served before, and the other one is told with the command that tries it
    assert box.state()["engine"]["environment"] == served
    assert "good-ffffffffffff" in row["observed"]
    assert "moe-appliance engine use good" in row["remedy"]
    assert "engine use good" in box.cli("status").stdout
    compiled = tmp_path / f"box/state/engines/{served}/cache/vllm"
    assert compiled.stat().st_mode & 0o777 == 0o700

    # and that command tries it, with the way back
    assert box.cli("engine", "use", "good", limit_s=60.0).returncode != 0
    until("the old one serves", lambda: (now := serves(box)) and now["environment"] == served, 30.0)


def test_running_streams_end_before_the_engine_does(make_vllm: Make) -> None:
    box = make_vllm().start().wait_ready()
    call = box.post("a", max_tokens=200)
    call.wait_bytes(b"data:")
    said = box.cli("engine", "use", "other", "--no-wait")
    assert said.returncode == 0, said.stderr
    leaving = box.state()["engine"]
    assert leaving["leaving"]

    # who comes now is told to come again, and is not sent to an engine that is about to end
    refused = box.post("b").wait()
    assert refused.status == 503
    assert "retry-after" in refused.headers
    assert call.wait(20).done
    until("the other one serves", lambda: (now := serves(box)) and now["environment"].startswith("other-"), 30.0)


def test_a_restart_while_streams_end_hastens_the_change_and_is_the_only_one(make_vllm: Make) -> None:
    # given a stream that would hold the change up
    box = make_vllm().start().wait_ready()
    call = box.post("a", max_tokens=5000)
    call.wait_bytes(b"data:")
    assert box.cli("engine", "use", "other", "--no-wait").returncode == 0
    said = until("the page says it", lambda: (now := verdict(box))["rule"] == 23 and now, 5.0)
    assert "1 stream still runs and ends first" in said["text"]

    # when somebody restarts the engine
    asked = box.cli("restart")

    # then the stream ends with an honest error, and the other one serves after one start
    assert asked.returncode == 0
    assert "restarted with environment other-" in asked.stdout
    assert call.wait(20).in_stream_error is not None
    until("the other one serves", lambda: (now := serves(box)) and now["environment"].startswith("other-"), 30.0)
    assert len(re.findall(r'"phase":"preparing".*"engine.phase"', box.log)) == 2


def test_a_stop_while_streams_end_changes_nothing(make_vllm: Make) -> None:
    box = make_vllm().start().wait_ready()
    call = box.post("a", max_tokens=400)  # 8 s: longer than three commands take on a busy machine
    call.wait_bytes(b"data:")
    assert box.cli("engine", "use", "other", "--no-wait").returncode == 0
    assert box.cli("stop").returncode == 0
    refused = box.cli("restart")
    assert refused.returncode != 0
    assert "the box is being stopped" in refused.stderr
    assert call.wait(20).done, "it may end"
    assert box.process is not None
    box.process.wait(20)
    box.start().wait_ready()
    assert box.state()["engine"]["environment"].startswith("good-")


def verdict(box: Box) -> dict[str, Any]:
    """The sentence on the operator's page."""
    said: dict[str, Any] = json.loads(box.get("/admin/status.json", box.admin_key).body)["verdict"]
    return said


def test_a_trial_that_dies_soon_after_it_was_ready_goes_back_too(make_vllm: Make) -> None:
    box = make_vllm().start().wait_ready()
    assert box.cli("engine", "use", "other", limit_s=60.0).returncode == 0
    kill9(box.engine_pid)
    until("the old one serves", lambda: (now := serves(box)) and now["environment"].startswith("good-"), 30.0)
    assert box.state()["engine"]["reverted"]["tried"]["environment"].startswith("other-")


def test_a_daemon_that_is_killed_in_a_trial_finds_its_way_back(make_vllm: Make) -> None:
    box = make_vllm().start().wait_ready()
    assert box.cli("engine", "use", "other", limit_s=60.0).returncode == 0
    assert box.process is not None
    kill9(box.pid)
    box.process.wait()
    until("its children are gone", lambda: not box.left() or None, 20.0)
    box.start().wait_ready()
    engine = box.state()["engine"]
    assert engine["environment"].startswith("good-")
    assert engine["reverted"]["cause"]["id"] == "engine.trial_interrupted"


def test_what_is_not_there_is_refused_and_nothing_changes(make_vllm: Make, tmp_path: Path) -> None:
    box = make_vllm().start().wait_ready()
    before = box.state()["engine"]["start_id"]
    unknown = box.cli("engine", "use", "nothing")
    assert unknown.returncode != 0
    assert "there is no environment nothing" in unknown.stderr
    (tmp_path / "broken.json").write_text("{")
    broken = box.cli("plan", "use", str(tmp_path / "broken.json"))
    assert broken.returncode != 0
    assert "broken.json" in broken.stderr
    assert box.cli("engine", "use", "good").returncode != 0
    same = box.cli("engine", "use", str(box.state()["engine"]["environment"]))
    assert same.returncode != 0
    assert "it serves with environment" in same.stderr
    assert "engine prove" in same.stderr
    assert box.state()["engine"]["start_id"] == before
