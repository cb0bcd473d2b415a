"""appliance/engine/environments/verify.py: what is wrong with an environment, and what to do about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.environments import verify
from appliance.engine.environments.folders import Environment
from appliance.engine.environments.install import Installed
from appliance.engine.environments.lock import Lock, parse
from appliance.engine.environments.sets import SETS
from gateway.state import Finding, Severity
from tests.appliance.environments.wheelhouse import House


@pytest.fixture
def lock(tiny: House) -> Lock:
    return parse((tiny.locks / "tiny.lock").read_text())


@pytest.fixture
def inside(done: Installed) -> Iterator[Path]:
    """The environment's packages, which a test may change; they are put back."""
    packages = next((done.environment.folder / "venv" / "lib").glob("python3*")) / "site-packages"
    kept = packages.with_name("kept")
    shutil.copytree(packages, kept)
    yield packages
    shutil.rmtree(packages)
    kept.rename(packages)


def only(environment: Environment, lock: Lock, **more: Any) -> Finding:
    """The one finding, which fails and says what to type."""
    (found,) = verify.verify(environment, lock, **more)
    assert found.severity is Severity.FAIL
    assert found.remedy
    return found


def with_set(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    monkeypatch.setitem(SETS, "tiny", replace(SETS["tiny"], **more))


def answered(monkeypatch: pytest.MonkeyPatch, done: Installed, said: dict[str, Any]) -> None:
    """Let another program be asked, which answers that."""
    path = done.environment.folder.parent / "asked.py"
    path.write_text(f"print({json.dumps(said)!r})")
    monkeypatch.setattr(verify, "_CHILD", path)


def test_one_that_is_as_locked_and_works_has_no_findings(done: Installed, lock: Lock) -> None:
    assert verify.verify(done.environment, lock) == ()


def test_a_package_of_another_version_or_gone_or_more_is_named(done: Installed, lock: Lock, inside: Path) -> None:
    (inside / "vllm-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1.1\n")
    shutil.rmtree(inside / "tiny_extra-1.0.dist-info")
    (inside / "more-9.dist-info").mkdir()
    (inside / "more-9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: more\x1b[31m\nVersion: 9\n")
    found = only(done.environment, lock)
    assert found.id == "environment.packages"
    assert "tiny-extra is missing, locked 1.0; vllm 1.1, locked 1.0; more" in found.observed
    assert "\x1b" not in found.observed
    assert found.remedy == f"rm -r {done.environment.folder}; moe-appliance engine install tiny"


def test_what_cannot_be_imported_is_named_with_the_reason(done: Installed, lock: Lock, inside: Path) -> None:
    (inside / "vllm" / "__init__.py").write_text("raise SystemExit('no AVX2 here')")
    found = only(done.environment, lock)
    assert (found.id, found.observed) == ("environment.imports", "vllm: SystemExit: no AVX2 here")


def test_a_plugin_that_is_not_there_is_named(
    done: Installed, lock: Lock, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_set(monkeypatch, plugins=("vllm_exl3",))
    assert verify.verify(done.environment, lock) == ()
    (inside / "tiny_extra-1.0.dist-info" / "entry_points.txt").write_text("[vllm.general_plugins]\nother = extra:x\n")
    found = only(done.environment, lock)
    assert found.id == "environment.plugins"
    assert found.observed == "entry points there: other"


def test_another_platform_than_the_sets_is_told(done: Installed, lock: Lock, inside: Path) -> None:
    (inside / "vllm" / "platforms.py").write_text("class current_platform:\n    device_type = ''\n")
    found = only(done.environment, lock)
    assert (found.id, found.observed) == ("environment.platform", "platform none")


def test_a_crash_and_a_hang_are_told_with_the_step_they_came_in(done: Installed, lock: Lock, inside: Path) -> None:
    (inside / "vllm" / "__init__.py").write_text("import os; os.abort()")
    found = only(done.environment, lock)
    assert found.id == "environment.child"
    assert found.observed.startswith("it ended with code -6, at: import vllm")
    (inside / "vllm" / "__init__.py").write_text("import signal; signal.pause()")
    assert only(done.environment, lock, deadline_s=1.0).observed == "it did not end within 1 s, at: import vllm"


def test_a_python_that_is_gone_is_told(done: Installed, lock: Lock, inside: Path) -> None:
    python = done.environment.python
    python.rename(python.with_name("gone"))
    try:
        found = only(done.environment, lock)
    finally:
        python.with_name("gone").rename(python)
    assert found.title == "Its Python does not run"


SAID = {
    "packages": {"vllm": "1.0", "tiny-extra": "1.0"},
    "plugins": {},
    "no_compiler": [],
    "errors": {},
    "platform": "cuda",
    "next": "",
}
CARD = ["NVIDIA RTX PRO 6000", [12, 0]]


@pytest.mark.parametrize(
    ("cuda", "severity", "says"),
    [
        ({"built_for": "13.0", "cards": [], "codes": []}, Severity.FAIL, "torch for CUDA 13.0 sees no card"),
        ({"error": "RuntimeError: driver too old"}, Severity.FAIL, "RuntimeError: driver too old"),
        ({"built_for": "13.0", "cards": [CARD], "codes": ["sm_80", "sm_90"]}, Severity.FAIL, "RTX PRO 6000 12.0"),
        ({"built_for": "13.0", "cards": [CARD] * 2, "codes": ["sm_90", "sm_120"]}, Severity.INFO, "(12.0)"),
        ({"built_for": "13.0", "cards": [CARD], "codes": ["sm_90a", "sm_120f"]}, Severity.INFO, "(12.0)"),
    ],
)
def test_what_torch_sees_of_the_cards_is_judged(
    done: Installed, lock: Lock, monkeypatch: pytest.MonkeyPatch, cuda: dict[str, Any], severity: Severity, says: str
) -> None:
    with_set(monkeypatch, device="cuda")
    answered(monkeypatch, done, SAID | {"cuda": cuda})
    (found,) = verify.verify(done.environment, lock)
    assert (found.id, found.severity) == ("environment.cuda", severity)
    assert says in found.observed


def test_without_a_compiler_for_its_kernels_the_packages_to_install_are_named(
    done: Installed, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_set(monkeypatch, device="cuda")
    cuda = {"built_for": "13.0", "cards": [CARD], "codes": []}
    answered(monkeypatch, done, SAID | {"cuda": cuda, "no_compiler": ["gcc", "/usr/include/python3.12/Python.h"]})
    found, _ = verify.verify(done.environment, lock)
    assert (found.id, found.severity) == ("environment.compiler", Severity.FAIL)
    assert found.observed == "missing: gcc, /usr/include/python3.12/Python.h"
    assert found.remedy.startswith("apt-get install gcc libc6-dev python3.")


def test_one_of_an_older_lock_is_whole_and_has_a_newer(done: Installed, lock: Lock) -> None:
    (found,) = verify.verify(done.environment, replace(lock, sha256="0" * 64))
    assert (found.id, found.severity) == ("environment.lock", Severity.WARN)
    assert found.remedy == "moe-appliance engine install tiny"


def test_the_last_look_is_kept(done: Installed, lock: Lock) -> None:
    failing = Finding(id="a.b", severity=Severity.FAIL, title="", observed="", required="", remedy="")
    verify.keep(done.environment, [failing], 12.0)
    assert verify.last_look(done.environment) == verify.Verified(12.0, ("a.b",))
    verify.keep(done.environment, [], 13.0)
    assert verify.last_look(done.environment) == verify.Verified(13.0)
