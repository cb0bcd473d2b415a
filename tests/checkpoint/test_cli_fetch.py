"""`checkpoint fetch` and `verify` as processes: killed, resumed, on a full disk, from a hub, with a token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from appliance.errors import CheckpointError
from tests.checkpoint.fetching import (
    FIRST,
    SECOND,
    checkpoint,
    end_started,
    fetched,
    finish,
    sha,
    start,
    sums,
    wait_for,
)
from tests.checkpoint.hub_server import COMMIT, HubServer
from tests.checkpoint.range_server import FileServer, RangeServer

TOKEN = "hf_secret_of_the_test"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process outlives its test."""
    yield
    end_started()


def test_a_fetch_that_was_killed_is_resumed_and_asks_only_for_what_lacks(tmp_path: Path) -> None:
    files = checkpoint(size=4 << 20)
    with FileServer(files | {"SHA256SUMS": sums(files)}, hold={FIRST: 3 << 20}) as server:
        first = start("fetch", server.url, "--to", str(tmp_path))
        assert server.held.wait(10)
        wait_for(lambda: (tmp_path / f"{FIRST}.part").stat().st_size >= 2 << 20)
        first.send_signal(signal.SIGKILL)
        finish(first)
        assert not (tmp_path / FIRST).exists()
        server.hold.clear()
        server.release.set()
        there = (tmp_path / f"{FIRST}.part").stat().st_size

        code, out, _err = finish(start("fetch", server.url, "--to", str(tmp_path), "--json"))

    said = json.loads(out)
    assert code == 0
    assert {name: (tmp_path / name).read_bytes() for name in files} == files
    assert said["received_bytes"] <= said["total_bytes"] - there
    assert {file["name"] for file in said["files"] if file["how"] == "resumed"} >= {FIRST}
    assert (said["sums_told_by_source"], said["sums_only_ours"]) == (len(files), 0)


def test_a_flipped_byte_in_a_finished_file_is_named_with_what_to_type(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        asyncio.run(fetched(server.url, tmp_path))
    damaged = bytearray(files[SECOND])
    damaged[123_456] ^= 0x40
    (tmp_path / SECOND).write_bytes(damaged)

    code, out, _err = finish(start("verify", str(tmp_path)))

    assert code == 1
    assert f"{SECOND}: differs: its SHA-256 is {sha(bytes(damaged))}, SHA256SUMS says {sha(files[SECOND])}" in out
    assert FIRST not in out
    again = f"moe-appliance checkpoint fetch {server.url}/ --to {tmp_path}"
    assert f"remedy: rm {tmp_path / SECOND}; {again}" in out


def test_a_whole_folder_is_good_and_says_so_to_programs(tmp_path: Path) -> None:
    with FileServer(checkpoint()) as server:
        asyncio.run(fetched(server.url, tmp_path))

    code, out, _err = finish(start("verify", str(tmp_path), "--json"))

    said = json.loads(out)
    assert (code, said["good"], said["found"], said["files"]) == (0, True, [], 6)


def test_the_summary_tells_whose_sums_they_are(tmp_path: Path) -> None:
    files = checkpoint()
    told = {name: data for name, data in files.items() if name.endswith(".safetensors")}
    with FileServer(files | {"SHA256SUMS": sums(told)}) as server:
        code, out, err = finish(start("fetch", server.url, "--to", str(tmp_path)))

    assert (code, err) == (0, "")
    assert "SHA-256 as the source tells it (SHA256SUMS): 3 files." in out
    assert (
        "only ours, of what came, as nobody told one: model.safetensors.index.json, config.json, tokenizer.json." in out
    )


def test_the_summary_claims_no_check_that_was_not_made(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files | {"SHA256SUMS": sums(files)}) as server:
        asyncio.run(fetched(server.url, tmp_path))
        _code, out, _err = finish(start("fetch", server.url, "--to", str(tmp_path)))
        _code, said, _err = finish(start("fetch", server.url, "--to", str(tmp_path), "--json"))
        (tmp_path / SECOND).write_bytes(files[SECOND][:-1] + b"\0")
        _code, mended, _err = finish(start("fetch", server.url, "--to", str(tmp_path)))

    assert "Not hashed again: 6 files" in out
    assert "SHA-256" not in out
    assert ", whole, " not in out
    assert json.loads(said)["not_hashed_again"] == 6
    assert "SHA-256 as the source tells it (SHA256SUMS): 1 files." in mended
    assert "Not hashed again: 5 files" in mended
    assert (tmp_path / SECOND).read_bytes() == files[SECOND]


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of this size on a new folder; skips where nothing may be mounted."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_too_small_is_refused_before_anything_comes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as disk, FileServer(checkpoint()) as server:
        code, _out, err = finish(start("fetch", server.url, "--to", str(disk / "model")))

        assert code == 1
        assert f"free on {disk} (tmpfs, tmpfs)" in err
        assert "remedy: free 1016." in err
        assert not list((disk / "model").glob("*.part"))


def test_a_disk_that_becomes_full_is_named_and_the_fetch_goes_on_when_there_is_room(tmp_path: Path) -> None:
    files = checkpoint(size=4 << 20)
    with small_disk(tmp_path / "disk", "8m") as disk, FileServer(files) as server:
        with pytest.raises(CheckpointError) as full:
            asyncio.run(fetched(server.url, disk / "model", free=lambda _folder: 1 << 40))

        assert "the disk became full: " in full.value.message
        assert f"{disk} (tmpfs, tmpfs)" in full.value.message
        assert "run the same command again" in full.value.remedy
        kept = sum(path.stat().st_size for path in (disk / "model").glob("*.safetensors*"))
        assert kept > 7 << 20
        subprocess.run(["mount", "-o", "remount,size=32m", disk], check=True)
        done = asyncio.run(fetched(server.url, disk / "model", free=lambda _folder: 1 << 40))

        assert done.received_bytes < sum(map(len, files.values())) - (7 << 20) + (1 << 20)
        assert {name: (disk / "model" / name).read_bytes() for name in files} == files


def test_a_limit_of_file_sizes_is_named(tmp_path: Path) -> None:
    files = checkpoint(size=4 << 20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with FileServer(files) as server:
        process = start("fetch", server.url, "--to", str(tmp_path))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2 << 20, before[1]))
        code, _out, err = finish(process)

    assert code == 1
    assert "takes no file of that size" in err
    assert "ulimit -f" in err


