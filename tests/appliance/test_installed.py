"""Which interpreter the next gateway gets after an upgrade, and what is found out before the old one goes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from appliance import installed
from appliance.errors import MoeError
from appliance.installed import Program, checked, interpreter
from gateway.settings import GatewaySettings

SETTINGS = GatewaySettings(seats_file=Path("/s/seats.toml"), state_dir=Path("/s"), control_socket=Path("/s/c"))


def program(path: Path, script: str) -> str:
    """An executable that stands for a version's Python."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's folder with two versions; this process runs by the first, and the second is installed."""
    base = tmp_path / "lib"
    for name in ("1-py3.11-1", "2-py3.11-1"):
        program(base / "venvs" / name / "bin/python3", "exit 1")
    (base / "current").symlink_to("venvs/2-py3.11-1")
    monkeypatch.setattr(installed, "BASE", str(base))
    monkeypatch.setattr(installed, "OWNER", os.geteuid())
    monkeypatch.setattr(sys, "executable", str(base / "venvs/1-py3.11-1/bin/python3"))
    return base


def test_it_is_that_of_the_installed_version_with_the_link_resolved(base: Path) -> None:
    assert interpreter() == str(base / "venvs/2-py3.11-1/bin/python3")


def test_a_daemon_that_did_not_come_with_the_package_keeps_its_own(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")
    assert interpreter() == "/opt/venv/bin/python"


@pytest.mark.parametrize("part", ["", "bin", "bin/python3"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_may_change_is_not_run(base: Path, part: str, mode: int) -> None:
    (base / "venvs/2-py3.11-1" / part).chmod(mode)
    with pytest.raises(MoeError, match="others than root"):
        interpreter()


def test_a_version_that_is_not_there_is_told_with_the_command_that_makes_it(base: Path) -> None:
    (base / "current").unlink()
    with pytest.raises(MoeError) as caught:
        interpreter()
    assert "dpkg-reconfigure" in caught.value.remedy


def settings_file(folder: Path, text: str = "") -> Path:
    path = folder / "gateway.json"
    path.write_text(text or SETTINGS.model_dump_json())
    return path


@pytest.mark.anyio
async def test_a_gateway_that_can_be_started_says_its_version(tmp_path: Path) -> None:
    found = await checked(sys.executable, settings_file(tmp_path))
    assert found == Program(sys.executable, installed.__version__)


@pytest.mark.anyio
async def test_settings_of_another_version_are_no_reason_against_it(tmp_path: Path) -> None:
    text = SETTINGS.model_dump_json().replace('"limits":{', '"limits":{"of_tomorrow":1,').replace("{", '{"new":2,', 1)
    assert "of_tomorrow" in text
    await checked(sys.executable, settings_file(tmp_path, text))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'No module named gateway' >&2; exit 1", "No module named gateway"),
        ("exit 3", "exit code 3"),
        ("echo nonsense", "nobody understands"),
        ("echo '[]'", "nobody understands"),
        ("""echo '{"version": "2", "python": "2.7.18", "protocol": 1}'""", "runs on Python 2.7.18"),
        ("""echo '{"version": "2", "python": "3.11.0"}'""", "nobody understands"),
        ("""echo '{"version": "2", "python": "2.7.18", "protocol": 99}'""", "version 2 does not fit the daemon"),
        ("printf '\\033[2J' >&2; exit 1", "\\\\x1b"),
    ],
)
async def test_one_that_cannot_is_refused_with_its_own_words(tmp_path: Path, script: str, says: str) -> None:
    python = program(tmp_path / "python3", script)
    with pytest.raises(MoeError, match=says) as caught:
        await checked(python, settings_file(tmp_path))
    assert caught.value.remedy


@pytest.mark.anyio
async def test_another_series_of_python_may_be_asked_for(tmp_path: Path) -> None:
    python = program(tmp_path / "python3", """echo '{"version": "2", "python": "2.7.18", "protocol": 1}'""")
    assert await checked(python, settings_file(tmp_path), any_series=True) == Program(python, "2")


@pytest.mark.anyio
async def test_one_that_does_not_answer_or_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "CHECK_S", 0.2)
    with pytest.raises(MoeError, match="did not answer"):
        await checked(program(tmp_path / "python3", "exec sleep 60"), settings_file(tmp_path))
    with pytest.raises(MoeError, match="cannot be started"):
        await checked(str(tmp_path / "absent"), settings_file(tmp_path))


@pytest.mark.anyio
async def test_settings_that_it_cannot_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(MoeError, match="settings cannot be used"):
        await checked(sys.executable, settings_file(tmp_path, "{}"))


@pytest.mark.anyio
async def test_one_that_does_not_answer_is_gone_with_its_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "CHECK_S", 0.2)
    open_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(MoeError, match="did not answer"):
        await checked(program(tmp_path / "python3", "exec sleep 60"), settings_file(tmp_path))
    assert len(os.listdir("/proc/self/fd")) <= open_before + 1  # the loop's watcher may have come
