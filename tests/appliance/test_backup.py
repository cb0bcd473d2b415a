"""`moe-appliance backup` and `restore`: what is in it and what is not, and that a restore is whole or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance import restore as module
from appliance.backup_members import LEDGER, MANIFEST
from appliance.cli.box import Box
from appliance.errors import AlreadyRunning, MoeError
from appliance.files import FolderLock
from appliance.restore import restore
from gateway.ledger import reading
from gateway.ledger.writing import NAME
from tests.appliance.backups import CONFIG, LEARNED, SEATS_TOML, contents, made, run, tree
from tests.gateway.ledgers import NOW_S, row, running_ledger, until


def test_a_backup_has_what_cannot_be_made_again_and_no_secret(archive: Path) -> None:
    found = contents(archive)
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert sorted(found) == [
        "config/appliance.toml",
        "config/seats.toml",
        "manifest.json",
        "state/curves.json",
        "state/forced.json",
        "state/ledger.db",
        "state/overlay.json",
    ]
    assert b"secret-" not in b"".join(found.values())
    manifest = json.loads(found.pop(MANIFEST))
    assert {m["name"]: (m["bytes"], m["sha256"]) for m in manifest["members"]} == {
        name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in found.items()
    }


def test_a_backup_is_made_while_the_ledger_is_written(tmp_path: Path) -> None:
    box = made(tmp_path, ledger=False)
    with running_ledger(tmp_path / "data" / NAME) as kept:
        for number in range(100):
            kept.put(row(at_s=NOW_S + number))
        until(lambda: kept.state.rows == 100)
        assert run(box, "backup", str(tmp_path / "b")).exit_code == 0
    copied = tmp_path / "copied.db"
    copied.write_bytes(contents(tmp_path / "b")[LEDGER])
    assert reading.usage(copied, 0, NOW_S + 1000)[0].requests == 100


def test_a_backup_is_never_written_over_a_file(tmp_path: Path) -> None:
    box, there = made(tmp_path), tmp_path / "b"
    there.write_text("mine")
    with pytest.raises(MoeError, match="exists already"):
        run(box, "backup", str(there))
    assert there.read_text() == "mine"
    with pytest.raises(MoeError, match="cannot be written"):
        run(box, "backup", str(tmp_path / "absent" / "b"))


def test_a_link_in_the_state_folder_takes_no_other_file_along(tmp_path: Path) -> None:
    box = made(tmp_path)
    (tmp_path / "shadow").write_text("secret-of-others")
    (tmp_path / "data" / "evil.json").symlink_to(tmp_path / "shadow")
    run(box, "backup", str(tmp_path / "b"))
    assert b"secret-of-others" not in b"".join(contents(tmp_path / "b").values())


def test_a_restore_brings_a_box_back_on_an_empty_machine(archive: Path, tmp_path: Path) -> None:
    home = tmp_path / "new"
    home.mkdir()
    done = run(Box(home / "appliance.toml", {}), "restore", str(archive))
    assert done.exit_code == 0
    assert (home / "appliance.toml").read_text() == CONFIG
    assert (home / "data/seats.toml").read_text() == SEATS_TOML, "where the restored configuration wants it"
    assert (home / "data/overlay.json").read_text() == LEARNED["data/overlay.json"]
    assert reading.usage(home / "data" / NAME, 0, NOW_S + 1)[0].requests == 1
    modes = {name: stat.S_IMODE((home / name).stat().st_mode) for name in ("data/seats.toml", f"data/{NAME}")}
    assert modes == {"data/seats.toml": 0o640, f"data/{NAME}": 0o600}


def test_what_a_restore_replaces_is_kept_with_owner_and_mode(archive: Path, tmp_path: Path) -> None:
    home = tmp_path / "new"
    home.mkdir()
    box = made(home)
    (home / "data/seats.toml").write_text("# of today\n")
    (home / "data/seats.toml").chmod(0o604)
    if os.geteuid() == 0:
        os.chown(home / "data/seats.toml", 1234, 4321)
    (home / "data" / f"{NAME}-wal").write_bytes(b"log of the old ledger")
    before = time.time()
    assert "kept as seats.toml.before-restore-" in run(box, "restore", str(archive)).stdout
    assert time.time() - before < 10
    [kept] = (home / "data").glob("seats.toml.before-restore-*")
    assert kept.read_text() == "# of today\n"
    now = (home / "data/seats.toml").stat()
    assert (home / "data/seats.toml").read_text() == SEATS_TOML
    assert stat.S_IMODE(now.st_mode) == 0o604
    if os.geteuid() == 0:
        assert (now.st_uid, now.st_gid) == (1234, 4321)
    assert not (home / "data" / f"{NAME}-wal").exists(), "it belongs to the ledger that was replaced"
    assert len(list((home / "data").glob(f"{NAME}-wal.before-restore-*"))) == 1
    assert (home / "data/cookie.secret").read_text() == "secret-cookie"


def test_a_dry_run_changes_nothing_and_says_what_it_would(archive: Path, tmp_path: Path) -> None:
    home = tmp_path / "new"
    home.mkdir()
    box = made(home)
    before = tree(home)
    done = run(box, "restore", "--dry-run", str(archive))
    assert tree(home) == before
    assert f"{home}/data/seats.toml" in done.stdout
    assert done.stdout.endswith("nothing was changed\n")


@pytest.mark.parametrize("folder", ["data", "run"])
def test_a_restore_is_refused_while_a_box_runs(archive: Path, tmp_path: Path, folder: str) -> None:
    home = tmp_path / "new"
    home.mkdir()
    box = made(home)
    before = tree(home)
    lock = FolderLock(home / folder)
    try:
        with pytest.raises(AlreadyRunning, match="another moe-appliance"):
            run(box, "restore", str(archive))
        assert tree(home) == before
    finally:
        lock.close()
    assert run(box, "restore", str(archive)).exit_code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give files away")
def test_locks_that_root_makes_are_left_to_who_runs_the_box(archive: Path, tmp_path: Path) -> None:
    home = tmp_path / "new"
    (home / "data").mkdir(parents=True)
    os.chown(home / "data", 1234, 4321)
    run(Box(home / "appliance.toml", {}), "restore", str(archive))
    assert {(path.stat().st_uid, path.stat().st_gid) for path in (home / "data").iterdir()} == {(1234, 4321)}


def test_a_restore_that_fails_in_the_middle_is_undone(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "new"
    home.mkdir()
    box = made(home)
    before = tree(home)
    rename, count = Path.rename, [0]

    def fails(self: Path, target: Path) -> Path:
        count[0] += 1
        if count[0] == 6:
            raise OSError(28, "No space left on device", str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(MoeError, match="nothing was changed"):
        run(box, "restore", str(archive))
    assert count[0] > 6
    assert tree(home) == before


def test_a_copy_of_the_ledger_that_finds_no_room_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = made(tmp_path)
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def small(path: Any, **words: Any) -> sqlite3.Connection:
        db = connect(path, **words)
        if ".moe-backup-" in str(path):
            db.execute("PRAGMA max_page_count = 1")
        return db

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(MoeError, match=r"b\.tar\.gz cannot be written: No space left") as caught:
        run(box, "backup", str(tmp_path / "b.tar.gz"))
    assert caught.value.remedy == f"df -h {tmp_path}"
    assert not [path for path in tmp_path.iterdir() if "backup" in path.name or path.name == "b.tar.gz"]


def test_a_backup_needs_no_file_system_that_has_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*names: Any, **words: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    assert run(made(tmp_path), "backup", str(tmp_path / "b.tar.gz")).exit_code == 0
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600


def test_a_restore_that_is_interrupted_in_the_middle_is_undone(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "new"
    home.mkdir()
    box, rename, count = made(home), Path.rename, [0]
    before = tree(home)

    def interrupted(self: Path, target: Path) -> Path:
        count[0] += 1
        if count[0] == 6:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        restore(archive, home / "appliance.toml", lambda: (box.config, box.paths), {})
    assert tree(home) == before


def test_a_plan_goes_where_the_restored_configuration_names_it_or_is_left_out(tmp_path: Path) -> None:
    home, plan = tmp_path / "old", Path(__file__).parents[2] / "plans"
    home.mkdir()
    box = made(home)
    text = sorted(plan.glob("*.json"))[0].read_bytes()
    (home / "p.json").write_bytes(text)
    (home / "appliance.toml").write_text(CONFIG + '\n[plan]\nfile = "p.json"\n')
    run(box, "backup", str(tmp_path / "b"))
    fresh = tmp_path / "new"
    fresh.mkdir()
    run(Box(fresh / "appliance.toml", {}), "restore", str(tmp_path / "b"))
    assert (fresh / "p.json").read_bytes() == text
    assert module.PLAN in contents(tmp_path / "b")


def test_what_comes_back_outside_the_state_folder_is_read_by_the_services_group_and_by_nobody_else(
    tmp_path: Path,
) -> None:
    # given a box whose plan and seats lie beside its configuration
    home, plans = tmp_path / "old", Path(__file__).parents[2] / "plans"
    box = made(home)
    (home / "p.json").write_bytes(sorted(plans.glob("*.json"))[0].read_bytes())
    (home / "seats.toml").write_text(SEATS_TOML)
    (home / "appliance.toml").write_text('seats_file = "seats.toml"\n' + CONFIG + '\n[plan]\nfile = "p.json"\n')
    run(box, "backup", str(tmp_path / "b"))

    # when it is brought back to a machine where the service has its state folder and nothing else
    fresh = tmp_path / "new"
    (fresh / "data").mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(fresh, 1000, 1000)
        os.chown(fresh / "data", 1234, 4321)
    run(Box(fresh / "appliance.toml", {}), "restore", str(tmp_path / "b"))

    # then it can read what it does not own, and others cannot
    outside = [(fresh / name).stat() for name in ("appliance.toml", "seats.toml", "p.json")]
    assert {stat.S_IMODE(found.st_mode) for found in outside} == {0o640}
    assert {found.st_uid for found in outside} == {fresh.stat().st_uid}
    assert {found.st_gid for found in outside} == {(fresh / "data").stat().st_gid}
    assert stat.S_IMODE((fresh / "data/curves.json").stat().st_mode) == 0o600


def test_plans_that_were_chosen_come_back_and_environments_of_engines_do_not(tmp_path: Path) -> None:
    # given a box with a plan in use, and an engine's environment
    box = made(tmp_path / "old")
    state = tmp_path / "old/data"
    (state / "plans").mkdir()
    (state / "plans/mine-0123456789ab.json").write_text("{}")
    (state / "pairs.json").write_text("{}")
    (state / "engines/vllm-0123456789ab/venv").mkdir(parents=True)
    (state / "engines/vllm-0123456789ab/manifest.json").write_text("{}")

    # when it is backed up and brought back elsewhere
    archive = tmp_path / "b"
    assert run(box, "backup", str(archive)).exit_code == 0
    (tmp_path / "new").mkdir()
    restore(archive, tmp_path / "new/appliance.toml", _none, {})

    # then the plan is there, with the file that names it
    assert (tmp_path / "new/data/plans/mine-0123456789ab.json").read_text() == "{}"
    assert (tmp_path / "new/data/pairs.json").exists()
    assert not [name for name in contents(archive) if "engines" in name]


def test_a_link_for_the_folder_of_plans_leads_neither_way(tmp_path: Path) -> None:
    # given a folder of plans that somebody made a link
    box = made(tmp_path / "old")
    others = tmp_path / "others"
    others.mkdir()
    (others / "secret.json").write_text("secret-of-others")
    plans = tmp_path / "old/data/plans"
    plans.symlink_to(others)

    # then a backup takes nothing from there
    run(box, "backup", str(tmp_path / "b"))
    assert b"secret-of-others" not in b"".join(contents(tmp_path / "b").values())

    # and nothing is brought back into it
    plans.unlink()
    plans.mkdir()
    (plans / "mine.json").write_text("{}")
    run(box, "backup", str(tmp_path / "c"))
    (plans / "mine.json").unlink()
    plans.rmdir()
    plans.symlink_to(others)
    with pytest.raises(MoeError, match="is a link"):
        restore(tmp_path / "c", tmp_path / "old/appliance.toml", _none, {})
    assert [path.name for path in others.iterdir()] == ["secret.json"]


def _none() -> Any:
    raise AssertionError("the archive has its configuration")
