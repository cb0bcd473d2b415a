"""The overlay on disk: it outlives the process; a damaged file opens nothing, a full disk loses nothing unsaid."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import overlayfile
from gateway.overlay import Changed, Mode, Overlay
from gateway.overlayfile import FILE_MAX_BYTES, NOBODY, OverlayFile
from gateway.state import Severity

ANA = Changed(by="ana", at_s=1_800_000_000.0)
NAMES = st.sampled_from(["a", "b", "c"])


def kept(file: OverlayFile, value: Overlay) -> str:
    file.value = value
    return file.keep()


def drained(folder: Path) -> OverlayFile:
    file = OverlayFile.load(folder)
    assert kept(file, Overlay(mode=Mode.DRAINED, changed=ANA, seats={"ben": ANA})) == ""
    return file


def test_a_box_that_was_never_touched_serves(tmp_path: Path) -> None:
    file = OverlayFile.load(tmp_path / "not-made-yet")
    assert (file.value, file.unread, file.findings()) == (Overlay(), "", ())


def test_what_was_set_is_there_after_a_restart_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    value = drained(tmp_path).value
    again = OverlayFile.load(tmp_path)
    assert again.value == value
    assert again.findings() == ()
    assert (tmp_path / "overlay.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"mode": "asleep"}', b"\xff\x00", b" " * (FILE_MAX_BYTES + 1)])
def test_a_damaged_file_is_kept_aside_and_its_copy_counts(tmp_path: Path, raw: bytes) -> None:
    value = drained(tmp_path).value
    (tmp_path / "overlay.json").write_bytes(raw)
    for _ in range(2):  # the second start finds a good file, and still says what happened
        again = OverlayFile.load(tmp_path)
        assert again.value == value
        [found] = again.findings()
        assert found.severity is Severity.WARN
    assert again.aside.read_bytes() == raw
    assert found.remedy.endswith(f"rm {again.aside}")
    again.aside.unlink()
    assert again.findings() == ()


def test_a_file_that_somebody_removed_is_made_again_from_its_copy(tmp_path: Path) -> None:
    value = drained(tmp_path).value
    (tmp_path / "overlay.json").unlink()
    again = OverlayFile.load(tmp_path)
    assert again.value == value, "a drained box does not open by itself"
    [found] = again.findings()
    assert found.severity is Severity.WARN
    assert "it is gone" in found.observed
    later = OverlayFile.load(tmp_path)
    assert (later.value, later.findings()) == (value, ())
    for path in (later.path, later.copy):
        path.unlink()
    assert OverlayFile.load(tmp_path).value == Overlay(), "both: that is meant"


def test_without_a_copy_nobody_is_let_in_until_somebody_has_looked(tmp_path: Path) -> None:
    drained(tmp_path)
    (tmp_path / "overlay.json").write_bytes(b"{")
    (tmp_path / "overlay.copy.json").write_bytes(b"{")
    for _ in range(2):
        again = OverlayFile.load(tmp_path)
        assert again.value.mode is Mode.DRAINED
        assert again.value.changed is not None
        assert again.value.changed.by == NOBODY
        [found] = again.findings()
        assert found.severity is Severity.FAIL
        assert found.remedy.endswith("moe-appliance resume")
    assert kept(again, again.value.in_mode(Mode.SERVING, "ana", 0.0)) == ""
    [found] = again.findings()
    assert found.severity is Severity.WARN
    assert OverlayFile.load(tmp_path).value.mode is Mode.SERVING


def test_a_file_that_cannot_be_read_drains_and_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "overlay.json").mkdir()
    file = OverlayFile.load(tmp_path)
    assert file.value.mode is Mode.DRAINED
    assert "Is a directory" in file.unread
    assert file.findings()


def test_a_file_of_a_newer_version_is_understood(tmp_path: Path) -> None:
    text = {"mode": "paused", "changed": {"by": "ana", "at_s": 1.0, "why": "?"}, "seats": {}, "until_s": 5}
    (tmp_path / "overlay.json").write_text(json.dumps(text))
    assert OverlayFile.load(tmp_path).value.mode is Mode.PAUSED


def test_a_change_that_is_kept_is_on_the_disk_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(overlayfile.os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    drained(tmp_path)
    assert synced[:2] == [str(tmp_path / "overlay.json"), str(tmp_path)]


def test_what_a_full_disk_does_not_take_counts_and_is_told_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = drained(tmp_path)
    former = file.value

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as disk:
        disk.setattr(overlayfile, "replace_file", full)
        assert "No space left" in kept(file, Overlay())
        [found] = file.findings()
        assert (found.id, found.severity, found.remedy) == ("overlay.unkept", Severity.WARN, f"df -h {tmp_path}")
        assert file.value == Overlay()
        assert OverlayFile.load(tmp_path).value == former, "what was kept before stays whole"
    assert file.keep() == ""
    assert file.findings() == ()
    assert OverlayFile.load(tmp_path).value == Overlay()


def test_a_copy_that_cannot_be_written_is_removed_rather_than_left_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = drained(tmp_path)
    write = overlayfile._write

    def main_only(path: Path, value: Overlay) -> None:
        if path != file.path:
            raise OSError(28, os.strerror(28))
        write(path, value)

    monkeypatch.setattr(overlayfile, "_write", main_only)
    assert kept(file, Overlay(mode=Mode.PAUSED, changed=ANA)) == ""
    assert not file.copy.exists()
    assert OverlayFile.load(tmp_path).value.mode is Mode.PAUSED


@given(st.lists(st.tuples(st.sampled_from([*Mode, "off", "on"]), NAMES), max_size=12))
def test_the_last_word_counts_and_the_first_author_stays(steps: list[tuple[str, str]]) -> None:
    overlay, mode, author, off = Overlay(), Mode.SERVING, "", dict[str, str]()
    for step, name in steps:
        if step == "off":
            overlay = overlay.with_seat(name, Changed(by=f"by-{len(off)}", at_s=1.0))
            off.setdefault(name, f"by-{len(off)}")
        elif step == "on":
            overlay = overlay.with_seat(name, None)
            off.pop(name, None)
        else:
            author = author if step == mode else name
            mode = Mode(step)
            overlay = overlay.in_mode(mode, name, 1.0)
        assert overlay.off == off
        assert overlay.mode is mode
        assert (overlay.changed.by if overlay.changed else None) == (None if mode is Mode.SERVING else author)
        assert Overlay.model_validate_json(overlay.model_dump_json()) == overlay
