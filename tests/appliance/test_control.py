"""The daemon's socket: who asked is noted, unless whoever asks says that it was."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from starlette.testclient import TestClient

from appliance.board import Board
from appliance.control import control_app
from gateway.state import BoxState


@pytest.mark.parametrize(
    ("user", "query", "status", "noted"),
    [
        ("ana", "", 202, [("ana", "restart", True)]),
        ("root", "?who=carla", 202, [("carla", "restart", True)]),
        ("ana", "?who=carla", 409, [("ana", "restart", False)]),
        ("moe-appliance", "?noted=1", 202, []),
    ],
)
def test_who_asked_for_what_is_noted_once(
    user: str, query: str, status: int, noted: list[tuple[str, str, bool]]
) -> None:
    async def restart(asked: Mapping[str, str]) -> tuple[int, Mapping[str, object]]:
        return status, {"said": "so"}

    told: list[tuple[str, str, bool]] = []
    app = control_app(Board(BoxState()), {"restart": restart}, lambda *of: told.append(of))
    answer = TestClient(app, client=(user, 1000)).post(f"/restart{query}")
    assert (answer.status_code, answer.json()) == (status, {"said": "so"})
    assert told == noted
