"""`moe-appliance check`: one cause is one line, and no word of others reaches the terminal as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from appliance.cli import run as verbs
from appliance.cli.app import app
from appliance.engine.examined import Examined
from gateway.state import Finding, PlanState, Severity


def finding(id_: str, severity: Severity, **changes: str) -> Finding:
    return Finding(
        id=id_,
        severity=severity,
        title=f"title of {id_}",
        observed=changes.pop("observed", "this"),
        required="that",
        remedy=changes.pop("remedy", "do so"),
        **changes,
    )


def checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Iterable[Finding], plan: PlanState | None = None
) -> tuple[int, str]:
    monkeypatch.setattr(verbs.Examiner, "examine", lambda _: Examined(tuple(found), plan))
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(app, ["check"])
    return done.exit_code, done.output


def test_what_follows_from_a_finding_is_under_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effect = finding("gpu.count", Severity.FAIL, depends_on="gpu.lost", remedy="first\nsecond")
    code, said = checked(tmp_path, monkeypatch, [effect, finding("gpu.lost", Severity.FAIL)])
    assert code == 78
    assert said.splitlines()[-9:] == [
        "fail title of gpu.lost  gpu.lost",
        "     this",
        "     wanted: that",
        "     do so",
        "     fail title of gpu.count  gpu.count",
        "          this",
        "          wanted: that",
        "          first",
        "          second",
    ]


def test_a_forced_failure_is_shown_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = checked(tmp_path, monkeypatch, [finding("mig.off", Severity.WARN, forced="we know")])
    assert code == 0
    assert "     forced: we know\n" in said


def test_words_of_others_are_shown_as_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PlanState(name="\x1b[31mred", file="p", plan_id="x", cold_experts=0, experts=0, verdict="fits", fits=True)
    _, said = checked(tmp_path, monkeypatch, [finding("gpu.lost", Severity.FAIL, observed="\x1b]0;title\x07")], plan)
    assert "\x1b" not in said
    assert "\\x1b[31mred" in said


def test_a_prefix_whose_file_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "appliance.toml").write_text('[[prefix]]\nname = "docs"\nfile = "docs.json"\n')
    code, said = checked(tmp_path, monkeypatch, [])
    assert code == 0
    assert "warn The prefix docs is not read into the engine  prefix.broken" in said
    assert "docs.json cannot be read: No such file or directory" in " ".join(said.split())


def test_a_prefix_of_a_seat_that_there_is_not_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "appliance.toml").write_text('[[prefix]]\nname = "team"\nseat = "nobody"\n')
    code, said = checked(tmp_path, monkeypatch, [])
    assert code == 0
    assert "warn The prefix team names a seat that there is not  prefix.seat" in said
