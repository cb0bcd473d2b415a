"""How a start is launched, and how its end is explained by more than its log."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.engine.adapter import Adapter, Launch
from appliance.engine.around import explained
from appliance.engine.external import ExternalEngine
from appliance.engine.failures import Context, Exit
from appliance.engine.launching import environ_of, launched
from appliance.engine.logring import LogRing
from appliance.engine.run import EngineRun
from appliance.engine.settings import ExternalSettings
from gateway import logs

KEY = Path("/run/engine-1.key")
LAUNCH = Launch(("e",), {}, "unix:/run/sock", KEY, "/health", 1.0, 1.0)
OOM = "Out of memory: Killed process 912 (VLLM::Worker) total-vm:1kB, anon-rss:2kB, file-rss:0kB, shmem-rss:0kB"
XID = "NVRM: Xid (PCI:0000:41:00): 79, pid=7, GPU has fallen off the bus."


class Engine:
    """An adapter as far as a launch goes; `ports`: what it was launched with."""

    def __init__(self, url: str, *, supervised: bool = True) -> None:
        self.url, self.supervised = url, supervised
        self.ports: list[int] = []

    def launch(self, port: int, key_file: Path) -> Launch:
        self.ports.append(port)
        return Launch(("e", str(port)), {}, self.url.format(port=port), key_file, "/health", 1.0, 1.0)


@pytest.mark.parametrize(
    ("url", "supervised", "picked"),
    [
        ("unix:/run/sock", True, False),
        ("", True, False),
        ("http://h", False, False),
        ("http://127.0.0.1:{port}", True, True),
    ],
)
def test_a_port_is_looked_for_only_where_one_is_used(url: str, supervised: bool, picked: bool) -> None:
    engine = Engine(url, supervised=supervised)
    launch, plain = launched(cast(Adapter, engine), KEY)
    assert engine.ports[0] == 0
    assert len(engine.ports) == 1 + picked
    assert plain.argv == ("e", "0")
    assert launch == (replace(plain, argv=launch.argv, url=launch.url) if picked else plain)
    assert (launch.argv[1] != "0") == picked


def test_what_the_service_manager_tells_the_daemon_alone_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    found = environ_of(LAUNCH)
    assert "JOURNAL_STREAM" not in found
    assert found["NCCL_DEBUG"] == "INFO"


def test_what_a_launch_withholds_is_not_passed_on_and_what_it_says_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somebody/elses")
    monkeypatch.setenv("VLLM_PORT", "1")
    found = environ_of(replace(LAUNCH, env={"VLLM_PORT": "2"}, withheld=("PYTHONPATH", "VLLM_PORT")))
    assert "PYTHONPATH" not in found
    assert found["VLLM_PORT"] == "2"
    assert environ_of(LAUNCH)["PYTHONPATH"] == "/somebody/elses"


def test_a_run_explains_its_end_with_the_folder_of_its_record(tmp_path: Path) -> None:
    engine, state = ExternalEngine(ExternalSettings(kind="external", url="http://h")), tmp_path / "state"
    log = logs.configure("daemon", io.StringIO())
    run = EngineRun(engine, state, tmp_path / "run", LogRing(), lambda event: None, log)
    cause = run._explained(Exit(127, None, "record", "Permission denied", 13), LAUNCH, ())
    assert f"ls -ld {tmp_path / 'run'} " in cause.remedy


@pytest.mark.parametrize(
    ("kernel", "pids", "id_"),
    [
        ((OOM,), {912}, "engine.oom_kill"),
        ((OOM,), {913}, "engine.killed"),
        ((XID,), set[int](), "engine.xid"),
        ((), {912}, "engine.killed"),
    ],
    ids=["ours was killed", "another was", "a card", "nothing"],
)
def test_what_the_kernel_did_to_a_process_of_the_run_explains_its_end(
    kernel: tuple[str, ...], pids: set[int], id_: str
) -> None:
    more: dict[str, Any] = {"command": "vllm"}
    assert explained(Exit(None, 9), ("last words",), kernel, pids, Context(**more)).id == id_
