"""The shell scripts of the package, and the configuration that it ships."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from appliance.config import load
from appliance.engine.settings import CommandSettings
from tests.packaging.parts import PACKAGING, ROOT

SCRIPTS = [PACKAGING / "moe-appliance", PACKAGING / "make-venv", *sorted((PACKAGING / "debian").iterdir())]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_plain_sh_that_stops_at_errors(script: Path) -> None:
    assert script.read_text().startswith("#!/bin/sh\n")
    assert "\nset -e" in script.read_text()
    subprocess.run(["sh", "-n", str(script)], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck")
def test_shellcheck_has_nothing_to_complain_of() -> None:
    argv = ["shellcheck", "--external-sources", *map(str, SCRIPTS), str(PACKAGING / "build")]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout == ""


@pytest.mark.parametrize("script", ["postinst", "prerm", "postrm"])
def test_a_call_that_dpkg_never_makes_is_refused(script: str) -> None:
    ran = subprocess.run(["sh", str(PACKAGING / "debian" / script), "no-such"], capture_output=True, check=False)
    assert ran.returncode == 1
    assert b"unknown argument: no-such" in ran.stderr


def test_the_shipped_configuration_is_taken_as_it_is() -> None:
    config, paths = load(PACKAGING / "appliance.toml", {})
    assert config.listen == "127.0.0.1:8000"
    assert isinstance(config.engine, CommandSettings)
    assert (paths.runtime_dir, paths.state_dir) == (Path("/run/moe-appliance"), Path("/var/lib/moe-appliance"))
    assert paths.seats_file == Path("/etc/moe-appliance/seats.toml")
    assert paths.admins_file == Path("/etc/moe-appliance/admins.toml")


def test_what_the_shipped_configuration_has_as_comments_would_be_taken_too(tmp_path: Path) -> None:
    text = (PACKAGING / "appliance.toml").read_text()
    for line in (
        "public_url = ",
        "streams = ",
        "floor_tok_per_s = ",
        "start_timeout_s = ",
        "[plan]",
        "file = ",
        "checkpoint = ",
    ):
        assert f"\n# {line}" in text
        text = text.replace(f"\n# {line}", f"\n{line}")
    path = tmp_path / "appliance.toml"
    path.write_text(text)
    assert load(path, {})[0].plan.file == Path("/etc/moe-appliance/plan.json")
    # and the other kind in place of the lines above it
    head, rest = text.split("[engine]\n")
    url = next(line.removeprefix("# ") for line in rest.splitlines() if line.startswith("# url = "))
    path.write_text(f'{head}[engine]\nkind = "external"\n{url}\n')
    assert load(path, {})[0].engine.kind == "external"


def test_the_files_that_the_scripts_name_are_those_of_the_package() -> None:
    assert "src: build/packaging/root/usr" in (PACKAGING / "nfpm.yaml").read_text()
    for path in ("appliance.toml", "debian/postinst", "debian/prerm", "debian/postrm"):
        assert f"packaging/{path}" in (PACKAGING / "nfpm.yaml").read_text()
        assert (ROOT / "packaging" / path).is_file()
