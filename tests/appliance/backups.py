"""What the tests of `moe-appliance backup` and `restore` share: a box with everything, and looks at what came of it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from appliance.cli import backup
from appliance.cli.box import Box
from gateway.keys import digest_of
from gateway.ledger.writing import NAME
from tests.gateway.ledgers import row, running_ledger

CONFIG = """listen = "127.0.0.1:9123"  # kept
state_dir = "data"
runtime_dir = "run"
"""


SEATS_TOML = f'# the team\n[seats.ana]\ndigest = "{digest_of("k")}"\n'


SECRETS = {
    "data/cookie.secret": "secret-cookie",
    "data/model/weights.gguf": "secret-weights",
    "data/engine.log": "secret-log",
    "data/seats.toml.lock": "secret-lock",
    "data/first-admin-token": "secret-token",
    "run/engine-1.key": "secret-key",
    "run/gateway.json": "secret-runtime",
}


LEARNED = {"data/overlay.json": '{"mode": "paused"}', "data/forced.json": "[]", "data/curves.json": "[1]"}


def made(home: Path, ledger: bool = True) -> Box:
    """A box with everything."""
    for name, text in {"appliance.toml": CONFIG, "data/seats.toml": SEATS_TOML, **SECRETS, **LEARNED}.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if ledger:
        with running_ledger(home / "data" / NAME) as kept:
            kept.put(row())
    return Box(home / "appliance.toml", {})


def run(box: Box, *words: str) -> Result:
    app = typer.Typer()

    @app.callback()
    def _root(ctx: typer.Context) -> None:
        ctx.obj = box

    backup.register(app)
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def contents(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        found = {info.name: tar.extractfile(info) for info in tar}
        return {name: file.read() for name, file in found.items() if file is not None}


def tree(home: Path) -> dict[str, bytes]:
    """Every file, but for locks, which a look makes."""
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name not in ("lock", f"{NAME}-shm", f"{NAME}-wal")
    }
