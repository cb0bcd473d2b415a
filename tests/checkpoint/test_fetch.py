"""Fetching a checkpoint: every file whole and checked, what is there already kept."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from appliance.checkpoint import provenance
from appliance.checkpoint.progress import Progress
from appliance.checkpoint.space import RESERVE_BYTES
from appliance.errors import CheckpointError
from tests.checkpoint.fetching import (
    FIRST,
    checkpoint,
    everything,
    fetched,
    names,
    sha,
    shard,
    sums,
)
from tests.checkpoint.range_server import FileServer, Page

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("synced")]

GGUF = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
"""A whole GGUF file without tensors."""


def damage(path: Path) -> None:
    """Change one bit and nothing of its length, at another time than the file was written."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    written_ns = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(written_ns + 1, written_ns + 1))


def check_sums(folder: Path) -> None:
    """What an operator types."""
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)


async def test_a_folder_with_an_index_is_fetched_whole_with_its_sums(tmp_path: Path) -> None:
    files = checkpoint()
    told = {name: files[name] for name in files if name.endswith(".safetensors")}
    with FileServer(files | {"SHA256SUMS": sums(told)}) as server:
        done = await fetched(server.url, tmp_path / "new" / "dir")

    folder = tmp_path / "new" / "dir"
    assert names(folder) == {*files, "SHA256SUMS"}
    assert {name: (folder / name).read_bytes() for name in files} == files
    check_sums(folder)
    assert {file.name for file in done.files if file.told_by == "SHA256SUMS"} == set(told)
    assert {file.name for file in done.files if file.told_by is None} == set(files) - set(told)
    assert done.received_bytes == done.total_bytes == sum(map(len, files.values()))
    said = json.loads((folder / ".moe-appliance-origin.json").read_text())
    assert (said["origin"].rstrip("/"), said["complete"]) == (server.url, True)


async def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = shard("a", 5000)
    replaced = Path.replace
    before: dict[str, list[int]] = {}

    def noting(self: Path, target: Path) -> Path:
        before[Path(target).name] = list(synced)
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", noting)
    with FileServer({"x.safetensors": data}) as server:
        await fetched(f"{server.url}/x.safetensors", tmp_path)

    assert len(data) in before["x.safetensors"]


async def test_a_second_fetch_of_the_same_asks_for_no_body(tmp_path: Path) -> None:
    with FileServer(checkpoint()) as server:
        await fetched(server.url, tmp_path)
        before = len(server.seen)
        done = await fetched(server.url, tmp_path)

        assert {file.how for file in done.files} == {"kept"}
        assert done.received_bytes == 0
        asked = [seen for seen in server.seen[before:] if seen.status != 404 and "index" not in seen.path]
        assert all(seen.sent_bytes <= 1 for seen in asked)


async def test_a_finished_file_that_nobody_touched_is_not_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = checkpoint()
    with FileServer(files | {"SHA256SUMS": sums(files)}) as server:
        first = await fetched(server.url, tmp_path)
        monkeypatch.setattr("appliance.checkpoint.fetch.sha256_of", None)
        second = await fetched(server.url, tmp_path)

    assert all(file.hashed for file in first.files)
    assert not any(file.hashed for file in second.files)


@pytest.mark.parametrize("told", [True, False])
async def test_a_finished_file_that_was_damaged_here_is_fetched_anew(tmp_path: Path, told: bool) -> None:
    files = checkpoint()
    with FileServer(files | ({"SHA256SUMS": sums(files)} if told else {})) as server:
        await fetched(server.url, tmp_path)
        damage(tmp_path / FIRST)
        needed = len(files[FIRST]) + RESERVE_BYTES
        with pytest.raises(CheckpointError, match="free on"):
            await fetched(server.url, tmp_path, free=lambda _folder: needed - 1)
        steps: list[Progress] = []
        done = await fetched(server.url, tmp_path, on_progress=steps.append, free=lambda _folder: needed)

    assert (tmp_path / FIRST).read_bytes() == files[FIRST]
    assert {file.name: file.how for file in done.files if file.hashed} == {FIRST: "fetched"}
    assert done.received_bytes == len(files[FIRST])
    assert (steps[-1].done_bytes, steps[-1].files_done) == (done.total_bytes, len(files))


