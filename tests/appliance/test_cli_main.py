"""The command line as a process: standard output that fails, and what people are told at a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner

from appliance.cli.app import app
from appliance.cli.run import Welcome
from appliance.errors import start_command
from gateway.keyfile import load_seats
from gateway.state import BoxState, EngineState, GatewayState, Phase

COMMAND = [sys.executable, "-m", "appliance"]
ROOT = Path(__file__).parents[2]


def run(folder: Path, line: str, stdout: IO[bytes] | int, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MOE_APPLIANCE_STATE_DIR": str(folder)} | more
    return subprocess.run(
        [*COMMAND, *line.split()], cwd=folder, env=environ, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=30
    )


def closed_pipe() -> IO[bytes]:
    """A pipe that nobody reads any more."""
    read, write = os.pipe()
    os.close(read)
    return os.fdopen(write, "wb")


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("verb", ["add", "rotate", "add --json"])
@pytest.mark.parametrize("where", ["full", "pipe"])
def test_a_key_that_cannot_be_printed_is_said_to_be_lost(tmp_path: Path, verb: str, where: str) -> None:
    if verb == "rotate":
        assert run(tmp_path, "seats add ghost", subprocess.DEVNULL).returncode == 0
    with Path("/dev/full").open("wb") if where == "full" else closed_pipe() as stdout:
        done = run(tmp_path, f"seats {verb.replace(' ', ' ghost ')}" + ("" if " " in verb else " ghost"), stdout)
    assert done.returncode == 1
    error, remedy = told(done)
    assert "the new key of seat ghost is lost" in error
    assert "moe-appliance seats rotate ghost" in remedy
    assert "ghost" in load_seats(tmp_path / "seats.toml").accounts


def test_a_key_is_not_lost_in_silence_when_there_is_no_standard_output(tmp_path: Path) -> None:
    line = f"exec {' '.join(COMMAND)} seats add ghost >&-"
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MOE_APPLIANCE_STATE_DIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "is lost" in told(done)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could leave root's files there")
@pytest.mark.parametrize(("owner", "who"), [(65534, "nobody"), (54321, "'#54321'")])
def test_root_does_not_run_a_box_that_belongs_to_somebody_else(tmp_path: Path, owner: int, who: str) -> None:
    os.chown(tmp_path, owner, owner)
    done = run(tmp_path, "run", subprocess.PIPE)
    assert done.returncode == 78
    error, remedy = told(done)
    assert f"belongs to {who.strip(chr(39)).replace('#', 'user ')}, and you are root" in error
    assert remedy == f"remedy: sudo -u {who} moe-appliance run"
    assert list(tmp_path.iterdir()) == []


def test_the_packages_box_is_started_by_its_service(tmp_path: Path) -> None:
    assert start_command(Path("/var/lib/moe-appliance")) == "sudo systemctl start moe-appliance"
    assert start_command(tmp_path) == "moe-appliance run"
    error, remedy = told(run(tmp_path, "stop", subprocess.PIPE))
    assert "no appliance answers" in error
    assert remedy == "remedy: moe-appliance run"


@pytest.mark.parametrize("more", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("line", ["check", "seats list", "--help"])
def test_a_full_disk_is_one_error_and_a_reader_who_left_is_none(
    tmp_path: Path, line: str, more: dict[str, str]
) -> None:
    run(tmp_path, "seats add ana", subprocess.DEVNULL)
    with Path("/dev/full").open("wb") as stdout:
        done = run(tmp_path, line, stdout, **more)
    assert done.returncode == 1
    error, remedy = told(done)
    assert "standard output cannot be written: No space left on device" in error
    assert remedy.startswith("remedy:")
    with closed_pipe() as stdout:
        done = run(tmp_path, line, stdout, **more)
    assert done.returncode == 1
    assert told(done) == []


@pytest.mark.parametrize("port", ["0", "65536", "99999", "-1"])
def test_the_demo_refuses_a_port_that_is_none(tmp_path: Path, port: str) -> None:
    done = CliRunner().invoke(app, ["demo", "--home", str(tmp_path / "home"), "--port", port])
    assert done.exit_code == 2
    assert not (tmp_path / "home").exists()


def test_a_person_at_the_terminal_is_told_once_that_the_box_serves(tmp_path: Path) -> None:
    url = "http://127.0.0.1:8000"
    box = BoxState(public_url=url, gateway=GatewayState(pid=7), engine=EngineState(phase=Phase.STARTING))
    ready = box.model_copy(update={"engine": EngineState(phase=Phase.READY)})
    terminal = io.StringIO()
    welcome = Welcome(tmp_path / "seats.toml", terminal)
    welcome(box)
    welcome(ready.model_copy(update={"gateway": GatewayState()}))
    assert terminal.getvalue() == ""
    welcome(ready)
    welcome(ready)
    (line,) = terminal.getvalue().split("\n")[1:-2]
    assert line == f"ready: {url}/v1   page: {url}/admin   no seat yet: moe-appliance seats add NAME"
    run(tmp_path, "seats add ana", subprocess.DEVNULL)
    terminal = io.StringIO()
    Welcome(tmp_path / "seats.toml", terminal)(ready)
    assert "no seat" not in terminal.getvalue()
