"""appliance/engine/probes.py: whether one sequence can be copied into the others, asked without harm."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from appliance.engine.probes import Shown, probe
from gateway.state import EngineAbilities
from tests.appliance.test_probes import Engine
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.serving import serving

pytestmark = pytest.mark.anyio


@dataclass
class WithSequences:
    """An engine with `count` sequences that saves into `folder`. `refused`: an action that it answers with 501."""

    folder: Path
    count: int = 4
    refused: str = ""
    engine: Engine = field(default_factory=Engine)
    told: list[str] = field(default_factory=list)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if not path.startswith("/slots"):
            return await self.engine(request)
        if request.method == "GET":
            return httpx.Response(200, json=[{"id": n, "id_task": [3, 9][n] if n < 2 else None} for n in range(4)])
        action = request.url.params["action"]
        self.told.append(f"{action} {path.rpartition('/')[2]}")
        if action == self.refused:
            return httpx.Response(501, json={"error": {"code": 501, "message": "This server does not support slots"}})
        if action == "save":
            (self.folder / json.loads(request.content)["filename"]).write_bytes(b"kv")
        return httpx.Response(200, json={})

    async def shown(self, folder: Path | None) -> Shown:
        """What the probe finds."""
        transport = httpx.MockTransport(self)
        async with httpx.AsyncClient(base_url="http://engine", transport=transport) as client:
            return await probe(client, "m", lambda step, part: None, sequence_folder=folder)


async def test_the_latest_sequence_is_copied_into_all_others_and_no_file_is_left(tmp_path: Path) -> None:
    engine = WithSequences(tmp_path)
    shown = await engine.shown(tmp_path)
    assert (shown.abilities.sequence_copies, shown.abilities.sequence_folder) == (4, str(tmp_path))
    assert engine.told == ["save 1", "restore 0", "restore 2", "restore 3"]
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - a look into a test's folder


@pytest.mark.parametrize("refused", ["save", "restore"])
async def test_an_engine_that_refuses_cannot_and_serves_all_the_same(tmp_path: Path, refused: str) -> None:
    engine = WithSequences(tmp_path, refused=refused)
    shown = await engine.shown(tmp_path)
    assert (shown.abilities.sequence_copies, shown.abilities.sequence_folder) == (0, None)
    assert shown.abilities.dialects
    assert shown.notes == ("a copy of a sequence: 0 of 3 took it",)
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - a look into a test's folder


async def test_an_engine_that_saves_elsewhere_is_not_believed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shown = await WithSequences(elsewhere).shown(tmp_path)
    assert shown.abilities.sequence_copies == 0


async def test_without_a_folder_of_ours_nobody_asks(tmp_path: Path) -> None:
    engine = WithSequences(tmp_path)
    assert (await engine.shown(None)).abilities.sequence_copies == 0
    assert engine.told == []


async def test_an_engine_without_sequences_is_asked_once(tmp_path: Path) -> None:
    async with serving(Knobs()) as served, httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        shown = await probe(client, "fake-model", lambda step, part: None, sequence_folder=tmp_path)
        assert served.engine.stats.paths["/slots"] == 1
    assert (shown.notes, shown.abilities.sequence_copies) == ((), 0)
    assert shown.abilities != EngineAbilities()
