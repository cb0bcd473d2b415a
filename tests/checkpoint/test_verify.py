"""Verifying a folder: each file that is not as it should be is named."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from io import BufferedReader
from pathlib import Path

import pytest

from appliance.checkpoint import provenance
from appliance.checkpoint.progress import Progress
from appliance.checkpoint.verify import Trouble, Verified, verify
from appliance.errors import CheckpointError
from appliance.files import open_regular
from tests.checkpoint.fetching import FIRST, SECOND, checkpoint, sha, sums

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = checkpoint(size=20_000)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "SHA256SUMS").write_bytes(sums(files))
    return tmp_path


async def verified(folder: Path, *, write: bool = False) -> Verified:
    """`verify` without environment and progress."""
    return await verify(folder, environ={}, on_progress=lambda _now: None, write=write)


def told(result: Verified) -> list[tuple[str, Trouble]]:
    """What is wrong with which file."""
    return [(one.file, one.trouble) for one in result.found]


async def test_a_whole_folder_is_good(folder: Path) -> None:
    result = await verified(folder)

    assert (result.good, result.found, result.files, result.headers) == (True, (), 6, True)


@pytest.mark.parametrize("at", [0, 9, 10_000, -1])
async def test_a_byte_that_flipped_anywhere_names_its_file(folder: Path, at: int) -> None:
    data = bytearray((folder / SECOND).read_bytes())
    right = sha(bytes(data))
    data[at] ^= 1
    (folder / SECOND).write_bytes(data)

    result = await verified(folder)

    assert told(result) == [(SECOND, Trouble.DIFFERS)]
    assert result.found[0].detail == f"its SHA-256 is {sha(bytes(data))}, SHA256SUMS says {right}"
    assert not result.good


async def test_all_that_is_wrong_is_told_at_once(folder: Path) -> None:
    (folder / FIRST).unlink()
    (folder / "config.json").write_bytes(b"{}")
    (folder / "model-9.safetensors").write_bytes(b"x")
    (folder / "notes.txt").write_bytes(b"x")
    (folder / f"{SECOND}.bad").write_bytes(b"x")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x.safetensors").write_bytes(b"x")

    result = await verified(folder)

    assert told(result) == [
        ("config.json", Trouble.DIFFERS),
        (FIRST, Trouble.MISSING),
        (f"{SECOND}.bad", Trouble.LEFT_OVER),
        ("model-9.safetensors", Trouble.EXTRA_WEIGHTS),
        ("notes.txt", Trouble.EXTRA),
    ]
    assert not result.good


async def test_extra_files_that_no_engine_loads_are_told_and_good(folder: Path) -> None:
    (folder / "README.md").write_bytes(b"x")

    result = await verified(folder)

    assert told(result) == [("README.md", Trouble.EXTRA)]
    assert result.good


async def test_a_file_that_cannot_be_read_is_named_and_the_others_are_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> BufferedReader:
        if path.name == SECOND:
            raise OSError(5, "Input/output error")
        return open_regular(path)

    monkeypatch.setattr("appliance.checkpoint.folder.open_regular", failing)
    result = await verified(folder)

    assert told(result) == [(SECOND, Trouble.UNREADABLE)]
    assert "Input/output" in result.found[0].detail


async def test_right_sums_of_files_that_do_not_belong_together_are_bad(folder: Path) -> None:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["t9"] = FIRST
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "SHA256SUMS").unlink()
    files = {name: (folder / name).read_bytes() for name in checkpoint()}
    (folder / "SHA256SUMS").write_bytes(sums(files))

    result = await verified(folder)

    assert told(result) == [("", Trouble.HEADERS)]
    assert "t9" in result.found[0].detail


async def test_a_fetch_that_was_not_finished_is_bad(folder: Path) -> None:
    kept = {name: provenance.Kept(1, digest) for name, digest in _sums(folder).items()}
    provenance.Provenance("http://127.0.0.1/", None, "now", complete=False, files=kept).save(folder)

    assert ("", Trouble.UNFINISHED) in told(await verified(folder))


def _sums(folder: Path) -> dict[str, str]:
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


async def test_a_cut_file_is_told_with_its_lengths(folder: Path) -> None:
    size = (folder / SECOND).stat().st_size
    kept = {name: provenance.Kept((folder / name).stat().st_size, digest) for name, digest in _sums(folder).items()}
    provenance.Provenance("http://127.0.0.1/", None, "now", complete=True, files=kept).save(folder)
    (folder / SECOND).write_bytes((folder / SECOND).read_bytes()[:-1])

    result = await verified(folder)

    assert result.found[0].detail.endswith(f", {size - 1:,} bytes of {size:,}")


async def test_without_sums_it_says_how_to_get_them(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()

    with pytest.raises(CheckpointError, match="has no SHA256SUMS") as refused:
        await verified(folder)

    assert f"checkpoint fetch REPO@REV|URL --to {folder}" in refused.value.remedy
    assert f"checkpoint verify {folder} --write" in refused.value.remedy


async def test_sums_are_written_from_what_is_there_when_it_is_sound(folder: Path) -> None:
    before = (folder / "SHA256SUMS").read_text()
    (folder / "SHA256SUMS").unlink()

    result = await verified(folder, write=True)

    assert (result.wrote, result.good, result.files) == (True, True, 6)
    assert sorted((folder / "SHA256SUMS").read_text().splitlines()) == sorted(before.splitlines())
    assert (await verified(folder)).good


async def test_sums_that_are_there_are_not_written_anew(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="would call good whatever is there now"):
        await verified(folder, write=True)


async def test_sums_of_unsound_files_are_not_written(folder: Path) -> None:
    (folder / "SHA256SUMS").unlink()
    (folder / SECOND).write_bytes(b"<html>")

    result = await verified(folder, write=True)

    assert told(result) == [("", Trouble.HEADERS)]
    assert SECOND in result.found[0].detail
    assert not (folder / "SHA256SUMS").exists()


@pytest.mark.parametrize("line", [f"{'a' * 64}  ../x", f"{'a' * 64}  /etc/passwd", "nonsense"])
async def test_sums_that_lead_out_of_the_folder_or_are_none_are_refused(folder: Path, line: str) -> None:
    (folder / "SHA256SUMS").write_text(line + "\n")

    with pytest.raises(CheckpointError, match="SHA256SUMS"):
        await verified(folder)


async def test_no_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        await verified(tmp_path / "none")


async def test_progress_ends_at_all_bytes_and_files(folder: Path) -> None:
    seen: list[Progress] = []

    result = await verify(folder, environ={}, on_progress=seen.append)

    assert [now.done_bytes for now in seen] == sorted(now.done_bytes for now in seen)
    assert (seen[-1].done_bytes, seen[-1].files_done) == (result.total_bytes, result.files)


def test_sums_of_sha256sum_itself_are_taken(folder: Path) -> None:
    names = [path.name for path in folder.iterdir() if path.name != "SHA256SUMS"]
    made = subprocess.run(["sha256sum", *names], cwd=folder, capture_output=True, text=True, check=True).stdout

    assert sorted(made.splitlines()) == sorted((folder / "SHA256SUMS").read_text().splitlines())


@pytest.mark.parametrize("name", ["SHA256SUMS", ".moe-appliance-origin.json"])
async def test_a_pipe_in_place_of_a_record_is_named_and_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)

    with pytest.raises(CheckpointError, match=f"{name}: not a regular file"):
        await asyncio.wait_for(verified(folder), 20)


async def test_a_remedy_can_be_typed_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / "a b;touch gone"
    folder.mkdir()

    with pytest.raises(CheckpointError) as refused:
        await verified(folder)

    assert f"--to '{folder}'" in refused.value.remedy
