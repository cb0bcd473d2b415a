"""`moe-appliance demo`: the whole box with one command on the embedded engine, and `--check`, which proves it.

Touches the demo's home folder, the daemon (in this process), the terminal.

Rules:
- The demo's keys are kept in 0600 files of its home, so that a second start shows the same ones.
- The terminal gets the story; log lines go to `demo.log` in the state folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer
from rich.console import Console
from rich.markup import escape

from appliance import keyedit
from appliance.cli import STOPPED
from appliance.cli.demo_check import answers, check_box, children
from appliance.cli.logstream import LogStream
from appliance.config import Config, Paths, load
from appliance.daemon import Daemon
from appliance.engine.launching import free_port
from appliance.engine.settings import EmbeddedSettings
from appliance.errors import AlreadyRunning, ConfigError, MoeError, PortTaken
from appliance.files import FolderLock, make_folder, usable, write_private
from gateway import logs
from gateway.keyfile import load_admins, load_seats
from gateway.keys import digest_of
from gateway.state import BoxState, Cause, EngineState, Phase
from gateway.unixserver import PATH_MAX_BYTES

SEAT = "demo"
ADMIN = "demo-admin"
PORT = 8000
STEP_S = 2.0
"""Without a terminal, a step that goes on is said again after this long."""
_SHORT = Path("/tmp")  # noqa: S108 - the folder in it is checked before it is used
_CONFIG = """\
# Written by `moe-appliance demo` at each start. For a box of your own, copy it and change it:
# docs/configuration.md lists every key.
listen = "127.0.0.1:{port}"
state_dir = "state"
runtime_dir = {runtime_dir}