@pytest.mark.parametrize("change", ["time", "inode", "record of before"])
async def test_a_finished_file_that_was_touched_is_hashed_once_and_kept(tmp_path: Path, change: str) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        await fetched(server.url, tmp_path)
        if change == "time":
            os.utime(tmp_path / FIRST, ns=(1, 1))
        elif change == "inode":
            before = (tmp_path / FIRST).stat()
            (tmp_path / "copy").write_bytes(files[FIRST])
            os.utime(tmp_path / "copy", ns=(before.st_atime_ns, before.st_mtime_ns))
            (tmp_path / "copy").replace(tmp_path / FIRST)
        else:
            record = tmp_path / ".moe-appliance-origin.json"
            said = json.loads(record.read_text())
            del said["files"][FIRST]["mtime_ns"], said["files"][FIRST]["inode"]
            record.write_text(json.dumps(said))
        second = await fetched(server.url, tmp_path)
        third = await fetched(server.url, tmp_path)

    assert {file.name: file.how for file in second.files if file.hashed} == {FIRST: "kept"}
    assert second.received_bytes == 0
    assert not any(file.hashed for file in third.files)


async def test_one_file_of_weights_is_fetched_by_its_address(tmp_path: Path) -> None:
    with FileServer({"x.safetensors": shard("a", 1000), "y.gguf": GGUF}) as server:
        await fetched(f"{server.url}/x.safetensors", tmp_path / "x")
        await fetched(f"{server.url}/y.gguf", tmp_path / "y")

    assert names(tmp_path / "x") == {"x.safetensors", "SHA256SUMS"}
    assert names(tmp_path / "y") == {"y.gguf", "SHA256SUMS"}


async def test_a_split_gguf_model_is_fetched_by_any_of_its_pieces_and_not_without_one(tmp_path: Path) -> None:
    with FileServer({"m-00001-of-00002.gguf": GGUF}) as server:
        with pytest.raises(CheckpointError, match=r"has no m-00002-of-00002\.gguf"):
            await fetched(f"{server.url}/m-00001-of-00002.gguf", tmp_path)

        assert server.sent("m-00001-of-00002.gguf") == 1


async def test_the_address_of_the_index_is_that_of_its_folder(tmp_path: Path) -> None:
    with FileServer(checkpoint()) as server:
        await fetched(f"{server.url}/model.safetensors.index.json", tmp_path)
        done = await fetched(server.url, tmp_path)

    assert {file.how for file in done.files} == {"kept"}


async def test_a_folder_with_one_file_of_weights_needs_no_index(tmp_path: Path) -> None:
    files = {"model.safetensors": shard("t", 100), "config.json": b"{}"}
    with FileServer(files) as server:
        await fetched(f"{server.url}/", tmp_path)

    assert names(tmp_path) == {*files, "SHA256SUMS"}


@pytest.mark.parametrize("etag", [False, True])
async def test_a_wrong_byte_from_the_source_is_named_and_kept_aside(tmp_path: Path, etag: bool) -> None:
    files = checkpoint()
    told = {"SHA256SUMS": sums(files)}
    right = sha(files[FIRST])
    files[FIRST] = files[FIRST][:-9] + b"\0" + files[FIRST][-8:]
    server = FileServer(files, validator=lambda data: f'"{right}"' if data == files[FIRST] else None) if etag else None
    with server or FileServer(files | told) as running, pytest.raises(CheckpointError) as wrong:
        await fetched(running.url, tmp_path)

    assert (
        f"{FIRST}: its SHA-256 is {sha(files[FIRST])}, {'ETag' if etag else 'SHA256SUMS'} says {right}"
        in wrong.value.message
    )
    assert names(tmp_path) == {*files, "SHA256SUMS", f"{FIRST}.bad"} - {FIRST}
    assert FIRST not in (tmp_path / "SHA256SUMS").read_text()
    assert provenance.load(tmp_path).complete is False  # type: ignore[union-attr]


