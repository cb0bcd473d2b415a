"""gateway/prewarm/placing.py: what goes into which sequence, and what is never overwritten."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.prewarm.placing import Placing
from gateway.prewarm.sequences import FILE

pytestmark = pytest.mark.anyio


class Llama:
    """Four sequences by their latest task, and what each holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tasks = [-1, -1, -1, -1]
        self.holds = ["", "", "", ""]
        self.saved = ""
        self.served = 0
        self.quiet = True

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=[{"id": id, "id_task": task} for id, task in enumerate(self.tasks)])
        sequence = int(request.url.path.rpartition("/")[2])
        if request.url.params["action"] == "save":
            self.saved = self.holds[sequence]
            (self.folder / FILE).write_bytes(b"kv")
        else:
            self.holds[sequence] = self.saved
        return httpx.Response(200, json={})

    def read(self, sequence: int, what: str, *, person: bool = False) -> None:
        """Somebody's prompt is read."""
        self.tasks[sequence] = max(self.tasks) + 1
        self.holds[sequence] = what
        self.served += person


@pytest.fixture
def llama(tmp_path: Path) -> Llama:
    return Llama(tmp_path)


@pytest.fixture
def placing(llama: Llama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Placing:
    made = Placing("http://engine", None, tmp_path, lambda: llama.served, lambda: llama.quiet)
    transport = httpx.MockTransport(llama)
    monkeypatch.setattr(made, "_client", lambda: httpx.AsyncClient(base_url="http://engine", transport=transport))
    return made


async def put(llama: Llama, placing: Placing, key: str, *, copied: bool = False, left: int = 0) -> int:
    """Place and read one thing; in how many sequences it is besides."""
    place = await placing.place(key)
    assert place is not None
    llama.read(place, key)
    return await placing.was_read(copied=copied, prefixes_left=left)


async def test_conversations_go_into_sequences_of_their_own(llama: Llama, placing: Placing) -> None:
    for key in ("a", "b", "c", "d"):
        await put(llama, placing, key)
    assert sorted(llama.holds) == ["a", "b", "c", "d"]
    assert await placing.place("e") is None


async def test_a_prefix_alone_goes_into_all_sequences(llama: Llama, placing: Placing) -> None:
    assert await put(llama, placing, "docs", copied=True) == 3
    assert llama.holds == ["docs"] * 4


async def test_two_prefixes_share_the_sequences(llama: Llama, placing: Placing) -> None:
    assert await put(llama, placing, "docs", copied=True, left=1) == 1
    assert await put(llama, placing, "more", copied=True) == 1
    assert sorted(llama.holds) == ["docs", "docs", "more", "more"]


async def test_what_a_person_had_read_is_not_overwritten(llama: Llama, placing: Placing) -> None:
    llama.read(2, "hers", person=True)
    assert await put(llama, placing, "docs", copied=True) == 2
    assert llama.holds == ["docs", "docs", "hers", "docs"]


async def test_a_sequence_that_a_person_took_over_is_theirs(llama: Llama, placing: Placing) -> None:
    await put(llama, placing, "docs", copied=True)
    llama.read(1, "docs and more", person=True)
    llama.served = 4
    assert await placing.place("new") is None
    llama.served = 0  # ten minutes later
    assert await placing.place("new") == 1


async def test_what_was_cut_gets_its_sequence_again(llama: Llama, placing: Placing) -> None:
    place = await placing.place("docs")
    assert place is not None
    llama.read(place, "half")
    llama.read((place + 1) % 4, "hers", person=True)
    assert await placing.place("docs") == place


async def test_nothing_is_copied_once_somebody_is_here(llama: Llama, placing: Placing) -> None:
    place = await placing.place("docs")
    assert place is not None
    llama.read(place, "docs")
    llama.quiet = False
    assert await placing.was_read(copied=True, prefixes_left=0) == 0
    assert llama.holds.count("docs") == 1
