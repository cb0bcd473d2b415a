"""What the residency plugin counted reaches the published state, and nothing that cannot be believed does."""

from __future__ import annotations

import asyncio
import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.board import Board
from appliance.engine import residency_figures
from appliance.engine.adapter import Launch
from appliance.engine.examined import Examined
from appliance.engine.external import ExternalEngine
from appliance.engine.residency_figures import parse, read
from appliance.engine.settings import ExternalSettings
from appliance.engine.supervisor import EngineSupervisor
from appliance.residency.deciding import FIGURES, FIGURES_SCHEMA, Deciding
from appliance.residency.document import Residency
from appliance.residency.following import Following
from appliance.residency.options import FOLDER
from gateway import logs
from gateway.state import BoxState, EngineState, ResidencyFigures
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving

SAID: dict[str, Any] = {
    "schema": FIGURES_SCHEMA,
    "plan_id": "sha256:" + "a" * 64,
    "at": 1000.5,
    "swapped": 3,
    "tokens": 128,
    "seconds": 4.25,
    "visits": 1024,
    "cold_visits": 17,
    "cold_bytes": 17 << 20,
}
FOUND = ResidencyFigures(
    at_s=1000.5, tokens=128, seconds=4.25, visits=1024, cold_visits=17, cold_bytes=17 << 20, swapped=3
)


def test_figures_of_this_start_are_known() -> None:
    assert parse(json.dumps(SAID), 1000.0) == FOUND


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "moe-appliance.residency-figures/2"},
        {"at": 999.0},
        {"at": "1000.5"},
        {"at": -1},
        {"at": float("nan")},
        {"seconds": 0},
        {"seconds": float("inf")},
        {"tokens": 0},
        {"visits": 0},
        {"visits": 16},
        {"cold_bytes": -1},
        {"cold_bytes": 1 << 80},
        {"swapped": True},
        {"swapped": None},
    ],
)
def test_what_cannot_be_is_not_believed(changes: dict[str, Any]) -> None:
    assert parse(json.dumps(SAID | changes), 1000.0) is None


@pytest.mark.parametrize("key", sorted(SAID.keys() - {"plan_id"}))
def test_a_figure_that_is_missing_makes_all_of_them_unknown(key: str) -> None:
    assert parse(json.dumps({name: value for name, value in SAID.items() if name != key}), 1000.0) is None


@given(
    st.binary(max_size=200) | st.integers(0, len(json.dumps(SAID)) - 1).map(lambda end: json.dumps(SAID)[:end].encode())
)
def test_no_text_is_an_error(text: bytes) -> None:
    assert parse(text, 0.0) is None


def test_a_file_that_is_no_file_of_the_plugins_is_none(tmp_path: Path) -> None:
    assert read(tmp_path, 0.0) is None
    (tmp_path / FIGURES).write_text(" " * (1 << 20) + json.dumps(SAID))
    assert read(tmp_path, 0.0) is None
    (tmp_path / FIGURES).write_text("[" * 10_000)
    assert read(tmp_path, 0.0) is None
    (tmp_path / FIGURES).unlink()
    (tmp_path / FIGURES).mkdir()
    assert read(tmp_path, 0.0) is None


class Reading:
    """Two experts, of which the second is cold."""

    tokens = 100

    def visits(self) -> list[list[int]]:
        return [[95, 5]]


def count(folder: Path) -> None:
    """As the plugin does."""
    residency = Residency("sha256:" + "a" * 64, "m", 1, 2, 1, 1, {0: (1,)}, {}, ())
    deciding = Deciding(Following(residency, {0: 1000}, 0, 0), [0], folder)
    deciding.decide(Reading(), {0: [0, 1]}, {0: [0, 1]}, 2.0)  # type: ignore[arg-type]


class Counted(ExternalEngine):
    """An engine that was told to write into a folder."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(ExternalSettings(kind="external", url=url))
        self._folder = folder

    def launch(self, port: int, key_file: Path) -> Launch:
        return replace(super().launch(port, key_file), env={FOLDER: str(self._folder)})


async def shown(board: Board, *, known: bool) -> tuple[EngineState, ResidencyFigures]:
    async with asyncio.timeout(20):
        while (found := (box := board.state).engine.residency) is None or (found.tokens > 0) is not known:
            await board.newer_than(box.revision, 5)
    return box.engine, found


@pytest.mark.anyio
async def test_what_the_plugin_counts_is_published_while_that_start_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a box that serves, and figures of an engine before this one
    monkeypatch.setattr(residency_figures, "PERIOD_S", 0.01)
    written = tmp_path / "now"
    written.mkdir()
    (written / FIGURES).write_text(json.dumps(SAID))
    board = Board(BoxState())
    async with serving(Knobs(time_scale=0.01)) as engine:
        supervisor = EngineSupervisor(
            adapter=Counted(engine.url, written),
            board=board,
            state_dir=tmp_path,
            runtime_dir=tmp_path,
            examine=lambda: Examined(()),
            log=logs.configure("daemon", io.StringIO()),
        )
        began_s = time.time()
        running = asyncio.create_task(supervisor.run())
        try:
            async with asyncio.timeout(20):
                while (box := board.state).engine.phase != "ready":
                    assert box.engine.residency is None or box.engine.residency.tokens == 0
                    await board.newer_than(box.revision, 5)
            # then it is known that nothing was counted, and since when
            _, nothing = await shown(board, known=False)
            assert nothing == ResidencyFigures(at_s=nothing.at_s)
            assert began_s <= nothing.at_s <= time.time()
            # when
            count(written)
            # then
            _, found = await shown(board, known=True)
            assert (found.tokens, found.seconds, found.visits) == (100, 2.0, 100)
            assert (found.cold_visits, found.cold_bytes, found.swapped) == (5, 5000, 0)
            assert found.at_s >= began_s
            assert EngineState.model_validate_json(board.state.engine.model_dump_json()).residency == found
            (written / FIGURES).unlink()
            assert (await shown(board, known=False))[1] == nothing
            count(written)
            await shown(board, known=True)
            # and the next start knows nothing of it
            supervisor.restart()
            _, later = await shown(board, known=False)
            assert later.at_s > nothing.at_s
            async with asyncio.timeout(5):
                await supervisor.stop()
        finally:
            running.cancel()
            await asyncio.wait((running,))
