"""appliance/engine/environments/install.py with two tiny wheels: real pip, real environments, no registry."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.engine import pairs_kept
from appliance.engine.environments import find, folders, pip, wheels
from appliance.engine.environments import install as install_module
from appliance.engine.environments.install import Installed, install
from appliance.engine.environments.sets import SETS
from appliance.engine.environments.wheels import Progress
from appliance.engine.pairs import Pairs, tried
from appliance.errors import MoeError
from appliance.files import locked
from gateway.state import Pair
from tests.appliance.environments.conftest import put
from tests.appliance.environments.wheelhouse import VLLM, House, house

ROOT = Path(__file__).parents[3]
KILLED = """
    import os, pathlib, signal, sys
    from appliance.engine.environments import wheels
    from appliance.engine.environments.install import install
    from appliance.engine.environments.sets import SETS
    from tests.appliance.environments.wheelhouse import house

    wheels.BATCH_WHEELS = 1
    home, step, done = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    made = house(home / "house")
    SETS["tiny"] = made.made

    def on_progress(now):
        if (now.step, now.done) == (step, done):
            os.kill(os.getpid(), signal.SIGKILL)

    install(made.made, home / "state", on_progress, locks=made.locks)
"""


def fetched(home: Path, made: House) -> Installed:
    """Install over pip's download."""
    SETS["tiny"] = made.made
    return install(made.made, home / "state", lambda _: None, locks=made.locks)


def killed(home: Path, step: str, done: int) -> None:
    """Install in another process, which is killed when it is that far."""
    argv = [sys.executable, "-c", textwrap.dedent(KILLED), str(home), step, str(done)]
    assert subprocess.run(argv, cwd=ROOT, check=False).returncode == -signal.SIGKILL


def test_an_environment_is_made_and_found_by_its_name(done: Installed, home: Path) -> None:
    found = find(home / "state", "tiny")
    assert found == done.environment
    assert find(home / "state", done.environment.id) == found
    assert done.findings == ()
    assert found.manifest.packages == {"tiny-extra": "1.0", "vllm": "1.0"}
    assert found.manifest.size_bytes > 10_000
    said = subprocess.run([found.python, "-c", "import vllm; print(vllm.__cached__)"], capture_output=True, text=True)
    assert Path(said.stdout.strip()).is_file(), "byte code is there before it runs"


def test_once_more_changes_nothing(done: Installed, home: Path, tiny: House) -> None:
    before = done.environment.folder.stat().st_mtime_ns
    assert put(home / "state", tiny).again
    assert done.environment.folder.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["", ".", "..", "other", "../state/engines/tiny", "wheels", "lock"])
def test_what_is_no_environment_is_not_found(done: Installed, home: Path, name: str) -> None:
    assert find(home / "state", name) is None


@pytest.mark.parametrize(("step", "number"), [("fetching wheels", 1), ("unpacking", 0), ("trying it", 2)])
def test_killed_anywhere_it_goes_on_and_fetches_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    made = house(tmp_path / "house")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.wheels))
    killed(tmp_path, step, number)
    assert find(tmp_path / "state", "tiny") is None
    for there in (tmp_path / "state" / "engines" / "wheels").glob("*.whl"):
        (made.wheels / there.name).unlink()
    found = fetched(tmp_path, made)
    assert found.findings == ()
    assert not (tmp_path / "state" / "engines" / "wheels").exists()


def test_wheels_that_were_fetched_are_not_fetched_again_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = house(tmp_path / "house")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.wheels))
    killed(tmp_path, "fetching wheels", 1)
    kept = list((tmp_path / "state" / "engines" / "wheels").glob("*.whl"))
    assert [path.name for path in kept] == [made.files[0].name]
    made.files[0].unlink()
    seen: list[Progress] = []
    SETS["tiny"] = made.made
    install(made.made, tmp_path / "state", seen.append, locks=made.locks)
    assert min(now.done for now in seen if now.step == "fetching wheels") == 1
    assert find(tmp_path / "state", "tiny") is not None


def test_a_wheel_that_no_index_has_is_named(tmp_path: Path) -> None:
    made = house(tmp_path / "house")
    with pytest.raises(MoeError, match=r"pip could not fetch tiny-extra, vllm: .*No matching distribution"):
        fetched(tmp_path, made)


