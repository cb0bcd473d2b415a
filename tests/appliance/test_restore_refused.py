"""`moe-appliance restore` of an archive that is forged, damaged or none: refused before anything is touched."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from appliance.backup_members import LEDGER, MANIFEST, SEATS
from appliance.cli.box import Box
from appliance.errors import MoeError
from tests.appliance.backups import contents, made, run, tree

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
