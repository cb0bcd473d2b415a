"""`moe-appliance engine command`: what would run and why, nothing started, no secret shown."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from appliance.cli.app import app
from appliance.cli.engine_command import MASK


def run(folder: Path, *words: str, **engine: Any) -> Result:
    """The verb, for an appliance.toml with this `[engine]`."""
    given = {"kind": "vllm", "profile": "vllm-cpu-tiny", "python": sys.executable, "model": "org/name", **engine}
    lines = [f"{key} = {_toml(value)}" for key, value in given.items() if value is not None]
    (folder / "appliance.toml").write_text("[engine]\n" + "\n".join(lines) + "\n")
    with contextlib.chdir(folder):
        return CliRunner().invoke(app, ["engine", "command", *words])


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def test_each_flag_stands_on_a_line_with_its_reason_under_it(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    at = lines.index("  --max-num-seqs 4")
    assert lines[at + 1].strip().endswith("(the cap: [engine] streams, or the plan's profile)")
    assert "VLLM_PLUGINS=''" in lines
    assert any(line.startswith(f"{sys.executable} -P ") and "engine-START.key" in line for line in lines)


def test_programs_get_the_whole_command(tmp_path: Path) -> None:
    done = run(tmp_path, "--json")
    found = json.loads(done.stdout)
    assert found["argv"][:2] == [sys.executable, "-P"]
    assert found["argv"][found["argv"].index("--served-model-name") + 1] == "name"
    assert found["env"]["VLLM_NO_USAGE_STATS"] == "1"
    assert (found["env"]["VLLM_LOGGING_LEVEL"], found["env"]["VLLM_CONFIGURE_LOGGING"]) == ("INFO", "1")
    assert all(flag["why"] and flag["source"] for flag in found["flags"])


def test_nothing_that_may_be_a_secret_is_shown(tmp_path: Path) -> None:
    secrets = {"HF_TOKEN": "s3cret", "X_API_KEY": "s3cret", "PROXY": "http://me:s3cret@h", "GH_PAT": "s3cret"}
    secrets |= {"PROXY_2": "http://me:a/s3cret@h", "MY_AUTH": "s3cret"}
    query = ["--otlp-traces-endpoint", "http://h/?token=s3cret", "--hf-overrides", '{"token": "s3cret", "tokens": 7}']
    for words in ((), ("--json",)):
        done = run(
            tmp_path, *words, env=secrets, args=["--hf-token", "s3cret", "--max-num-batched-tokens", "512", *query]
        )
        assert "s3cret" not in done.output
        assert MASK in done.stdout
        assert "512" in done.stdout


def test_what_took_the_place_of_a_flag_is_said(tmp_path: Path) -> None:
    done = run(tmp_path, args=["--max-num-seqs", "9"])
    assert "takes the place of --max-num-seqs 4" in done.stderr
    assert "  --max-num-seqs 9" in done.stdout.splitlines()


def test_an_engine_that_could_not_start_is_shown_with_its_findings(tmp_path: Path) -> None:
    done = run(tmp_path, python=None, model=None)
    assert done.exit_code == 1
    assert "engine.environment" in done.stderr
    assert "engine.model" in done.stderr
    assert "  --max-num-seqs 4" in done.stdout.splitlines()


def test_other_kinds_have_a_command_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "appliance.toml").write_text("")
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(app, ["engine", "command"])
    assert done.exit_code == 1
    assert '[engine] kind is "embedded"' in str(done.exception)


def test_nothing_is_started_or_written(tmp_path: Path) -> None:
    run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["appliance.toml"]


def test_what_is_set_here_and_not_passed_on_is_named_without_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_PREFIX", "s3cret")
    done = run(tmp_path)
    assert "VLLM_LOGGING_PREFIX" in done.stderr
    assert "s3cret" not in done.output
    assert "VLLM_LOGGING_PREFIX" in json.loads(run(tmp_path, "--json").stdout)["withheld"]


def test_the_folders_for_what_is_compiled_stand_there_with_their_reason(tmp_path: Path) -> None:
    lines = run(tmp_path).stdout.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("VLLM_CACHE_ROOT="))
    assert lines[at].endswith("/engines/vllm-own/cache/vllm")
    assert "no other environment uses it (vLLM, envs.py)" in lines[at + 1]