[engine]
kind = "embedded"
{model}"""


@dataclass(frozen=True)
class Keys:
    """What the demo shows: the seat's key and the admin's token."""

    seat: str
    admin: str


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command()(demo)


def demo(
    check: Annotated[
        bool, typer.Option("--check", help="Start, stream one completion, stop; exit 0 if all is well.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option("--model", help="A .gguf file or the demo model's wheel, for use offline.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help=f"Port on 127.0.0.1. Default {PORT}.")
    ] = None,
    home: Annotated[Path, typer.Option("--home", help="Folder of the demo.")] = Path.home() / ".moe-appliance-demo",
) -> None:
    """Run the whole box on a small engine without a GPU. It tests the plumbing, not the answers."""
    console = Console(highlight=False, soft_wrap=True)
    if port is None:
        port = free_port() if check else PORT
    make_folder(home, "--home", 0o700)
    with usable(home, "--home"):
        config, paths = load(_write_config(home, port, model), {})
        make_folder(paths.state_dir, "state_dir")
        keys = Keys(
            _kept_key(home / "seat.key", paths.seats_file, seat=True),
            _kept_key(home / "admin.token", paths.admins_file, seat=False),
        )
        log_file = (paths.state_dir / "demo.log").open("a")
    with log_file:
        try:
            served = asyncio.run(_run(config, paths, keys, console, log_file, check))
        finally:
            _remove_short(paths)
    if check and not served:
        raise typer.Exit(STOPPED)


async def _run(config: Config, paths: Paths, keys: Keys, console: Console, log_file: TextIO, check: bool) -> bool:
    """Run it to its end; False when it was stopped before it served."""
    daemon = Daemon(
        config,
        paths,
        logs.configure("daemon", cast(TextIO, LogStream(log_file))),
        hangup_stops=True,
        child_stderr=log_file,
    )
    started_s = time.monotonic()
    running = asyncio.create_task(daemon.run())
    story = asyncio.create_task(_tell(daemon, console))
    farewell = _Farewell(console, config.gateway.drain_s)
    daemon.board.listen(farewell)
    try:
        await asyncio.wait((running, story), return_when=asyncio.FIRST_COMPLETED)
        if not story.done():
            try:
                await running
            except PortTaken as error:
                raise PortTaken(error.message, "use another one: scripts/demo --port PORT") from None
            except AlreadyRunning as error:
                stop = f"kill {error.pid}" if error.pid else "Ctrl-C in its terminal"
                raise AlreadyRunning(error.message, f"stop it first: {stop}; or use another --home FOLDER") from None
            return False
        if not await story:  # raises when the engine will not start
            await running
            return False
        await answers(daemon.board.state)
        console.print(f"Ready after {time.monotonic() - started_s:.1f} s.")
        _show(daemon.board.state, keys, console, paths)
        if check:
            pids = children()
            farewell.said = True
            await check_box(daemon.board.state, keys.seat, keys.admin, SEAT, console)
            await _stopped(daemon, running)
            _nothing_left(pids)
            console.print("[bold green]check passed[/]: everything was stopped, no process is left.")
            return True
        console.print("\nAll traffic stays on this machine. Ctrl-C stops everything.")
        await running
        return True
    finally:
        story.cancel()
        await _stopped(daemon, running)


class _Farewell:
    """Says once that the box is being stopped, and what it waits for."""

    def __init__(self, console: Console, drain_s: float) -> None:
        self._console = console
        self._drain_s = drain_s
        self.said = False

    def __call__(self, box: BoxState) -> None:
        if box.stopping and not self.said:
            self.said = True
            limit = f": running streams may end first, for {self._drain_s:g} s at most. Ctrl-C again ends them now."
            self._console.print(f"Stopping{limit if box.engine.phase is Phase.READY else '.'}")


async def _stopped(daemon: Daemon, running: asyncio.Task[None]) -> None:
    daemon.stop()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait((running,))


async def _tell(daemon: Daemon, console: Console) -> bool:
    """Tell the start as it goes. True once the engine is READY, False when all is being stopped before; raises when
    it will not be."""
    said, said_s = "", 0.0
    with console.status("starting") as status:
        async for box in _states(daemon):
            engine = box.engine
            if box.stopping:
                return False
            if engine.phase is Phase.READY and box.gateway.pid is not None:
                return True
            if engine.phase in (Phase.FAILED, Phase.REFUSED, Phase.BACKOFF) and engine.cause is not None:
                for logged in engine.log_tail[-5:]:
                    console.print(f"  engine: {logged}", markup=False, style="dim")
                raise _refusal(daemon.config, engine.cause)
            line = _sentence(engine)
            status.update(line)
            step = line.partition(" ━")[0].rstrip("╌ ")
            if not console.is_terminal and (step != said or time.monotonic() - said_s > STEP_S):
                said, said_s = step, time.monotonic()
                console.print(line)
    return False


def _refusal(config: Config, cause: Cause) -> MoeError:
    """A file that the user named and that cannot be used is wrong usage: trying again does not help."""
    named = isinstance(config.engine, EmbeddedSettings) and config.engine.model_file is not None
    kind = ConfigError if named and cause.id == "engine.prepare" else MoeError
    return kind(cause.title, cause.remedy)


async def _states(daemon: Daemon) -> AsyncIterator[BoxState]:
    while True:
        state = daemon.board.state
        yield state
        await daemon.board.newer_than(state.revision, 60)


def _sentence(engine: EngineState) -> str:
    if engine.phase is Phase.OFF:
        return "beginning"
    said = f"{engine.phase}: {engine.step}" if engine.step not in ("", engine.phase) else str(engine.phase)
    if engine.progress is None:
        return said
    filled = round(24 * engine.progress)
    return f"{said} {'━' * filled}{'╌' * (24 - filled)} {engine.progress:4.0%}"


def _show(box: BoxState, keys: Keys, console: Console, paths: Paths) -> None:
    model = box.engine.models[0]
    url = box.public_url
    messages = '[{"role":"user","content":"What is the capital of France?"}]'
    body = f'{{"model":"{model}","stream":true,"max_tokens":48,"messages":{messages}}}'
    home = paths.state_dir.parent
    console.print(
        f"\n[bold]moe-appliance is ready[/] [dim](demo model: it tests the plumbing, not the answers)[/]\n"
        f"  URL         [bold]{url}/v1[/]   model {escape(model)}\n"
        f"  seat key    [bold]{keys.seat}[/]\n"
        f"  admin page  {url}/admin#token={keys.admin}\n"
        f"  admin token kept in {escape(str(home / 'admin.token'))}\n"
        f"  command line {escape(_command())} --config {escape(str(home / 'appliance.toml'))} status\n"
        f"  an agent    {escape(_command())} --config {escape(str(home / 'appliance.toml'))} connect pi --seat {SEAT}\n"
        "\nTry it:\n"
    )
    console.print(
        f"curl -N {url}/v1/chat/completions -H 'Authorization: Bearer {keys.seat}' "
        f"-H 'Content-Type: application/json' -d '{body}'",
        markup=False,
    )


def _command() -> str:
    """How to type `moe-appliance` so that it is found."""
    beside = Path(sys.executable).with_name("moe-appliance")
    return str(beside) if beside.is_file() else "moe-appliance"


def _write_config(home: Path, port: int, model: Path | None) -> Path:
    """appliance.toml of the demo. A Unix socket's path may be 107 bytes: a long home gets a short folder."""
    runtime = home.resolve() / "state" / "run"
    if len(os.fsencode(runtime / "control.sock")) > PATH_MAX_BYTES:
        digest = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]
        runtime = _SHORT / f"moe-appliance-{os.geteuid()}-{digest}"
        runtime.mkdir(mode=0o700, exist_ok=True)
        if runtime.lstat().st_uid != os.geteuid() or runtime.is_symlink():
            raise ConfigError(f"{runtime} belongs to somebody else", "use a shorter --home")
    if model is not None and not model.is_file():
        raise ConfigError(f"--model: there is no file {model}", "name a .gguf file or the demo model's wheel")
    text = _CONFIG.format(
        port=port,
        runtime_dir=_toml(str(runtime)),
        model=f"model_file = {_toml(str(model.resolve()))}\n" if model is not None else "",
    )
    path = home / "appliance.toml"
    write_private(path, text.encode())
    return path


def _remove_short(paths: Paths) -> None:
    """Remove the short runtime folder, unless another demo has it by now."""
    runtime = paths.runtime_dir
    if runtime.parent == _SHORT and not runtime.is_symlink():
        with contextlib.suppress(OSError, AlreadyRunning), contextlib.closing(FolderLock(runtime)):
            shutil.rmtree(runtime)


def _toml(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _kept_key(kept: Path, file: Path, *, seat: bool) -> str:
    """The key in `kept` when the file still knows it, else a new one. The name is SEAT or ADMIN."""
    accounts = load_seats(file).accounts if seat else load_admins(file).accounts
    account = {str(name): value for name, value in accounts.items()}.get(SEAT if seat else ADMIN)
    if account is not None and kept.is_file():
        key = kept.read_text().strip()
        if digest_of(key) == account.digest:
            return key
    if account is not None and seat:
        made = keyedit.rotate_seat(file, SEAT)
    elif account is not None:
        made = keyedit.rotate_admin(file, ADMIN)
    elif seat:
        made = keyedit.add_seat(file, SEAT, max_streams=None, expires=None)
    else:
        made = keyedit.add_admin(file, ADMIN, expires=None)
    write_private(kept, made.key.encode() + b"\n")
    return made.key


def _nothing_left(pids: list[int]) -> None:
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    if left:
        raise MoeError(f"these processes are still there: {left}", f"kill {' '.join(map(str, left))}, and report this")
