"""gateway/prewarm/sequences.py: which sequences are overwritten, and a file that is never left behind."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prewarm.sequences import FILE, SequenceState, copy, free, look, parsed, share

pytestmark = pytest.mark.anyio


@dataclass
class Engine:
    """llama.cpp's /slots. `fails`: (sequence, action) that are refused."""

    folder: Path
    fails: frozenset[tuple[int, str]] = frozenset()
    elsewhere: bool = False
    told: list[tuple[int, str]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json=[{"id": 0, "id_task": 7}, {"id": 1}])
        sequence, action = int(request.url.path.rpartition("/")[2]), request.url.params["action"]
        self.told.append((sequence, action))
        assert json.loads(request.content) == {"filename": FILE}
        if (sequence, action) in self.fails:
            return httpx.Response(501, json={"error": {"code": 501}})
        if action == "save" and not self.elsewhere:
            (self.folder / FILE).write_bytes(b"what a user wrote")
        return httpx.Response(200, json={})

    @property
    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="http://engine")


def test_what_is_no_list_of_sequences_is_none() -> None:
    assert parsed([{"id": 0, "id_task": 7}, {"id": 1, "id_task": None}]) == (SequenceState(0, 7), SequenceState(1, -1))
    answers: tuple[object, ...] = ({"error": {}}, None, [1], [{"id": "x"}], [{"id": 0}, {}])
    for answer in answers:
        assert parsed(answer) == ()


def test_the_sequence_that_was_used_longest_ago_is_free_first() -> None:
    states = [SequenceState(0, 9), SequenceState(1, -1), SequenceState(2, 4), SequenceState(3, 6)]
    assert free(states, served=0, held={}) == (1, 2, 3, 0)
    assert free(states, served=1, held={}) == (1, 2, 3)
    assert free(states, served=2, held={3}) == (1,)
    assert free(states, served=9, held={}) == ()


@given(st.lists(st.integers(-1, 50), max_size=6), st.integers(0, 8), st.sets(st.integers(0, 5)))
def test_what_people_used_and_what_we_hold_is_never_free(tasks: list[int], served: int, held: set[int]) -> None:
    states = [SequenceState(id, task) for id, task in enumerate(tasks)]
    spare = free(states, served, held)
    assert not set(spare) & held
    others = sorted((state for state in states if state.id not in held), key=lambda state: state.last_task)
    assert not set(spare) & {state.id for state in others[max(0, len(others) - served) :]}


@pytest.mark.parametrize(
    ("free_sequences", "left", "copies"), [(3, 0, 3), (3, 1, 1), (1, 0, 1), (0, 0, 0), (3, 3, 0), (2, 5, 0), (7, 1, 3)]
)
def test_prefixes_share_the_sequences(free_sequences: int, left: int, copies: int) -> None:
    assert share(free_sequences, left) == copies


async def test_a_prefix_is_saved_once_restored_into_each_and_the_file_goes(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with engine.client as client:
        assert await look(client) == (SequenceState(0, 7), SequenceState(1, -1))
        assert await copy(client, tmp_path, 0, (1, 3), lambda: True) == (1, 3)
    assert engine.told == [(0, "save"), (1, "restore"), (3, "restore")]
    assert not (tmp_path / FILE).exists()


async def test_copying_ends_between_two_steps_when_somebody_comes(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with engine.client as client:
        assert await copy(client, tmp_path, 0, (1, 2, 3), lambda: len(engine.told) < 2) == (1,)
    assert not (tmp_path / FILE).exists()


async def test_without_targets_nothing_is_saved(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    async with engine.client as client:
        assert await copy(client, tmp_path, 0, (), lambda: True) == ()
    assert engine.told == []


@pytest.mark.parametrize("refused", [(0, "save"), (1, "restore")])
async def test_an_engine_that_refuses_leaves_nothing_behind(tmp_path: Path, refused: tuple[int, str]) -> None:
    engine = Engine(tmp_path, frozenset({refused}))
    async with engine.client as client:
        assert await copy(client, tmp_path, 0, (1, 2), lambda: True) == ()
    assert not (tmp_path / FILE).exists()


async def test_an_engine_that_saves_elsewhere_is_not_told_to_restore(tmp_path: Path) -> None:
    engine = Engine(tmp_path, elsewhere=True)
    async with engine.client as client:
        assert await copy(client, tmp_path, 0, (1,), lambda: True) == ()
    assert engine.told == [(0, "save")]


async def test_an_engine_that_is_gone_has_no_sequences() -> None:
    def broken(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("gone")

    async with httpx.AsyncClient(transport=httpx.MockTransport(broken), base_url="http://engine") as client:
        assert await look(client) == ()
