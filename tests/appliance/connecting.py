"""What the tests of `moe-appliance connect` share: a box that answers as told, and a home to write into."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner, Result

from appliance import keyedit
from appliance.cli import connect
from appliance.cli.box import Box
from appliance.errors import MoeError, NotRunning
from gateway.agents.programs import AGENTS
from gateway.agents.text import EXAMPLE
from gateway.state import Phase
from gateway.status.compose import view
from tests.status_sample import NOW_S, box, gateway

ROOT = Path(__file__).parents[2]
WITH_FILE = [name for name, agent in AGENTS.items() if agent.settings(EXAMPLE).file is not None]


@dataclass
class Fake(Box):
    """A box whose gateway answers with `status`, or does not run."""

    status: str | None = None

    def gateway(self, method: str, path: str) -> httpx.Response:
        if self.status is None:
            raise NotRunning("no appliance answers at gateway.sock", "start it: moe-appliance run")
        return httpx.Response(200, text=self.status)

    def daemon(self, method: str, path: str) -> httpx.Response:
        raise NotRunning("no appliance answers at control.sock", "start it: moe-appliance run")


@dataclass
class Here:
    """A folder with a home and a box of one seat."""

    folder: Path
    box: Fake
    key: str

    def __call__(self, line: str, **environ: str) -> Result:
        self.box.environ |= environ
        app = typer.Typer()

        @app.callback()
        def _root(ctx: typer.Context) -> None:
            ctx.obj = self.box

        connect.register(app)
        return CliRunner().invoke(app, ["connect", *shlex.split(line)], catch_exceptions=False)

    def refused(self, line: str, **environ: str) -> MoeError:
        with pytest.raises(MoeError) as caught:
            self(line, **environ)
        assert caught.value.remedy
        return caught.value

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def file(self, name: str) -> Path:
        file = AGENTS[name].settings(EXAMPLE).file
        assert file is not None
        return Path(file.place.path({}, str(self.home)))


def status(url: str = "http://BOX:8000", phase: Phase = Phase.READY, **engine: Any) -> str:
    engine = {"models": ("MODEL",), "context_tokens": 262_144} | engine
    state = box(phase, **engine).model_copy(update={"public_url": url})
    return view(state, gateway(0), NOW_S).model_dump_json()


def made_here(tmp_path: Path) -> Here:
    """A box with the seat ana, whose gateway answers."""
    (tmp_path / "home").mkdir()
    environ = {"HOME": str(tmp_path / "home"), "MOE_APPLIANCE_STATE_DIR": str(tmp_path)}
    fake = Fake(None, environ, status=status())
    (tmp_path / "appliance.toml").touch()
    fake.config_file = tmp_path / "appliance.toml"
    return Here(tmp_path, fake, keyedit.add_seat(fake.seats_file, "ana").key)
