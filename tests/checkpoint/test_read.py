"""Checkpoints read from folders, servers and hubs: what is fetched for them, and what is told when they are broken."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.checkpoint.cache import HeaderCache
from appliance.checkpoint.read import read, read_counted
from appliance.checkpoint.remote import Fetched
from appliance.checkpoint.sources import Folder, source_of
from appliance.checkpoint.tensors import Checkpoint, Format
from appliance.checkpoint.transport import TransportError
from appliance.errors import CheckpointError
from tests.checkpoint.hub_server import COMMIT, HubServer
from tests.checkpoint.packs.writer import INDEX, Spec, shard_name, write
from tests.checkpoint.range_server import Page, RangeServer, Trouble

SHARDS = {
    shard_name(number, 3): [
        Spec(f"layers.{number}.experts.{expert}.w{part}.weight", "F8_E4M3", (64, 32))
        for expert in range(40)
        for part in (1, 2, 3)
    ]
    for number in (1, 2, 3)
}
FIRST, SECOND, THIRD = SHARDS
NO_CACHE = HeaderCache(None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", SHARDS, {"model_type": "x"})


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(folder) as running:
        yield running


@pytest.fixture
def hub(folder: Path, server: RangeServer) -> Iterator[HubServer]:
    with HubServer(folder, server) as running:
        yield running


def fetched_from(url: str, cache: HeaderCache = NO_CACHE, **environ: str) -> tuple[Checkpoint, Fetched]:
    return read_counted(source_of(url), environ=environ, cache=cache)


def refused(text: str, **environ: str) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(source_of(text), environ=environ, cache=NO_CACHE)
    assert caught.value.remedy
    return caught.value.message


def same(one: Checkpoint, two: Checkpoint) -> bool:
    return (one.shards, one.tensors, one.config, one.index_sha256) == (
        two.shards, two.tensors, two.config, two.index_sha256,
    )  # fmt: skip


def test_a_folder_is_read_whole(folder: Path) -> None:
    steps: list[tuple[int, int]] = []

    found = read(Folder(folder), environ={}, progress=lambda done, of: steps.append((done, of)))

    assert (found.format, found.origin, found.tensor_count) == (Format.SAFETENSORS, str(folder), 360)
    assert found.total_bytes == 360 * 64 * 32
    assert found.config == {"model_type": "x"}
    assert found.index_sha256 is not None
    assert found.notes == ()
    assert [shard.name for shard in found.shards] == list(SHARDS)
    assert all(shard.size_bytes == (folder / shard.name).stat().st_size for shard in found.shards)
    assert steps == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("ending", ["", "/", f"/{INDEX}"])
def test_a_server_gives_what_the_folder_gives(folder: Path, server: RangeServer, ending: str) -> None:
    found, fetched = fetched_from(server.url + ending)

    assert same(found, read(Folder(folder), environ={}))
    assert found.origin == server.url + ending
    assert fetched.requests == server.requests == 5
    assert fetched.bytes == server.sent_bytes
    assert fetched.header_bytes == sum(seen.sent_bytes for seen in server.of(".safetensors"))


def test_a_hub_gives_what_the_folder_gives(folder: Path, server: RangeServer, hub: HubServer) -> None:
    hub.token = "sesame"

    found, fetched = fetched_from("org/name@main", HF_ENDPOINT=hub.url, HF_TOKEN="sesame")

    assert same(found, read(Folder(folder), environ={}))
    assert (found.origin, found.revision) == ("org/name@main", COMMIT)
    assert fetched.requests == hub.requests + server.requests == 9
    assert {seen.authorization for seen in hub.seen} == {"Bearer sesame"}
    assert {seen.authorization for seen in server.seen} == {None}


def test_links_into_a_download_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(path)

    assert same(read(Folder(snapshot), environ={}), read(Folder(folder), environ={}))


def test_without_an_index_all_files_are_read(folder: Path) -> None:
    (folder / INDEX).unlink()

    found = read(Folder(folder), environ={})

    assert (found.tensor_count, found.index_sha256) == (360, None)


def test_one_file_is_a_checkpoint_too(tmp_path: Path) -> None:
    folder = write(tmp_path, {"model.safetensors": SHARDS[FIRST]}, index=False)

    found = read(Folder(folder), environ={})
    with RangeServer(folder) as server:
        for ending in ("/", "/model.safetensors"):
            assert same(fetched_from(server.url + ending)[0], found)
    assert found.tensor_count == 120
    assert found.config == {}


def test_one_shard_alone_is_noted(folder: Path, server: RangeServer) -> None:
    local = read(Folder(folder / FIRST), environ={})
    remote, _ = fetched_from(f"{server.url}/{FIRST}")

    assert same(local, remote)
    assert local.notes == (f"{FIRST} is one of 3 files: give the folder, or the index, to see all of them",)
    assert remote.notes == local.notes


def test_odd_but_usable_things_are_notes(folder: Path, hub: HubServer) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["metadata"]["total_size"] = 5
    (folder / INDEX).write_text(json.dumps(index))
    write(folder, {"variant.safetensors": SHARDS[FIRST]}, index=False)

    notes = read(Folder(folder), environ={}).notes

    assert notes == (
        "variant.safetensors: not in the index, not counted",
        f"{INDEX}: total_size says 5 bytes, the tensors take 737,280",
    )
    assert fetched_from("org/name", HF_ENDPOINT=hub.url)[0].notes == notes


def test_python_writes_infinities_into_configurations(folder: Path) -> None:
    (folder / "config.json").write_text('{"limit": [0.0, Infinity]}')

    assert read(Folder(folder), environ={}).config == {"limit": [0.0, float("inf")]}


@pytest.mark.parametrize("config", ["[1]", "<html>", "{", "[" * 100_000])
def test_a_configuration_that_is_none_is_told(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)

    assert "config.json: no JSON" in refused(str(folder))


def _rewrite_index(folder: Path, **changes: str | None) -> None:
    index = json.loads((folder / INDEX).read_text())
    for name, file in changes.items():
        if file is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = file
    (folder / INDEX).write_text(json.dumps(index))


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _pointer(folder: Path) -> None:
    (folder / FIRST).write_bytes(b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 5\n")


def _wrong_length(folder: Path) -> None:
    with (folder / FIRST).open("r+b") as file:
        file.write((200_000_000).to_bytes(8, "little"))


NAME = "layers.1.experts.0.w1.weight"
BROKEN = {
    "pointer": (_pointer, f"{FIRST}: a Git LFS pointer, not the file that it points to"),
    "page": (lambda f: (f / FIRST).write_bytes(b"<html>no</html>"), f"{FIRST}: an HTML or XML page in place of data"),
    "empty": (lambda f: (f / FIRST).write_bytes(b""), f"{FIRST}: the file is empty"),
    "header cut": (lambda f: _cut(f / FIRST, 1000), f"{FIRST}: truncated in its header: 1,000 bytes"),
    "data cut": (lambda f: _cut(f / FIRST, 150_000), f"{FIRST}: truncated: 150,000 of "),
    "longer": (lambda f: _cut(f / FIRST, 10**6), "bytes longer than its tensors"),
    "absurd length": (_wrong_length, "the header would be 200,000,000 bytes, the format allows 100,000,000"),
    "missing": (lambda f: (f / FIRST).unlink(), f"{FIRST}: missing: the index puts 120 tensors there"),
    "extra tensor": (lambda f: _rewrite_index(f, **{NAME: None}), f"{FIRST}: tensor {NAME}: is not in the index"),
    "lost tensor": (lambda f: _rewrite_index(f, gone=FIRST), f"{FIRST}: tensor gone: in the index, not in the file"),
    "moved tensor": (lambda f: _rewrite_index(f, **{NAME: SECOND}), f"tensor {NAME}: is in {SECOND} by the index"),
    "outside": (lambda f: _rewrite_index(f, gone="../x"), f"{INDEX}: the shard name '../x' leaves the folder"),
    "index page": (lambda f: (f / INDEX).write_text("<html>"), f"{INDEX}: an HTML or XML page"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_broken_is_named_wherever_it_is_read(
    folder: Path, server: RangeServer, hub: HubServer, case: str
) -> None:
    breaks, said = BROKEN[case]
    breaks(folder)

    assert said in refused(str(folder))
    assert said in refused(server.url)
    assert said in refused("org/name", HF_ENDPOINT=hub.url)


def test_everything_that_is_wrong_is_told_at_once(folder: Path) -> None:
    (folder / FIRST).unlink()
    (folder / SECOND).write_bytes(b"<html>")
    _rewrite_index(folder, **{f"gone.{number}": THIRD for number in range(30)})

    lines = refused(str(folder)).splitlines()

    assert lines[0] == f"{folder}: 32 faults"
    assert [line.split(":")[0].strip() for line in lines[1:4]] == [FIRST, SECOND, THIRD]
    assert lines[-1].strip() == "and 22 more"
    assert len(lines) == 12


def test_a_folder_without_a_checkpoint_is_told(tmp_path: Path) -> None:
    assert "no .safetensors and no .gguf file is there" in refused(str(tmp_path))
    (tmp_path / "a.safetensors.index.json").write_text("{}")
    (tmp_path / "b.safetensors.index.json").write_text("{}")
    assert "2 indexes (a.safetensors.index.json, b.safetensors.index.json)" in refused(str(tmp_path))


def test_a_server_without_a_checkpoint_is_told(tmp_path: Path) -> None:
    with RangeServer(tmp_path) as server:
        assert "model.safetensors: missing" in refused(server.url)
        assert "other.safetensors.index.json: missing" in refused(server.url + "/other.safetensors.index.json")


def test_a_store_that_refuses_what_is_absent_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path, {"model.safetensors": SHARDS[FIRST]}, index=False)
    with RangeServer(folder) as server:
        server.pages |= {f"/{name}": Page(b"AccessDenied", status=403) for name in (INDEX, "config.json")}
        assert fetched_from(server.url)[0].tensor_count == 120

        server.pages["/model.safetensors"] = Page(b"AccessDenied", status=403)
        assert "403: access refused" in refused(server.url)


def test_a_hub_that_lists_files_and_refuses_them_wants_a_token(hub: HubServer) -> None:
    hub.refused = True

    with pytest.raises(CheckpointError, match="403: access refused") as caught:
        fetched_from("org/name", HF_ENDPOINT=hub.url)
    assert "export HF_TOKEN=" in caught.value.remedy


def test_what_is_no_regular_file_is_not_waited_for(folder: Path) -> None:
    (folder / FIRST).unlink()
    os.mkfifo(folder / FIRST)

    assert f"{FIRST}: not a regular file" in refused(str(folder))


def test_a_hub_that_lists_another_size_is_told(hub: HubServer) -> None:
    hub.listed_sizes[FIRST] = 5

    assert f"{FIRST}: " in (said := refused("org/name", HF_ENDPOINT=hub.url))
    assert "5 in the hub's listing" in said


def test_a_page_behind_a_status_of_200_is_told(server: RangeServer) -> None:
    server.pages[f"/{SECOND}"] = Page(b"<html>" + b" " * 100_000)

    assert "the server sends an HTML page in place of the file" in refused(server.url)


def test_a_server_that_ignores_ranges_ends_the_reading(server: RangeServer) -> None:
    server.ignores = lambda _range: True

    with pytest.raises(TransportError, match="ignores ranges"):
        fetched_from(server.url)


def test_a_read_survives_faults_of_its_server(
    server: RangeServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.checkpoint.answers.FIRST_PAUSE_S", 0.001)
    server.troubles += [Trouble(1, INDEX, status=503), Trouble(1, SECOND, status=429, retry_after="0")]
    server.troubles += [Trouble(1, FIRST, cut_after_bytes=100), Trouble(1, THIRD, status=0)]

    found, fetched = fetched_from(server.url)

    assert same(found, read(Folder(folder), environ={}))
    assert fetched.requests == 9


def test_headers_that_were_seen_are_not_fetched_again(server: RangeServer, tmp_path: Path) -> None:
    cache = HeaderCache(tmp_path / "cache")
    first, fetched = fetched_from(server.url, cache)
    assert fetched.header_bytes > 0

    second, again = fetched_from(server.url, cache)

    assert same(first, second)
    assert again.header_bytes == 0
    assert [seen.status for seen in server.of(".safetensors")] == [206] * 3 + [304] * 3


def test_headers_that_together_are_too_long_are_refused_naming_the_shard(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = HeaderCache(tmp_path / "cache")
    found, _fetched = fetched_from(server.url, cache)
    total = sum(shard.header_bytes for shard in found.shards)
    monkeypatch.setattr("appliance.checkpoint.remote.ALL_HEADERS_BYTES", total)
    fetched_from(server.url)
    monkeypatch.setattr("appliance.checkpoint.remote.ALL_HEADERS_BYTES", total // 2)
    for kept in (NO_CACHE, cache):
        with pytest.raises(
            CheckpointError, match=r"model-0000\d-of-00003\.safetensors: the headers up to this one take"
        ):
            fetched_from(server.url, kept)


def test_after_too_long_headers_no_more_shards_are_asked_for(
    folder: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.checkpoint.remote.ALL_HEADERS_BYTES", 1)
    monkeypatch.setattr("appliance.checkpoint.remote.CONCURRENCY", 1)

    assert "3 faults" in refused(server.url)
    assert sum(seen.path.endswith(".safetensors") for seen in server.seen) == 1


def test_a_file_that_changed_on_the_server_is_fetched_again(server: RangeServer, folder: Path, tmp_path: Path) -> None:
    cache = HeaderCache(tmp_path / "cache")
    fetched_from(server.url, cache)
    write(folder, SHARDS | {FIRST: [*SHARDS[FIRST], Spec("new", "F32", (4,))]}, {"model_type": "x"})

    found, fetched = fetched_from(server.url, cache)

    assert found.tensor_count == 361
    assert fetched.header_bytes > 0


def test_a_hub_is_asked_for_no_header_that_was_seen(server: RangeServer, hub: HubServer, tmp_path: Path) -> None:
    cache = HeaderCache(tmp_path / "cache")
    first, _ = fetched_from("org/name", cache, HF_ENDPOINT=hub.url)
    asked = server.requests

    second, fetched = fetched_from("org/name@main", cache, HF_ENDPOINT=hub.url)

    assert same(first, second)
    assert server.requests == asked
    assert (fetched.header_bytes, fetched.requests) == (0, 3)


def test_a_damaged_cache_is_noticed(server: RangeServer, tmp_path: Path) -> None:
    cache = HeaderCache(tmp_path / "cache")
    first, fetched = fetched_from(server.url, cache)
    for path in (tmp_path / "cache").glob("*.header"):
        path.write_bytes(path.read_bytes().replace(b"w1", b"w9", 1))

    second, again = fetched_from(server.url, cache)

    assert same(first, second)
    assert again.header_bytes == fetched.header_bytes


def test_neither_tokens_nor_signatures_are_kept_or_told(server: RangeServer, tmp_path: Path) -> None:
    server.token = "sesame"
    cache = HeaderCache(tmp_path / "cache")

    found, _ = fetched_from(f"{server.url}/?signature=s3cret", cache, MOE_CHECKPOINT_TOKEN="sesame")

    kept = b"".join(path.read_bytes() + path.name.encode() for path in (tmp_path / "cache").iterdir())
    assert b"s3cret" not in kept
    assert b"sesame" not in kept
    assert "s3cret" not in repr(found)
    assert {seen.query for seen in server.seen} == {"signature=s3cret"}
