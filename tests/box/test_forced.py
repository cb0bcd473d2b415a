"""appliance/box/forced.py: going on in spite of a failure, with a reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance.box.forced import MODE, NAME, Forced, apply, force, load, unforce
from appliance.errors import ConfigError, MoeError
from gateway.state import Finding, Severity


def finding(id_: str, severity: Severity = Severity.FAIL) -> Finding:
    return Finding(id=id_, severity=severity, title="t", observed="o", required="r", remedy="m")


def test_nothing_is_forced_in_the_beginning(tmp_path: Path) -> None:
    assert load(tmp_path) == ()
    assert load(tmp_path / "no-folder") == ()


def test_a_failure_that_is_forced_becomes_a_warning_with_the_reason() -> None:
    reason = (Forced(id="mig.off", reason="one card only", at_s=0.0),)
    shown = apply([finding("mig.off"), finding("gpu.count"), finding("swap", Severity.INFO)], reason)
    assert [(one.id, one.severity, one.forced) for one in shown] == [
        ("mig.off", Severity.WARN, "one card only"),
        ("gpu.count", Severity.FAIL, ""),
        ("swap", Severity.INFO, ""),
    ]


def test_a_warning_needs_no_force_and_gets_none() -> None:
    assert apply([finding("iommu", Severity.WARN)], [Forced(id="iommu", reason="x", at_s=0.0)])[0].forced == ""


def test_what_is_forced_is_remembered_with_who_and_when(tmp_path: Path) -> None:
    force(tmp_path, "topo.pair", "b", at_s=2.0, by="ana")
    force(tmp_path, "mig.off", "a  line\nand another", at_s=1.0, by="ben")
    path = tmp_path / NAME
    assert path.stat().st_mode & 0o777 == MODE
    assert json.loads(path.read_text()) == [
        {"id": "mig.off", "reason": "a line and another", "at_s": 1.0, "by": "ben"},
        {"id": "topo.pair", "reason": "b", "at_s": 2.0, "by": "ana"},
    ]
    assert [one.id for one in force(tmp_path, "mig.off", "c", at_s=3.0, by="ana")] == ["mig.off", "topo.pair"]
    assert [one.id for one in unforce(tmp_path, "mig.off")] == ["topo.pair"]
    assert [one.id for one in load(tmp_path)] == ["topo.pair"]


@pytest.mark.parametrize(
    ("id_", "reason", "fragment"),
    [
        ("mig.of", "x", "did you mean mig.off"),
        ("nonsense", "x", "no check has the id nonsense"),
        ("\x1b[2J", "x", "no check has the id \\x1b"),
        ("mig.off", " \n ", "without a reason"),
        ("mig.off", "x" * 201, "1 to 200 characters"),
    ],
)
def test_nonsense_is_refused_and_nothing_is_written(id_: str, reason: str, fragment: str, tmp_path: Path) -> None:
    with pytest.raises(MoeError) as refused:
        force(tmp_path, id_, reason, at_s=0.0, by="")
    assert fragment in refused.value.message
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_forced_cannot_be_taken_back(tmp_path: Path) -> None:
    force(tmp_path, "mig.off", "a", at_s=0.0, by="")
    with pytest.raises(MoeError, match=r"acs is not forced; forced: mig\.off"):
        unforce(tmp_path, "acs")


@pytest.mark.parametrize("text", ["", "{}", '[{"id": "a"}]', '[{"id": "a", "reason": "", "at_s": 0}]', "\x00"])
def test_a_broken_file_is_named_with_what_to_do(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(ConfigError) as broken:
        load(tmp_path)
    assert str(tmp_path / NAME) in broken.value.message
    assert broken.value.remedy.startswith("rm ")


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(MoeError, match="cannot be written"):
        force(tmp_path / "no-folder", "mig.off", "a", at_s=0.0, by="")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_root_forces_the_daemons_user_can_read(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    force(tmp_path, "mig.off", "a", at_s=0.0, by="root")
    assert (tmp_path / NAME).stat().st_uid == 65534