class Hub(HubServer):
    """A hub whose listing tells true sums of small files."""

    def content_hash(self, path: Path) -> str:
        """SHA-256 of the content."""
        return sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def hub(folder: Path, files: dict[str, bytes]) -> Iterator[Hub]:
    """A hub that demands the token, and its store, on another port."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    with RangeServer(folder) as store, Hub(folder, store) as server:
        server.token = TOKEN
        yield server


def test_a_repository_of_a_hub_is_fetched_with_its_sums_and_without_its_token_in_any_file(tmp_path: Path) -> None:
    files = checkpoint()
    beside = {"original/model.safetensors": b"x", "README.md": b"x", "model.bin": b"x", "run.py": b"x"}
    to = tmp_path / "to"
    with hub(tmp_path / "hub", files | beside) as server:
        environ = {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN}
        process = start("fetch", "org/name@main", "--to", str(to), env=environ)
        argv = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        code, out, err = finish(process)

        assert (code, err) == (0, "")
        assert {path.name for path in to.iterdir()} >= set(files)
        assert {name: (to / name).read_bytes() for name in files} == files
        assert not any((to / name).exists() for name in beside)
        assert all(seen.authorization is None for seen in server.cdn.seen)
    said = json.loads((to / ".moe-appliance-origin.json").read_text())
    assert (said["origin"], said["revision"]) == ("org/name", COMMIT)
    assert {name for name, kept in said["files"].items() if kept["told_by"] == "hub"} == {
        name for name in files if name.endswith(".safetensors")
    }
    written = b"".join(path.read_bytes() for path in to.rglob("*") if path.is_file())
    for text in (argv.decode(), out, err, written.decode("latin-1")):
        assert TOKEN not in text
        assert "signature" not in text


def test_a_repository_of_a_hub_goes_on_after_a_kill(tmp_path: Path) -> None:
    files = checkpoint(size=4 << 20)
    to = tmp_path / "to"
    with hub(tmp_path / "hub", files) as server:
        environ = {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN}
        target = server.cdn.url
        with FileServer(files, hold={FIRST: 3 << 20}) as slow:
            server.cdn.redirect = lambda path: f"{slow.url}{path}"
            first = start("fetch", "org/name", "--to", str(to), env=environ)
            assert slow.held.wait(10)
            wait_for(lambda: (to / f"{FIRST}.part").stat().st_size >= 2 << 20)
            first.send_signal(signal.SIGKILL)
            finish(first)
        server.cdn.redirect = lambda _path: None
        there = (to / f"{FIRST}.part").stat().st_size
        code, out, err = finish(start("fetch", "org/name", "--to", str(to), "--json", env=environ))

        assert (code, err) == (0, "")
        assert target in server.cdn.url
        assert [seen.range for seen in server.cdn.of(FIRST)] == [None, f"bytes={there}-"]
    assert json.loads(out)["sums_told_by_source"] == 3
    assert (to / FIRST).read_bytes() == files[FIRST]


def test_a_wrong_byte_from_a_hub_is_named(tmp_path: Path) -> None:
    files = checkpoint()
    with hub(tmp_path / "hub", files) as server:
        right = server.content_hash(tmp_path / "hub" / FIRST)
        elsewhere = tmp_path / "damaged"
        elsewhere.mkdir()
        for name, data in files.items():
            (elsewhere / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        server.cdn.folder = elsewhere
        environ = {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN}
        code, _out, err = finish(start("fetch", "org/name", "--to", str(tmp_path / "to"), env=environ))

    assert code == 1
    assert f"hub says {right}; kept as {FIRST}.bad" in err
    assert not (tmp_path / "to" / FIRST).exists()


def test_an_interrupt_keeps_what_came_and_says_so(tmp_path: Path) -> None:
    files = checkpoint(size=2 << 20)
    with FileServer(files, hold={FIRST: 1_500_000}) as server:
        process = start("fetch", server.url, "--to", str(tmp_path))
        assert server.held.wait(10)
        wait_for(lambda: (tmp_path / f"{FIRST}.part").stat().st_size >= 1 << 20)
        process.send_signal(signal.SIGINT)
        code, _out, err = finish(process)

    assert code == 130
    assert "run the same command again" in err
    assert (tmp_path / f"{FIRST}.part").stat().st_size > 0


def test_names_from_a_source_reach_the_terminal_without_control_characters(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"t": "\x1b[31m[bold]x"}}).encode()
    with FileServer({"model.safetensors.index.json": index}) as server:
        code, out, err = finish(start("fetch", server.url, "--to", str(tmp_path)))

    assert code == 1
    assert "\x1b" not in out + err
    assert "[bold]x" in err


def test_sums_can_be_adopted(tmp_path: Path) -> None:
    files = checkpoint()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)

    code, out, _err = finish(start("verify", str(tmp_path), "--write"))

    assert code == 0
    assert "SHA256SUMS written: 6 files" in out
    assert sorted((tmp_path / "SHA256SUMS").read_bytes().splitlines()) == sorted(sums(files).splitlines())


def test_what_a_folder_says_of_its_origin_is_quoted_where_it_is_to_be_typed(tmp_path: Path) -> None:
    files = checkpoint(size=1000)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "SHA256SUMS").write_bytes(sums(files))
    said = {"origin": "org/name; touch gone", "revision": "$(id)", "fetched_at": "", "complete": False, "files": {}}
    (tmp_path / ".moe-appliance-origin.json").write_text(json.dumps({"schema": "moe-appliance.origin/1"} | said))

    code, out, _err = finish(start("verify", str(tmp_path)))

    assert code == 1
    assert "checkpoint fetch 'org/name; touch gone@$(id)' --to" in out


def test_ctrl_c_ends_a_fetch_at_once_when_the_hub_does_not_answer(tmp_path: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as hub:
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        process = start("fetch", "org/name", "--to", str(tmp_path / "to"), env={"HF_ENDPOINT": address})
        hub.settimeout(20)
        connection, _peer = hub.accept()
        with connection:
            assert connection.recv(1)
            process.send_signal(signal.SIGINT)
            code, _out, err = finish(process)

    assert code == 130
    assert err.startswith("Stopped.")
