"""What `moe-appliance upgraded` does with a daemon of another version; tests/e2e/test_upgrade.py has the rest."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import typer

from appliance import __version__
from appliance.cli.upgraded import upgraded
from appliance.errors import MoeError
from gateway.state import BoxState


@dataclass
class Answering:
    """A daemon's answers."""

    state: dict[str, Any]
    replaced: httpx.Response = field(default_factory=lambda: httpx.Response(500))
    asked: list[str] = field(default_factory=list)

    def daemon(self, method: str, path: str) -> httpx.Response:
        self.asked.append(path)
        return httpx.Response(200, json=self.state) if path == "/state" else self.replaced


def run(box: Answering) -> None:
    upgraded(cast(typer.Context, SimpleNamespace(obj=box)))


@pytest.mark.parametrize("protocol", [None, BoxState().protocol + 1])
def test_a_daemon_of_another_protocol_is_left_alone(protocol: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    state: dict[str, Any] = {"version": "0.1\x1b[2J", "engine": {"load_s": 251.4}}
    box = Answering(state if protocol is None else state | {"protocol": protocol})
    run(box)
    said = capsys.readouterr().out
    assert box.asked == ["/state"]
    assert "does not fit the daemon that runs. Daemon and engine go on as version 0.1\\x1b[2J." in said
    assert "since the engine loads again, 251 s the last time:  sudo systemctl restart moe-appliance" in said


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(409, json={"error": "it is busy", "remedy": "wait"}), "it is busy"),
        (httpx.Response(404, text="Not Found"), "answered 404"),
        (httpx.Response(500, json=[]), "answered 500"),
    ],
)
def test_a_daemon_that_refuses_is_quoted(answer: httpx.Response, says: str) -> None:
    with pytest.raises(MoeError, match=says) as caught:
        run(Answering({"protocol": BoxState().protocol}, answer))
    assert caught.value.remedy


def test_a_gateway_that_is_new_already_leaves_a_word_about_the_older_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    runs = httpx.Response(200, json={"said": "it runs already"})
    run(Answering({"protocol": BoxState().protocol, "version": "0.0.9", "engine": {}}, runs))
    assert "it runs already. Daemon and engine go on as version 0.0.9." in capsys.readouterr().out
    run(Answering({"protocol": BoxState().protocol, "version": __version__, "engine": {}}, runs))
    assert capsys.readouterr().out == "it runs already.\n"
