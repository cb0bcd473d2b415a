"""appliance/box/preflight.py and report.py: one look, what is kept of it, and how it is told."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.box import kept, preflight
from appliance.box.facts import Facts
from appliance.box.forced import Forced
from appliance.box.forced import force as force_
from appliance.box.gpu import DeepReport, Gpu, GpuReport, Outcome
from appliance.box.needs import Needs
from appliance.box.report import Preflight, document, exit_code, from_json, to_json, verdict
from gateway.state import Finding, Severity
from tests.box.boxes import BOOT_ID, deep, facts, furnish, gpu, host, put, report
from tests.box.test_checks_cases import CASES

TWO = Needs(gpus=2)


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> dict[str, Facts]:
    """What `gather` finds: `box["now"]`, which tests replace."""
    seen = {"now": facts()}
    monkeypatch.setattr(preflight, "gather", lambda *_, **__: seen["now"])
    return seen


def run(state_dir: Path, needs: Needs = TWO, measured: DeepReport | None = None, at_s: float = 1.0) -> Preflight:
    def measure(_: Sequence[Gpu]) -> DeepReport:
        assert measured is not None
        return measured

    return preflight.run(state_dir, needs, deep=measure if measured is not None else None, clock=lambda: at_s)


def ids(seen: Preflight) -> list[str]:
    return [finding.id for finding in seen.findings]


def test_a_look_is_kept_whole_and_judged_again_for_other_needs(box: dict[str, Facts], tmp_path: Path) -> None:
    seen = run(tmp_path)
    assert (seen.boot_id, seen.findings, seen.notes) == (BOOT_ID, (), ())
    assert (tmp_path / preflight.NAME).stat().st_mode & 0o777 == preflight.MODE
    put(tmp_path, {"proc/sys/kernel/random/boot_id": BOOT_ID})
    assert preflight.cached(tmp_path, TWO, root=tmp_path) == seen
    again = preflight.cached(tmp_path, Needs(gpus=3), root=tmp_path)
    assert again is not None
    assert ids(again) == ["gpu.count"]


def test_what_was_measured_is_kept_until_the_next_boot(box: dict[str, Facts], tmp_path: Path) -> None:
    slow = deep(pin_error="out of memory")
    assert ids(run(tmp_path, measured=slow)) == ["mem.pin"]
    assert ids(run(tmp_path)) == ["mem.pin"]
    box["now"] = facts(host=host(boot_id="another"))
    after = run(tmp_path)
    assert (ids(after), after.facts.deep) == ([], None)
    assert "before the reboot" in after.notes[0]
    assert run(tmp_path).notes == ()


def test_what_could_not_be_measured_this_time_does_not_replace_what_was(box: dict[str, Facts], tmp_path: Path) -> None:
    good = deep()
    run(tmp_path, measured=good)
    busy = DeepReport(9.0, bandwidth_skipped="the engine is serving", nccl_skipped="the engine is serving")
    seen = run(tmp_path, measured=busy)
    assert seen.facts.deep == good
    assert seen.notes == ("--deep measured nothing: the engine is serving",)
    partly = replace(good, nccl_s=None, nccl_skipped="no Python")
    assert run(tmp_path, measured=partly).notes == ("NCCL was not tried: no Python",)


def test_an_unknown_boot_is_no_boot_to_remember(box: dict[str, Facts], tmp_path: Path) -> None:
    box["now"] = facts(host=host(boot_id=""))
    run(tmp_path, measured=deep(pin_error="x"))
    assert ids(run(tmp_path)) == []


def test_counters_are_compared_with_the_first_look_of_the_boot(box: dict[str, Facts], tmp_path: Path) -> None:
    def replays(count: int) -> Facts:
        link = replace(gpu(1).link, replays=count)
        return facts(gpus=report(gpu(0), gpu(1, link=link)))

    box["now"] = replays(7)
    assert ids(run(tmp_path)) == []
    box["now"] = replays(8)
    assert ids(run(tmp_path)) == ["pcie.replay"]
    assert ids(run(tmp_path)) == ["pcie.replay"]
    box["now"] = replace(replays(8), host=host(boot_id="another"))
    assert ids(run(tmp_path)) == []


def test_a_forced_failure_is_a_warning_now_and_when_it_is_shown_again(box: dict[str, Facts], tmp_path: Path) -> None:
    box["now"] = facts(gpus=report(gpu(0, mig=(True, True)), gpu(1)))
    force_(tmp_path, "mig.off", "as it should be", at_s=0.0, by="ana")
    force_(tmp_path, "acs", "gone", at_s=0.0, by="ana")
    seen = run(tmp_path)
    assert [(one.id, one.severity, one.forced) for one in seen.findings] == [
        ("mig.off", Severity.WARN, "as it should be")
    ]
    assert preflight.gone(tmp_path, seen) == ("acs",)


def test_a_broken_forced_file_forces_nothing_and_is_a_finding(box: dict[str, Facts], tmp_path: Path) -> None:
    box["now"] = facts(gpus=report(gpu(0, mig=(True, True)), gpu(1)))
    put(tmp_path, {"forced.json": "{"})
    seen = run(tmp_path)
    assert [(one.id, one.severity) for one in seen.findings] == [
        ("mig.off", Severity.FAIL),
        ("forced.file", Severity.WARN),
    ]
    assert seen.findings[1].remedy.startswith("rm ")
    assert preflight.gone(tmp_path, seen) == ()


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b"null", b'{"facts": {"gpus": {"relations": {"x": "NODE"}}}}', b"\xff"]
)
def test_a_broken_file_is_as_good_as_none(raw: bytes, box: dict[str, Facts], tmp_path: Path) -> None:
    put(tmp_path, {preflight.NAME: raw})
    assert run(tmp_path).notes == ()
    assert from_json(raw) is None


def test_without_a_state_folder_a_look_is_not_kept_and_only_deep_says_so(box: dict[str, Facts], tmp_path: Path) -> None:
    nowhere = tmp_path / "state"
    assert run(nowhere).notes == ()
    assert "was not written" in run(nowhere, measured=deep()).notes[0]
    assert not nowhere.exists()


def test_a_file_of_another_version_is_as_good_as_none() -> None:
    raw = to_json(Preflight(1.0, BOOT_ID, (), facts()))
    assert from_json(raw) is not None
    assert from_json(raw.replace(b"preflight/1", b"preflight/2")) is None


@settings(deadline=None)
@given(st.sampled_from(sorted(CASES)), st.booleans())
def test_the_file_gives_back_what_was_written(case: str, measured: bool) -> None:
    box = CASES[case][0]
    box = replace(box, deep=deep()) if measured else box
    finding = Finding(id="a", severity=Severity.WARN, title="t", observed="o", required="r", remedy="m", forced="f")
    seen = Preflight(1.5, BOOT_ID, (finding,), box, ("a note",))
    assert from_json(to_json(seen)) == seen


@pytest.mark.parametrize(
    ("severities", "code", "words"),
    [
        ((), 0, "clean: 2 x NVIDIA RTX PRO 6000"),
        (("info",), 0, "clean, 1 note: "),
        (("info", "warn", "warn"), 1, "2 warnings, 1 note: "),
        (("warn", "fail"), 78, "1 failure, 1 warning: "),
    ],
)
def test_the_exit_code_and_the_first_line_follow_the_worst(severities: tuple[str, ...], code: int, words: str) -> None:
    findings = tuple(
        Finding(id=f"x{at}", severity=Severity(severity), title="t", observed="o", required="r", remedy="m")
        for at, severity in enumerate(severities)
    )
    assert exit_code(findings) == code
    assert verdict(Preflight(0.0, "", findings, facts())).startswith(words)


def test_a_cause_and_its_effects_count_once_as_the_worst_of_them() -> None:
    def one(id_: str, severity: Severity, cause: str | None) -> Finding:
        return Finding(id=id_, severity=severity, title="t", observed="o", required="r", remedy="m", depends_on=cause)

    chain = (
        one("link", Severity.WARN, None),
        one("copies", Severity.FAIL, "link"),
        one("both", Severity.WARN, "copies"),
        one("alone", Severity.WARN, "absent"),
    )
    assert verdict(Preflight(0.0, "", chain, facts())).startswith("1 failure, 1 warning: ")
    circle = (one("a", Severity.WARN, "b"), one("b", Severity.WARN, "a"))
    assert "warning" in verdict(Preflight(0.0, "", circle, facts()))


@pytest.mark.parametrize("gpus", [None, *(GpuReport(outcome) for outcome in Outcome)])
def test_the_document_for_programs_is_json_for_every_outcome(gpus: GpuReport | None) -> None:
    seen = Preflight(0.0, BOOT_ID, (), facts(gpus=gpus, host=None, deep=deep()))
    said: dict[str, Any] = json.loads(json.dumps(document(seen, ["acs"])))
    assert (said["forced_but_gone"], said["exit"], said["at"]) == (["acs"], 0, "1970-01-01T00:00:00+00:00")
    assert said["deep"]["bandwidth"]["alone"] == {"0": 55.0, "1": 54.0}
    assert said["verdict"]


def test_a_probe_that_never_ends_leaves_the_others_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(tmp_path)
    never = threading.Event()
    monkeypatch.setattr(preflight, "HOST_S", 0.2)
    monkeypatch.setattr(preflight, "probe_host", lambda *_: never.wait(60))
    monkeypatch.setattr(preflight.nvml, "gather", lambda *_: report())
    seen = preflight.run(tmp_path, TWO, root=tmp_path, environ={})
    never.set()
    assert seen.facts.gpus == report()
    assert seen.facts.host is None
    assert "no answer within 0.2 s" in seen.notes[0]


def test_an_error_in_a_probe_is_raised_where_it_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> GpuReport:
        raise ZeroDivisionError

    monkeypatch.setattr(preflight.nvml, "gather", broken)
    with pytest.raises(ZeroDivisionError):
        preflight.gather(tmp_path, root=tmp_path, environ={})


def test_forced_is_a_value_with_a_reason() -> None:
    with pytest.raises(ValueError, match="reason"):
        Forced(id="mig.off", reason="", at_s=0.0)


def test_what_was_measured_of_other_cards_is_not_used(box: dict[str, Facts], tmp_path: Path) -> None:
    of_two = deep(pin_error="out of memory", cards=((0, "GPU-0"), (1, "GPU-1")))
    assert ids(run(tmp_path, measured=of_two)) == ["mem.pin"]
    # a driver that does not answer says nothing of cards
    box["now"] = facts(gpus=GpuReport(Outcome.HUNG))
    assert "mem.pin" in ids(run(tmp_path))
    # when a card fell off the bus, the others have its index
    box["now"] = facts(gpus=report(gpu(0, uuid="GPU-1")))
    after = run(tmp_path, Needs(gpus=1))
    assert (ids(after), after.facts.deep) == ([], None)
    assert "other cards" in after.notes[0]


def test_only_the_engines_cards_are_measured(box: dict[str, Facts], tmp_path: Path) -> None:
    box["now"] = facts(gpus=report(gpu(0), gpu(1), gpu(2)))
    asked: list[str] = []

    def measure(cards: Sequence[Gpu]) -> DeepReport:
        asked.extend(card.uuid for card in cards)
        return deep()

    preflight.run(tmp_path, Needs(gpus=2, visible=("2", "0")), deep=measure)
    assert asked == ["GPU-2", "GPU-0"]


@pytest.mark.parametrize("name", ["preflight.json", "forced.json"])
def test_a_pipe_in_a_files_place_holds_up_nobody(name: str, box: dict[str, Facts], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    seen = run(tmp_path)
    said = " ".join((*seen.notes, *(finding.observed for finding in seen.findings)))
    assert f"{name}" in said
    assert "not a regular file" in said


def test_what_root_keeps_goes_to_the_folders_owner_and_no_other_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_away: list[tuple[Any, ...]] = []
    monkeypatch.setattr(kept.os, "geteuid", lambda: 0)
    monkeypatch.setattr(kept.os, "chown", lambda *args, **named: given_away.append((*args, named)))
    kept.keep(tmp_path / "file", b"{}", 0o600)
    owner = tmp_path.stat()
    assert given_away == [(tmp_path / "file", owner.st_uid, owner.st_gid, {"follow_symlinks": False})]


def test_a_folder_that_is_shut_to_us_costs_notes_only(
    box: dict[str, Facts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shut(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(preflight, "read", shut)
    monkeypatch.setattr(preflight, "keep", shut)
    monkeypatch.setattr(Path, "exists", shut)
    assert "Permission denied" in run(tmp_path).notes[0]