async def test_a_new_revision_replaces_only_what_changed(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        await fetched(server.url, tmp_path)
        server.files[FIRST] = files[FIRST][:-1] + b"\xff"
        done = await fetched(server.url, tmp_path)

        assert {file.name for file in done.files if file.how == "fetched"} == {FIRST}
        assert (tmp_path / FIRST).read_bytes() == server.files[FIRST]


async def test_files_that_are_there_are_adopted_by_the_sum_that_the_source_tells(tmp_path: Path) -> None:
    files = checkpoint()
    (tmp_path / FIRST).write_bytes(files[FIRST])
    with FileServer(files | {"SHA256SUMS": sums(files)}) as server:
        done = await fetched(server.url, tmp_path)

        assert {file.name for file in done.files if file.how == "kept"} == {FIRST}
        assert server.sent(FIRST) == 1


async def test_a_shard_that_the_index_names_and_the_server_lacks_is_named(tmp_path: Path) -> None:
    files = checkpoint()
    del files[FIRST]
    with FileServer(files) as server, pytest.raises(CheckpointError, match=f"has no {FIRST}"):
        await fetched(server.url, tmp_path)


async def test_a_page_in_place_of_the_index_is_told(tmp_path: Path) -> None:
    served = FileServer({"model.safetensors.index.json": b"<html>please log in</html>"})
    with served as server, pytest.raises(CheckpointError, match="an HTML or XML page in place of the index"):
        await fetched(server.url, tmp_path)


async def test_weights_that_are_no_checkpoint_are_told_at_the_end(tmp_path: Path) -> None:
    files = checkpoint()
    files[FIRST] = b"<html>" + b" " * 10_000
    with FileServer(files) as server, pytest.raises(CheckpointError, match=FIRST):
        await fetched(server.url, tmp_path)


async def test_a_redirect_is_followed_and_the_token_stays_with_its_server(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer({"s": files[FIRST]}) as store, FileServer(files) as server:
        server.redirect = {f"/{FIRST}": f"{store.url}/s?signature=abc"}.get
        await fetched(server.url, tmp_path, environ={"MOE_CHECKPOINT_TOKEN": "secret-token"})

        assert (tmp_path / FIRST).read_bytes() == files[FIRST]
        assert all(asked.authorization is None for asked in store.seen)
        assert all(asked.authorization == "Bearer secret-token" for asked in server.seen)
    assert b"secret-token" not in everything(tmp_path)
    assert b"signature" not in everything(tmp_path)


async def test_a_query_of_the_address_reaches_the_server_and_no_file(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        await fetched(f"{server.url}/{FIRST}?sig=hush", tmp_path)

    assert b"hush" not in everything(tmp_path)


async def test_a_folder_of_this_machine_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is on this machine already"):
        await fetched(str(tmp_path), tmp_path / "to")


@pytest.mark.parametrize(
    "absent",
    [Page(b"<Error>AccessDenied</Error>", "application/xml", 403), Page(b"<html>the app</html>", "text/html", 200)],
)
async def test_a_server_that_says_otherwise_than_404_of_what_it_lacks_is_fetched_from(
    tmp_path: Path, absent: Page
) -> None:
    files = checkpoint()
    with FileServer(files, absent=absent) as server:
        await fetched(server.url, tmp_path)

    assert names(tmp_path) == {*files, "SHA256SUMS"}


@pytest.mark.parametrize("absent", [Page(b"", "text/plain", 403), Page(b"<html>the app</html>", "text/html", 200)])
async def test_a_shard_that_such_a_server_lacks_is_named(tmp_path: Path, absent: Page) -> None:
    files = checkpoint()
    del files[FIRST]
    with FileServer(files, absent=absent) as server, pytest.raises(CheckpointError, match=FIRST):
        await fetched(server.url, tmp_path)
