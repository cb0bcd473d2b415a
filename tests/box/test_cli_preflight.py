"""`moe-appliance preflight` as a process, over a fake box with a real libnvidia-ml.so.1.

What it prints for each box of the issue's list is in golden/, whole; MOE_GOLDEN=write writes it anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from appliance.box.gpu import Outcome
from appliance.box.preflight import gather
from appliance.cli import preflight as verbs
from appliance.cli.app import app
from appliance.cli.box import Box
from appliance.errors import MoeError
from appliance.plan import planfile
from gateway.state import BoxState, EngineState
from tests.box.boxes import BOOT_ID, furnish, put
from tests.fake_cuda import fake_cuda
from tests.fake_nvml import FakeNvml, Setup, scenarios

GOLDEN = Path(__file__).with_name("golden")
ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("moe-appliance")
BOXES: Mapping[str, tuple[Setup, int]] = {
    "two-good-cards": (scenarios.TWO_GOOD, 0),
    "sys-two-nodes": (scenarios.SYS_TWO_NODES, 1),
    "x8-link": (scenarios.X8_LINK, 1),
    "gen1-at-idle": (scenarios.SLEEPY_LINK, 0),
    "memory-held": (scenarios.HELD_MEMORY, 78),
    "mismatch": (scenarios.MISMATCH, 78),
    "module-not-loaded": (scenarios.NOT_LOADED, 78),
    "no-library": (scenarios.NO_LIBRARY, 78),
    "mig-on": (scenarios.MIG_ON, 78),
    "one-card-missing": (scenarios.ONE_MISSING, 78),
    "one-card-lost": (scenarios.ONE_LOST, 78),
    "one-card-only": (scenarios.ONE_CARD, 78),
    "nvml-hangs": (scenarios.HANGS, 78),
    "nvml-crashes": (scenarios.CRASHES, 78),
}


class Run:
    """The command line over a fake box, in a folder of its own."""

    def __init__(self, folder: Path, setup: Setup = scenarios.TWO_GOOD, nodes: int = 1, gpus: int = 2) -> None:
        self.fake = FakeNvml(folder, setup)
        furnish(self.fake.root, nodes)
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "state").mkdir()
        self.environ = {**self.fake.environ(), "COLUMNS": "160", "MOE_APPLIANCE_PREFLIGHT__GPUS": str(gpus)}
        self.environ.pop("LD_PRELOAD", None)

    def __call__(self, *args: str, code: int | None = None) -> str:
        argv = [str(PROGRAM), "preflight", "--root", str(self.fake.root), *args]
        done = subprocess.run(argv, cwd=self.home, env=self.environ, capture_output=True, text=True, timeout=60)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def here(self, *args: str, code: int | None = None) -> str:
        """The same in this process, which is faster."""
        with contextlib.chdir(self.home):
            done = CliRunner().invoke(app, ["preflight", "--root", str(self.fake.root), *args], env=self.environ)
        if isinstance(done.exception, MoeError):
            assert code in (None, done.exception.exit_code)
            return str(done.exception)
        assert code is None or done.exit_code == code, done.output
        return done.output

    def json(self, *args: str, code: int | None = None) -> dict[str, Any]:
        return json.loads(self.here("--json", *args, code=code))  # type: ignore[no-any-return]

    def ids(self, *args: str, code: int | None = None) -> dict[str, str]:
        return {finding["id"]: finding["severity"] for finding in self.json(*args, code=code)["findings"]}


def same_as_golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = re.sub(r"measured \d{4}-\d\d-\d\d \d\d:\d\d", "measured DATE", text)
    text = re.sub(r"with id \d+", "with id N", text)
    text = re.sub(r"took \d+\.\d\d s", "took N s", text)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)  # of the table's last column
    if os.environ.get("MOE_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", BOXES)
def test_what_is_said_about_a_box_is_the_golden_text(name: str, tmp_path: Path) -> None:
    setup, code = BOXES[name]
    run = Run(tmp_path, setup, nodes=2 if setup is scenarios.SYS_TWO_NODES else 1)
    same_as_golden(name, run("--deadline", "2", code=code))


def test_a_link_that_sleeps_is_good_once_it_was_measured_under_load(tmp_path: Path) -> None:
    run = Run(tmp_path, scenarios.SLEEPY_LINK)
    addresses = [card.bus_id.lower()[-12:] for card in scenarios.SLEEPY_LINK.cards]
    run.environ = fake_cuda(tmp_path, addresses, {"load": run.fake.load}, run.environ)
    assert run.ids(code=0) == {"pcie.gen": "info"}
    same_as_golden("gen5-under-load", run("--deep", code=0))
    run.fake.load.unlink()
    assert run.ids(code=0) == {}  # what was measured holds until the next boot
    put(run.fake.root, {"proc/sys/kernel/random/boot_id": "another\n"})
    after = run.json(code=0)
    assert [finding["id"] for finding in after["findings"]] == ["pcie.gen"]
    assert after["deep"] is None
    assert "before the reboot" in after["notes"][0]


def test_a_link_that_stays_slow_under_load_is_a_warning(tmp_path: Path) -> None:
    run = Run(tmp_path, scenarios.SLOW_LINK)
    addresses = [card.bus_id.lower()[-12:] for card in scenarios.SLOW_LINK.cards]
    knobs = {"load": run.fake.load, "h2d.1": 6.5}
    run.environ = fake_cuda(tmp_path, addresses, knobs, run.environ)
    same_as_golden("gen2-under-load", run("--deep", code=78))


def test_without_a_driver_and_with_a_wish_for_cards_there_is_one_line_and_the_way_out(tmp_path: Path) -> None:
    run = Run(tmp_path, scenarios.NO_DRIVER)
    for node in ("nvidia-uvm", "nvidia0", "nvidia1"):
        (run.fake.root / "dev" / node).unlink()
    same_as_golden("no-driver", run(code=78))
    assert run.ids(code=78) == {"nvml.load": "fail"}
    run.environ["MOE_APPLIANCE_PREFLIGHT__GPUS"] = "0"
    assert run.ids(code=0) == {"nvml.load": "info"}
    same_as_golden("no-driver-no-wish", run(code=0))


@pytest.mark.parametrize("setup", [scenarios.HANGS, scenarios.HANGS_AT_INIT])
def test_a_driver_that_hangs_costs_its_deadline_and_less_than_a_second_more(setup: Setup, tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, setup)
    furnish(fake.root)
    began = time.monotonic()
    facts = gather(tmp_path, root=fake.root, environ=fake.environ(), deadline_s=2.0)
    assert time.monotonic() - began < 3.0
    assert facts.gpus is not None
    assert facts.gpus.outcome is Outcome.HUNG
    assert facts.host is not None
    assert facts.host.boot_id == BOOT_ID


def test_the_document_for_programs_has_cards_nodes_and_the_exit_code(tmp_path: Path) -> None:
    said = Run(tmp_path, scenarios.X8_LINK).json(code=1)
    assert {"findings", "cards", "nodes", "exit", "at", "boot_id", "deep"} <= said.keys()
    assert said["exit"] == 1
    assert said["boot_id"] == BOOT_ID
    assert [card["bus_id"] for card in said["cards"]] == ["0000:41:00.0", "0000:81:00.0"]
    assert said["pairs"] == [{"cards": [0, 1], "relation": "NODE", "p2p": "OK"}]
    assert [finding["id"] for finding in said["findings"]] == ["pcie.width"]


def test_a_failure_is_forced_with_a_reason_shown_and_taken_back(tmp_path: Path) -> None:
    run = Run(tmp_path, scenarios.MIG_ON)
    assert run.ids(code=78) == {"mig.off": "fail"}
    assert "without a reason" in run.here("--force", "mig.off", code=1)
    assert "did you mean mig.off" in run.here("--force", "mig.of", "--reason", "x", code=1)
    same_as_golden("mig-on-forced", run("--force", "mig.off", "--reason", "only  the first card\nis used", code=1))
    assert (run.home / "state/forced.json").stat().st_mode & 0o777 == 0o600
    run.fake.configure(cards=scenarios.TWO_GOOD.cards)
    assert "forced and not seen: mig.off" in run.here(code=0)
    assert run.json("--unforce", "mig.off", code=0)["forced_but_gone"] == []
    assert "not forced" in run.here("--unforce", "mig.off", code=1)


def test_the_last_look_is_shown_without_asking_the_driver(tmp_path: Path) -> None:
    run = Run(tmp_path, scenarios.X8_LINK)
    assert "moe-appliance preflight" in run.here("--cached", code=1)
    first = run.json(code=1)
    run.fake.configure(init=9)
    assert run.json("--cached", code=1) == first
    put(run.fake.root, {"proc/sys/kernel/random/boot_id": "another\n"})
    assert "since the boot" in run.here("--cached", code=1)


def test_it_works_without_a_state_folder_and_leaves_none_behind(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (run.home / "state").rmdir()
    assert run.ids(code=0) == {}
    assert list(run.home.iterdir()) == []
    assert "there is no state folder" in run("--cached", code=1)


def test_a_state_folder_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (run.home / "state/preflight.json.new").mkdir()
    said = run.json(code=0)
    assert "preflight.json was not written" in said["notes"][0]


def test_a_plan_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "there is no plan file" in Run(tmp_path).here("--plan", "plan.json", code=1)


def test_a_box_with_cards_is_not_told_to_install_the_demos_engine(tmp_path: Path) -> None:
    run = Run(tmp_path, gpus=0)
    shadow = tmp_path / "shadow"
    put(shadow, {"sitecustomize.py": "import sys; sys.modules['xllamacpp'] = None\n"})
    run.environ["PYTHONPATH"] = str(shadow)
    assert run.ids(code=0) == {}


def given(tmp_path: Path, toml: str = "") -> Box:
    config = tmp_path / "appliance.toml"
    config.write_text(toml)
    return Box(config, {"PATH": str(tmp_path)})


def test_the_engines_python_is_the_configured_one_or_the_one_beside_its_program(tmp_path: Path) -> None:
    command = '[engine]\nkind = "command"\ncommand = ["vllm", "serve", "--port", "{port}"]\n'
    assert verbs.engine_python(given(tmp_path)) is None
    assert verbs.engine_python(given(tmp_path, command)) is None
    put(tmp_path, {"vllm": "", "python": ""})
    (tmp_path / "vllm").chmod(0o755)
    assert verbs.engine_python(given(tmp_path, command)) == tmp_path / "python"
    configured = f'{command}[preflight]\nengine_python = "other/python"\n'
    assert verbs.engine_python(given(tmp_path, configured)) == tmp_path / "other/python"


@pytest.mark.parametrize(("kind", "expected"), [("command", 4711), ("embedded", None)])
def test_an_engine_that_holds_cards_is_known_from_the_daemon(
    kind: str, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = BoxState(engine=EngineState(kind=kind, pid=4711)).model_dump_json()
    monkeypatch.setattr(Box, "daemon", lambda *_: httpx.Response(200, content=state))
    assert verbs._running(given(tmp_path)) is None  # there is no socket
    put(tmp_path, {"state/run/control.sock": ""})
    assert verbs._running(given(tmp_path)) == expected


def test_nothing_is_forced_by_a_line_that_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, scenarios.MIG_ON)
    run.here("--force", "mig.off", "--reason", "x", "--deep", "--cached", code=2)
    assert not (run.home / "state/forced.json").exists()


def test_a_force_is_about_the_plan_that_is_judged(tmp_path: Path) -> None:
    run = Run(tmp_path)
    plan = ROOT / "plans/deepseek-v4.1-flash-2x-rtx-pro-6000.json"
    run.here("--plan", str(plan), "--force", "vram.total", "--reason", "we know")
    (kept,) = json.loads((run.home / "state/forced.json").read_text())
    assert kept["plan_id"] == planfile.load(plan).identity


def test_a_runtime_folder_that_is_shut_to_us_has_no_engine_that_we_know_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shut(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    box = given(tmp_path)
    assert box.paths
    monkeypatch.setattr(Path, "exists", shut)
    assert verbs._running(box) is None
