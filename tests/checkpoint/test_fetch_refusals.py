"""Fetching that must not be done: too small or full disks, strangers' files, names that lead out of the folder."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest

from appliance.checkpoint.partfile import PartFile
from appliance.checkpoint.space import RESERVE_BYTES, amount, file_system
from appliance.errors import CheckpointError
from tests.checkpoint.fetching import FIRST, checkpoint, fetched, interrupted, shard, sums
from tests.checkpoint.range_server import FileServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("synced")]


def mount_of(folder: Path) -> str:
    """Where the file system of a folder is mounted."""
    while not folder.is_mount():
        folder = folder.parent
    return str(folder)


@pytest.mark.parametrize("told", [True, False])
async def test_a_stranger_under_a_name_of_the_checkpoint_is_not_overwritten(tmp_path: Path, told: bool) -> None:
    files = checkpoint()
    (tmp_path / FIRST).write_bytes(b"mine")
    served = FileServer(files | ({"SHA256SUMS": sums(files)} if told else {}))
    with served as server, pytest.raises(CheckpointError, match=f"{FIRST} is there already") as refused:
        await fetched(server.url, tmp_path)

    assert "mv " in refused.value.remedy
    assert (tmp_path / FIRST).read_bytes() == b"mine"


async def test_a_folder_stays_with_its_origin(tmp_path: Path) -> None:
    with FileServer(checkpoint()) as one, FileServer(checkpoint()) as other:
        await fetched(one.url, tmp_path)
        with pytest.raises(CheckpointError, match=f"holds files from {one.url}"):
            await fetched(other.url, tmp_path)


async def test_two_fetches_into_one_folder_exclude_each_other(tmp_path: Path) -> None:
    with FileServer(checkpoint(), hold={FIRST: 1000}) as server:
        first = asyncio.create_task(fetched(server.url, tmp_path))
        await asyncio.to_thread(server.held.wait, 5)
        with pytest.raises(CheckpointError, match=rf"another fetch \(pid {os.getpid()}\)"):
            await fetched(server.url, tmp_path)
        server.release.set()
        await first


async def test_a_disk_that_is_too_small_is_told_before_the_first_byte(tmp_path: Path) -> None:
    files = checkpoint()
    needed = sum(map(len, files.values()))
    with FileServer(files) as server:
        with pytest.raises(CheckpointError) as refused:
            await fetched(server.url, tmp_path, free=lambda _folder: needed + RESERVE_BYTES - 1)
        await fetched(server.url, tmp_path, free=lambda _folder: needed + RESERVE_BYTES)

    assert f"({needed:,} bytes)" in refused.value.message
    assert f"({needed + RESERVE_BYTES - 1:,} bytes) free on {mount_of(tmp_path)} (" in refused.value.message
    assert "free 1 bytes more" in refused.value.remedy
    assert "df -h" in refused.value.remedy


async def test_what_is_there_already_needs_no_space(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files | {"SHA256SUMS": sums(files)}) as server:
        await interrupted(server, tmp_path)
        there = (tmp_path / f"{FIRST}.part").stat().st_size
        missing = len(files[FIRST]) - there
        with pytest.raises(CheckpointError, match=r"free on"):
            await fetched(server.url, tmp_path, free=lambda _folder: missing + RESERVE_BYTES - 1)
        await fetched(server.url, tmp_path, free=lambda _folder: missing + RESERVE_BYTES)


@pytest.mark.parametrize(
    ("code", "said"), [(errno.ENOSPC, "the disk became full"), (errno.EDQUOT, "the quota on"), (errno.EIO, "Input/out")]
)
async def test_a_write_that_fails_names_file_and_disk_and_keeps_what_came(tmp_path: Path, code: int, said: str) -> None:
    files = checkpoint(size=3 << 20)
    with FileServer(files) as server:
        with pytest.MonkeyPatch.context() as patch:
            write = PartFile.write

            def failing(self: PartFile, data: bytes) -> None:
                if self.bytes and self.path.name == FIRST:
                    raise OSError(code, os.strerror(code))
                write(self, data)

            patch.setattr(PartFile, "write", failing)
            with pytest.raises(CheckpointError) as full:
                await fetched(server.url, tmp_path)
        assert full.value.message.startswith(f"{FIRST}: ")
        assert said in full.value.message
        assert "run the same command again" in full.value.remedy
        assert (tmp_path / f"{FIRST}.part").stat().st_size > 0
        done = await fetched(server.url, tmp_path)

    assert {file.how for file in done.files if file.name == FIRST} == {"resumed"}


async def test_an_index_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    files = checkpoint()
    for name in ("../x.safetensors", "/tmp/x.safetensors"):
        index = json.dumps({"weight_map": {"t": name}}).encode()
        served = FileServer(files | {"model.safetensors.index.json": index})
        with served as server, pytest.raises(CheckpointError, match="leaves the folder"):
            await fetched(server.url, tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("link", [FIRST, "sub"])
async def test_a_symbolic_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path, link: str) -> None:
    files = checkpoint()
    index = json.dumps({"weight_map": {"t0": FIRST, "t1": "sub/x.safetensors"}}).encode()
    files |= {"model.safetensors.index.json": index, "sub/x.safetensors": shard("t1", 10)}
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    (folder / link).symlink_to(elsewhere / "f" if link == FIRST else elsewhere)
    with FileServer(files) as server, pytest.raises(CheckpointError, match="symbolic link that leads out"):
        await fetched(server.url, folder)

    assert list(elsewhere.iterdir()) == []


async def test_a_link_in_place_of_a_part_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / f"{FIRST}.part").symlink_to(victim)
    with FileServer(checkpoint()) as server, pytest.raises(CheckpointError):
        await fetched(server.url, folder)

    assert victim.read_bytes() == b"precious"


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/root rw\n"
        f"2 1 8:2 / {tmp_path}/my\\040disk rw shared:1 - xfs /dev/nvme0n1p1 rw\n"
        f"3 1 8:3 / {tmp_path}/my rw - nfs box:/x rw\n"
        "nonsense\n"
    )

    assert file_system(tmp_path / "my disk" / "model", mounts) == f"{tmp_path}/my disk (xfs, /dev/nvme0n1p1)"
    assert file_system(tmp_path, mounts) == "/ (ext4, /dev/root)"
    assert file_system(tmp_path, tmp_path / "none") == str(tmp_path)


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [(0, "0 bytes"), (2048, "2.0 KiB (2,048 bytes)"), (1 << 30, "1.0 GiB (1,073,741,824 bytes)")],
)
def test_amounts_are_told_for_people_and_to_the_byte(size_bytes: int, said: str) -> None:
    assert amount(size_bytes) == said


async def test_records_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / ".moe-appliance-origin.json").write_text('{"schema": "another"}')
    said = r"\.moe-appliance-origin\.json cannot be read"
    with FileServer(checkpoint()) as server, pytest.raises(CheckpointError, match=said) as refused:
        await fetched(server.url, tmp_path)

    assert refused.value.remedy.startswith("remove it: rm ")


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    said = "file/dir: it cannot be written: Not a directory"
    with FileServer(checkpoint()) as server, pytest.raises(CheckpointError, match=said):
        await fetched(server.url, tmp_path / "file" / "dir")


async def test_a_body_without_an_end_does_not_fill_the_disk_and_is_not_continued(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files, unsized=frozenset((FIRST,))) as server:
        with pytest.raises(CheckpointError, match=f"{FIRST} changed at its source .* more than its") as refused:
            await fetched(server.url, tmp_path)
        assert "same command again" in refused.value.remedy
        assert (tmp_path / f"{FIRST}.part").stat().st_size == 0
        server.unsized = frozenset()
        await fetched(server.url, tmp_path)

    assert (tmp_path / FIRST).read_bytes() == files[FIRST]


async def test_names_that_are_one_file_on_some_disks_are_refused(tmp_path: Path) -> None:
    files = {name: shard(f"t{at}", 100) for at, name in enumerate(("Model.safetensors", "model.safetensors"))}
    index = {"weight_map": {f"t{at}": name for at, name in enumerate(files)}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    with FileServer(files) as server, pytest.raises(CheckpointError, match="which are one on some disks"):
        await fetched(server.url, tmp_path)


@pytest.mark.parametrize("name", [f"{FIRST}.part.json", ".moe-appliance-origin.json"])
async def test_a_pipe_under_a_name_of_ours_does_not_keep_a_fetch_waiting(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with FileServer(checkpoint()) as server:
        fetching = asyncio.wait_for(fetched(server.url, tmp_path), 20)
        if name.startswith("."):
            with pytest.raises(CheckpointError, match="not a regular file"):
                await fetching
        else:
            await fetching
