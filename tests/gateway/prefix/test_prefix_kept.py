"""The snapshot of the index: who may read it, of which engine it is, when it is written, and what damage does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.prefix.index import PrefixIndex
from gateway.prefix.kept import (
    EVERY_S,
    FILE_MAX_BYTES,
    NAME,
    SOON_S,
    Keeper,
    Kept,
    keeping,
    read_kept,
)
from tests.gateway.prefix.chains import ask, at_once, chain, dumped
from tests.gateway.test_limiter import VirtualLoop


def index_of(*numbers: int) -> PrefixIndex:
    index = PrefixIndex(10_000)
    for number in numbers:
        ask(index, chain([number] * 9), reply=5)
    return index


def virtual(main: Callable[[], Awaitable[None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_what_was_kept_of_the_same_start_is_there_again(tmp_path: Path) -> None:
    path, index = tmp_path / NAME, index_of(1, 2)
    path.write_bytes(at_once(keeping("start-1", index, {"runs": [["0123", 17.5]]})))
    kept = read_kept(path, "start-1")
    assert isinstance(kept, Kept)
    assert kept.more == {"runs": [["0123", 17.5]]}
    assert dumped(kept.index) == dumped(index)


def test_of_another_start_of_the_engine_nothing_is_taken(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(at_once(keeping("start-1", index_of(1))))
    assert read_kept(path, "start-2") == "it is of another start of the engine"


def test_a_file_that_cannot_be_read_or_is_too_long_is_said_and_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / NAME
    assert read_kept(path, "start-1") is None
    assert read_kept(tmp_path, "start-1") == "Is a directory"
    with path.open("wb") as file:
        file.truncate(FILE_MAX_BYTES + 1)
    assert read_kept(path, "start-1") == f"longer than {FILE_MAX_BYTES} bytes"


WHOLE = at_once(keeping("start-1", index_of(1)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300) | st.integers(0, len(WHOLE) - 1).map(lambda cut: WHOLE[:cut]))
def test_garbage_is_said_and_sets_nothing(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(raw)
    assert isinstance(read_kept(path, "start-1"), str)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_flipped_bit_is_seen(tmp_path: Path, at: int, change: int) -> None:
    raw = bytearray(WHOLE)
    raw[at] ^= change
    path = tmp_path / NAME
    path.write_bytes(raw)
    assert read_kept(path, "start-1") == "it is not whole"


def test_no_text_is_kept_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    async def main() -> None:
        keeper = Keeper(tmp_path / NAME, lambda: keeping("start-1", index_of(1)))
        await keeper.keep()
        assert keeper.unkept == ""

    asyncio.run(main())
    assert os.stat(tmp_path / NAME).st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_changes_are_written_every_five_seconds_and_a_dear_one_after_half_of_one(tmp_path: Path) -> None:
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def take() -> None:
            times.append(loop.time())

        keeper = Keeper(tmp_path / NAME, take)
        task = asyncio.create_task(keeper.run())
        await asyncio.sleep(100)
        keeper.note()
        for _ in range(12):
            await asyncio.sleep(1)
            keeper.note()
        await asyncio.sleep(1.25)
        keeper.note(soon=True)
        keeper.note()
        await asyncio.sleep(100)
        task.cancel()

    virtual(main)
    assert times == [100, 100 + EVERY_S, 100 + 2 * EVERY_S, 113.25 + SOON_S]


def test_a_file_that_cannot_be_written_is_said_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.prefix.kept.EVERY_S", 0.05)

    async def main() -> None:
        folder = tmp_path / "later"
        keeper = Keeper(folder / NAME, lambda: keeping("start-1", index_of(1)))
        keeper.note()
        task = asyncio.create_task(keeper.run())
        await until(lambda: keeper.unkept != "")
        assert keeper.unkept == f"{folder / NAME} cannot be written: No such file or directory"
        folder.mkdir()
        await until(lambda: keeper.unkept == "")
        assert isinstance(read_kept(folder / NAME, "start-1"), Kept)
        task.cancel()

    async def until(true: Callable[[], bool]) -> None:
        for _ in range(1000):
            if true():
                return
            await asyncio.sleep(0.01)
        raise AssertionError

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_would_be_too_long_to_be_read_again_is_not_written(tmp_path: Path) -> None:
    async def main() -> None:
        def take() -> Generator[None, None, bytes]:
            yield
            return bytes(FILE_MAX_BYTES + 1)

        keeper = Keeper(tmp_path / NAME, take)
        await keeper.keep()
        assert keeper.unkept == f"{tmp_path / NAME} would be longer than {FILE_MAX_BYTES} bytes"

    asyncio.run(main())
    assert not (tmp_path / NAME).exists()


def test_a_full_cache_of_a_million_tokens_is_a_small_file() -> None:
    index, blocks = PrefixIndex(None), 5500
    for start in range(0, blocks, 250):
        ask(index, chain([start % 256, start // 256, *range(248)]))
    assert len(at_once(keeping("start-1", index))) < 25 * blocks


def test_a_large_index_is_written_in_steps_and_may_be_used_and_cleared_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.prefix.packed.STEP_BLOCKS", 4)
    path, index = tmp_path / NAME, index_of(*range(1, 21))
    wanted, steps = dumped(index), keeping("start-1", index)
    next(steps)
    count = sum(1 for _ in _used(steps, index, path))
    kept = read_kept(path, "start-1")
    assert isinstance(kept, Kept)
    assert count > 30
    assert dumped(kept.index) == wanted
    assert index.held_tokens == 0


def _used(steps: Generator[None, None, bytes], index: PrefixIndex, path: Path) -> Iterator[None]:
    """Steps, with requests between the first ones and a restart of the engine then; the last one fills the file."""
    for number in range(100, 110):
        ask(index, chain([number] * 9), reply=5)
        next(steps)
        yield
    index.clear()
    path.write_bytes((yield from steps))
