"""gateway/prewarm/reader.py and the books: a prompt is named once, off the loop; what is known is not read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gateway.prefix.fingerprint import Fingerprint
from gateway.prewarm import reader as reader_module
from gateway.prewarm.books import End, print_of
from tests.fake_engine.knobs import Knobs, merged
from tests.fake_engine.serving import serving
from tests.gateway.prewarm.bodies import FAST, body, prefix, systems
from tests.gateway.prewarm.standing import standing

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "IDLE_S", 0.02)
    monkeypatch.setattr(reader_module, "LOOK_S", 0.005)


class Ledger:
    """Books that know one text."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int | None]] = []

    def capacity_tokens(self) -> int | None:
        return None

    def is_cached(self, seat: str, print_: Fingerprint) -> bool:
        return print_ == print_of(body("known " * 200))

    def begins(self, seat: str, print_: Fingerprint) -> End:
        self.told.append(("begins", None))
        return lambda usage: self.told.append(("ends", usage.prompt_tokens if usage is not None else None))


async def test_a_prompt_is_named_once_and_not_on_the_loop_and_who_comes_meanwhile_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[int] = []
    loop, came = asyncio.get_running_loop(), asyncio.Event()

    def slowly(body: bytes) -> Fingerprint:
        named.append(threading.get_ident())
        if len(named) == 1:
            asyncio.run_coroutine_threadsafe(somebody(), loop).result()
        return print_of(body)

    async def somebody() -> None:
        box.comes()
        came.set()

    monkeypatch.setattr(reader_module, "print_of", slowly)
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url, prefixes=[prefix(tmp_path, "d")]) as box:
        box.start("one")
        await came.wait()
        await asyncio.sleep(0.05)
        assert served.engine.stats.requests == 0
        box.goes()
        await box.read_all()
        assert systems(served.engine) == ["d"]
    assert len(named) == 1
    assert threading.get_ident() not in named


async def test_what_the_books_hold_is_not_read_and_what_is_read_is_told_to_them(tmp_path: Path) -> None:
    books = Ledger()
    named = [prefix(tmp_path, "known"), prefix(tmp_path, "new")]
    async with serving(merged(Knobs(), FAST)) as served, standing(served.url, prefixes=named, books=books) as box:
        box.start("one")
        await box.read_all()
        assert systems(served.engine) == ["new"]
        assert (box.reader.state.of, box.reader.state.done) == (2, 2)
        assert [what for what, _ in books.told] == ["begins", "ends"]
        assert books.told[1][1] == served.engine.stats.prompt_tokens
