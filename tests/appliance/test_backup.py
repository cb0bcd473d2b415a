"""`moe-appliance backup` and `restore`: what is in it and what is not, and that a restore is whole or nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sqlite3
import stat
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from appliance import restore as module
from appliance.backup_members import LEDGER, MANIFEST, SEATS
from appliance.cli import backup
from appliance.cli.box import Box
from appliance.errors import AlreadyRunning, MoeError
from appliance.files import FolderLock
from appliance.restore import restore
from gateway.keys import digest_of
from gateway.ledger import reading
from gateway.ledger.writing import NAME
from tests.gateway.ledgers import NOW_S, row, running_ledger, until

CONFIG = """listen = "127.0.0.1:9123"  # kept
state_dir = "data"
runtime_dir = "run"
"""
SEATS_TOML = f'# the team\n[seats.ana]\ndigest = "{digest_of("k")}"\n'
SECRETS = {
    "data/cookie.secret": "secret-cookie",
    "data/model/weights.gguf": "secret-weights",
    "data/engine.log": "secret-log",
    "data/seats.toml.lock": "secret-lock",
    "data/first-admin-token": "secret-token",
    "run/engine-1.key": "secret-key",
    "run/gateway.json": "secret-runtime",
}
LEARNED = {"data/overlay.json": '{"mode": "paused"}', "data/forced.json": "[]", "data/curves.json": "[1]"}


def made(home: Path, ledger: bool = True) -> Box:
    """A box with everything."""
    for name, text in {"appliance.toml": CONFIG, "data/seats.toml": SEATS_TOML, **SECRETS, **LEARNED}.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if ledger:
        with running_ledger(home / "data" / NAME) as kept:
            kept.put(row())
    return Box(home / "appliance.toml", {})


def run(box: Box, *words: str) -> Result:
    app = typer.Typer()

    @app.callback()
    def _root(ctx: typer.Context) -> None:
        ctx.obj = box

    backup.register(app)
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def contents(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        found = {info.name: tar.extractfile(info) for info in tar}
        return {name: file.read() for name, file in found.items() if file is not None}


def tree(home: Path) -> dict[str, bytes]:
    """Every file, but for locks, which a look makes."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name not in ("lock", f"{NAME}-shm", f"{NAME}-wal")
    }


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A backup of a whole box."""
    home = tmp_path / "old"
    home.mkdir()
    assert run(made(home), "backup", str(tmp_path / "b.tar.gz")).exit_code == 0
    return tmp_path / "b.tar.gz"


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


Change = Callable[[dict[str, Any], list[tuple[tarfile.TarInfo, bytes]]], None]


def forged(archive: Path, to: Path, change: Change) -> Path:
    """The archive with its manifest and members changed."""
    found = contents(archive)
    manifest = json.loads(found.pop(MANIFEST))
    members = []
    for name, data in found.items():
        info = tarfile.TarInfo(name)
        info.size = len(data)
        members.append((info, data))
    change(manifest, members)
    with tarfile.open(to, "w:gz") as tar:
        raw = json.dumps(manifest).encode()
        info = tarfile.TarInfo(MANIFEST)
        info.size = len(raw)
        tar.addfile(info, io.BytesIO(raw))
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))
    return to


def added(name: str, **fields: Any) -> Change:
    """A further member, also in the manifest."""

    def change(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        info, data = tarfile.TarInfo(name), b"evil"
        info.size = len(data)
        for key, value in fields.items():
            setattr(info, key, value)
        if info.type != tarfile.REGTYPE:
            info.size = 0
        manifest["members"].append({"name": name, "bytes": 4, "sha256": hashlib.sha256(data).hexdigest()})
        members.append((info, data))

    return change


def replaced(name: str, data: bytes) -> Change:
    """Another content, with a manifest that agrees."""

    def change(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        for number, (info, _) in enumerate(members):
            if info.name == name:
                info.size = len(data)
                members[number] = (info, data)
        for member in manifest["members"]:
            if member["name"] == name:
                member |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    return change


def _bit(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    info, data = members[0]
    members[0] = (info, data[:-1] + b"#")


def _format(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    manifest["format"] = 99


FORGED: Mapping[str, Change] = {
    "above": added("../evil.json"),
    "above the state": added("state/../../evil.json"),
    "absolute": added("/etc/evil.json"),
    "hidden": added("state/.evil.json"),
    "another kind": added("state/evil.sh"),
    "a link": added("state/evil.json", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": added("state/evil.json", type=tarfile.LNKTYPE, linkname="config/seats.toml"),
    "a device": added("state/evil.json", type=tarfile.CHRTYPE),
    "a folder": added("state/evil.json", type=tarfile.DIRTYPE),
    "twice": added("config/seats.toml"),
    "unnamed": lambda manifest, members: members.append((tarfile.TarInfo("state/evil.json"), b"")),
    "missing": lambda manifest, members: members.clear(),
    "a flipped bit": _bit,
    "another format": _format,
    "broken seats": replaced(SEATS, b"[seats.ana]\nkey = 1\n"),
    "broken configuration": replaced("config/appliance.toml", b"lisden = 1\n"),
    "broken ledger": replaced(LEDGER, b"SQLite format 3\0" + b"\xff" * 5000),
    "a bad manifest": lambda manifest, members: manifest.pop("members"),
}


@pytest.mark.parametrize("what", FORGED)
def test_an_archive_that_is_not_right_is_refused_before_anything_is_touched(
    archive: Path, tmp_path: Path, what: str
) -> None:
    home = tmp_path / "new"
    home.mkdir()
    box = made(home)
    before = tree(tmp_path)
    bad = forged(archive, tmp_path / "bad", FORGED[what])
    with pytest.raises(MoeError) as caught:
        run(box, "restore", str(bad))
    assert caught.value.remedy
    bad.unlink()
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "kind",
    [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE],
)
def test_a_header_that_would_fill_the_memory_is_not_read(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo(MANIFEST)
    info.type, info.size = kind, 2**40
    with gzip.open(tmp_path / "bomb", "wb") as bomb:
        bomb.write(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(MoeError, match="headers that no backup has"):
        run(made(tmp_path), "restore", str(tmp_path / "bomb"))


def test_an_archive_that_unpacks_to_more_than_there_is_room_for_is_refused_unread(
    archive: Path, tmp_path: Path
) -> None:
    def huge(manifest: dict[str, Any], members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
        next(member for member in manifest["members"] if member["name"] == LEDGER)["bytes"] = 2**55

    with pytest.raises(MoeError, match=r"holds 360287970189\d+ bytes, more than") as caught:
        run(Box(tmp_path / "appliance.toml", {}), "restore", str(forged(archive, tmp_path / "bomb", huge)))
    assert "TMPDIR=" in (caught.value.remedy or "")


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


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b" + b"x" * 50])
def test_what_is_no_archive_is_said(tmp_path: Path, data: bytes) -> None:
    box = made(tmp_path)
    (tmp_path / "b").write_bytes(data)
    with pytest.raises(MoeError):
        run(box, "restore", str(tmp_path / "b"))
    with pytest.raises(MoeError):
        run(box, "restore", str(tmp_path / "absent"))


def test_a_cut_archive_is_refused(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    for share in (0.3, 0.6, 0.95):
        (tmp_path / "cut").write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(MoeError):
            run(Box(tmp_path / "fresh.toml", {}), "restore", str(tmp_path / "cut"))
    assert not (tmp_path / "fresh.toml").exists()


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