def test_what_is_wrong_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = house(tmp_path / "house", installed_bytes=1 << 60)
    with pytest.raises(MoeError, match=r"tiny needs .* for wheels, ~1073741824.0 GiB unpacked") as full:
        put(tmp_path / "state", made)
    assert "df -h" in full.value.remedy
    other = replace(made, made=replace(made.made, python=(3, 8)))
    with pytest.raises(MoeError, match=r"the locked packages are for 3\.8") as wrong:
        put(tmp_path / "state", other, python=Path(sys.executable))
    assert "engine install tiny --python" in wrong.value.remedy
    with pytest.raises(MoeError, match=r"needs Python 3\.99: there is no python3\.99"):
        put(tmp_path / "state", replace(made, made=replace(made.made, python=(3, 99))))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(MoeError, match="belongs to") as owner:
        put(tmp_path / "state", made)
    assert owner.value.remedy.startswith("sudo -u ")
    assert not [path for path in (tmp_path / "state" / "engines").iterdir() if path.name.startswith("tiny")]


def test_two_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = house(tmp_path / "house")
    (tmp_path / "state" / "engines").mkdir(parents=True)
    monkeypatch.setattr(install_module, "LOCK_WAIT_S", 0.0)
    fd = locked(tmp_path / "state" / "engines" / "lock")
    try:
        with pytest.raises(MoeError, match=f"is being installed .*pid {os.getpid()}"):
            put(tmp_path / "state", made)
    finally:
        os.close(fd)


def test_one_that_does_not_work_does_not_take_the_place_of_one_that_does(tmp_path: Path) -> None:
    good = put(tmp_path / "state", house(tmp_path / "one")).environment
    broken = house(tmp_path / "two", version="2.0", vllm=VLLM | {"vllm/__init__.py": "import nothing_like_it"})
    with pytest.raises(MoeError, match="cannot be imported: vllm: ModuleNotFoundError"):
        put(tmp_path / "state", broken)
    assert find(tmp_path / "state", "tiny") == good


def test_the_last_one_is_kept_and_older_ones_unless_they_are_in_use(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first, second = (put(state, house(tmp_path / v, version=v)).environment for v in ("1.0", "2.0"))
    assert [one.id for one in folders.installed(state)] == [first.id, second.id]
    fd = os.open(first.folder / "venv" / ".used", os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    third = put(state, house(tmp_path / "3.0", version="3.0"))
    assert third.removed == ()
    assert folders.in_use(first.folder)
    os.close(fd)
    assert folders.remove_old(state, "tiny", frozenset({second.id})) == [first.id]
    assert find(state, first.id) is None
    assert find(state, second.id) == second
    assert find(state, "tiny") == third.environment


def test_what_was_chosen_or_a_trial_goes_back_to_is_kept_though_it_does_not_run(tmp_path: Path) -> None:
    # given an environment that was chosen, and another one on trial
    state = tmp_path / "state"
    first, second = (put(state, house(tmp_path / v, version=v)).environment for v in ("1.0", "2.0"))
    chosen = Pairs(current=Pair(environment=first.id))
    pairs_kept.save(state, tried(chosen, Pair(environment=second.id)))

    # when newer ones are installed, and of those one served by its name
    third = put(state, house(tmp_path / "3.0", version="3.0")).environment
    pairs_kept.save(state, replace(tried(chosen, Pair(environment=second.id)), served=third.id))
    for version in ("4.0", "5.0"):
        put(state, house(tmp_path / version, version=version))

    # then all three are there
    assert find(state, first.id) == first
    assert find(state, second.id) == second
    assert find(state, third.id) == third


def test_a_folder_that_an_operator_put_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "state" / "engines" / "tiny-before").mkdir(parents=True)
    put(tmp_path / "state", house(tmp_path / "house"))
    assert (tmp_path / "state" / "engines" / "tiny-before").is_dir()


def test_without_pip_the_remedy_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip, "find_spec", lambda _: None)
    with pytest.raises(MoeError, match="has no pip") as caught:
        pip.pip_program()
    assert caught.value.remedy.endswith("-m ensurepip --upgrade")


def test_in_the_debian_package_pip_is_among_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "pip-26.3-py3-none-any.whl").touch()
    monkeypatch.setattr(pip, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venvs" / "1.0-py3.11-1"))
    assert pip.pip_program() == tmp_path / "wheels" / "pip-26.3-py3-none-any.whl" / "pip"


def test_progress_counts_the_bytes_that_are_still_coming(
    tmp_path: Path, tiny: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = install_module.lock_of(tiny.made, tiny.locks)

    class Coming(pip.Pip):
        def download(self, requirements: str, folder: Path, on_tick: object) -> str:
            (folder / "tmp").mkdir(parents=True)
            (folder / "tmp" / "half").write_bytes(b"x" * 100)
            on_tick()  # type: ignore[operator]
            return "the network went away"

    seen: list[Progress] = []
    with pytest.raises(MoeError, match="the network went away"):
        wheels.fetch(tmp_path, lock.wheels, Coming(Path(), Path(), -1), seen.append)
    assert [(now.done_bytes, now.total_bytes) for now in seen] == [(0, lock.total_bytes), (100, lock.total_bytes)]
