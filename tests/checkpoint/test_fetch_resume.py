"""Fetching that was interrupted goes on where it was, and never with bytes of something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.errors import CheckpointError
from tests.checkpoint.fetching import FIRST, checkpoint, cuts, fetched, interrupted, names, sha, sums
from tests.checkpoint.range_server import ONE_BYTE, FileServer, Trouble

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("synced")]


async def test_a_connection_that_breaks_is_continued_where_it_broke(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files, troubles=cuts(FIRST, 100_000, 50_000)) as server:
        await fetched(server.url, tmp_path)

        assert (tmp_path / FIRST).read_bytes() == files[FIRST]
        assert server.sent(FIRST) == len(files[FIRST]) + 1
        assert [asked.range for asked in server.of(FIRST)][-1] == "bytes=150000-"


async def test_a_file_too_large_for_one_answer_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.checkpoint.download.LARGEST_BODY_BYTES", 250_000)
    monkeypatch.setattr("appliance.checkpoint.download.PIECE_BYTES", 100_000)
    files = checkpoint()
    with FileServer(files, troubles=cuts(FIRST, 50_000)) as server:
        await fetched(server.url, tmp_path)

        asked = [asked.range for asked in server.of(FIRST)][1:]
    assert (tmp_path / FIRST).read_bytes() == files[FIRST]
    pieces = [f"bytes={first}-{first + 99_999}" for first in range(0, len(files[FIRST]), 100_000)]
    assert asked == [pieces[0], *pieces]


async def test_a_part_is_continued_with_if_range_and_rehashed(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files | {"SHA256SUMS": sums(files)}) as server:
        await interrupted(server, tmp_path)
        there = (tmp_path / f"{FIRST}.part").stat().st_size
        done = await fetched(server.url, tmp_path)

        last = server.of(FIRST)[-1]
        assert there > 0
        assert {file.how for file in done.files if file.name == FIRST} == {"resumed"}
        assert last.range == f"bytes={there}-"
        assert last.if_range == server.validator(files[FIRST])
        assert last.sent_bytes == len(files[FIRST]) - there
    assert names(tmp_path) == {*files, "SHA256SUMS"}


async def test_another_file_at_the_source_is_not_glued_to_an_old_half(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        await interrupted(server, tmp_path)
        server.files[FIRST] = files[FIRST][:-1] + b"\xff"
        done = await fetched(server.url, tmp_path)

        assert (tmp_path / FIRST).read_bytes() == server.files[FIRST]
        assert {file.how for file in done.files if file.name == FIRST} == {"fetched"}


async def test_a_file_that_changes_while_it_is_fetched_ends_the_fetch(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files, troubles=cuts(FIRST, 100_000)) as server:
        original = server.validator
        asked = 0

        def changing(data: bytes) -> str | None:
            nonlocal asked
            asked += data == files[FIRST]
            return '"other"' if data == files[FIRST] and asked > 2 else original(data)

        server.validator = changing
        with pytest.raises(CheckpointError, match=f"{FIRST} changed at its source"):
            await fetched(server.url, tmp_path)

    assert not (tmp_path / FIRST).exists()


async def test_without_validator_and_sum_a_part_of_an_earlier_run_is_dropped(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files, validator=lambda _data: None) as server:
        await interrupted(server, tmp_path)
        done = await fetched(server.url, tmp_path)

    assert {file.how for file in done.files if file.name == FIRST} == {"fetched"}
    assert (tmp_path / FIRST).read_bytes() == files[FIRST]


async def test_a_part_of_an_earlier_boot_needs_a_sum_from_the_source(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        await interrupted(server, tmp_path)
        record = tmp_path / f"{FIRST}.part.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"boot_id": "another"}))
        done = await fetched(server.url, tmp_path)

    assert {file.how for file in done.files if file.name == FIRST} == {"fetched"}


async def test_a_byte_that_flipped_in_a_part_is_named_and_the_next_run_mends_it(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files | {"SHA256SUMS": sums(files)}) as server:
        await interrupted(server, tmp_path)
        flip(tmp_path / f"{FIRST}.part", 12_345)
        with pytest.raises(CheckpointError, match=rf"{FIRST}: its SHA-256 is .* kept as {FIRST}.bad; its beginning"):
            await fetched(server.url, tmp_path)
        assert not (tmp_path / FIRST).exists()
        await fetched(server.url, tmp_path)

    assert (tmp_path / FIRST).read_bytes() == files[FIRST]


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


async def test_a_kill_between_the_rename_and_the_record_loses_nothing(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        with pytest.MonkeyPatch.context() as patch:

            def killed(*_arguments: object) -> None:
                raise RuntimeError

            patch.setattr("appliance.checkpoint.fetch._Fetch._finish", killed)
            with pytest.raises(ExceptionGroup):
                await fetched(f"{server.url}/{FIRST}", tmp_path)
        assert FIRST in names(tmp_path)
        sent = server.sent(FIRST)
        done = await fetched(f"{server.url}/{FIRST}", tmp_path)

        assert {file.how for file in done.files} == {"kept"}
        assert server.sent(FIRST) - sent == 1
    assert sha(files[FIRST]) in (tmp_path / "SHA256SUMS").read_text()


async def test_a_file_damaged_between_its_rename_and_the_record_is_fetched_anew(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        with pytest.MonkeyPatch.context() as patch:

            def killed(*_arguments: object) -> None:
                raise RuntimeError

            patch.setattr("appliance.checkpoint.fetch._Fetch._finish", killed)
            with pytest.raises(ExceptionGroup):
                await fetched(f"{server.url}/{FIRST}", tmp_path)
        flip(tmp_path / FIRST, 12_345)
        done = await fetched(f"{server.url}/{FIRST}", tmp_path)

    assert {file.how for file in done.files} == {"fetched"}
    assert (tmp_path / FIRST).read_bytes() == files[FIRST]


async def test_a_new_revision_that_is_interrupted_goes_on_later(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        await fetched(server.url, tmp_path)
        server.files[FIRST] = files[FIRST][:-1] + b"\xff"
        server.troubles.append(Trouble(50, FIRST, cut_after_bytes=0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("appliance.checkpoint.download.RETRIES", 0)
            with pytest.raises(CheckpointError, match=FIRST):
                await fetched(server.url, tmp_path)
        assert (tmp_path / FIRST).read_bytes() == files[FIRST]
        server.troubles.clear()
        await fetched(server.url, tmp_path)

        assert (tmp_path / FIRST).read_bytes() == server.files[FIRST]


async def test_without_validator_and_sum_a_break_begins_the_file_again(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files, troubles=cuts(FIRST, 100_000), validator=lambda _data: None) as server:
        await fetched(server.url, tmp_path)

        assert [asked.range for asked in server.of(FIRST)] == ["bytes=0-0", None, None]
    assert (tmp_path / FIRST).read_bytes() == files[FIRST]


async def test_a_server_that_stops_taking_ranges_begins_the_file_again(tmp_path: Path) -> None:
    files = checkpoint()
    with FileServer(files) as server:
        await interrupted(server, tmp_path)
        server.ignores = lambda asked: asked != ONE_BYTE
        done = await fetched(server.url, tmp_path)

    assert (tmp_path / FIRST).read_bytes() == files[FIRST]
    assert done.received_bytes == len(files[FIRST])


async def test_a_server_that_never_sends_is_given_up_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.checkpoint.download.RETRIES", 1)
    served = FileServer(checkpoint(), troubles=[Trouble(9, FIRST, cut_after_bytes=0)])
    with served as server, pytest.raises(CheckpointError, match=f"{FIRST}: the connection broke") as given_up:
        await fetched(server.url, tmp_path)

    assert "run the same command again" in given_up.value.remedy
