"""`python -m gateway`: the gateway process, under the daemon or alone in front of any OpenAI-compatible engine.

Under the daemon: `--settings FILE --fd N`. Alone: `--listen HOST:PORT --engine-url URL --seats FILE`.
Keys come from files, never from the command line. `--check` serves nothing: it says, as JSON, that this version can be
started with such settings.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import socket
import sys
from importlib.metadata import version
from pathlib import Path

import uvloop
from pydantic import ValidationError

from gateway import logs
from gateway.app import run
from gateway.environment import hold_environment
from gateway.errors import ConfigError, MoeError
from gateway.settings import AdmissionSettings, GatewaySettings, StaticEngine
from gateway.state import BoxState, EngineProfile


def main(argv: list[str] | None = None) -> int:
    """Run until stopped; returns the exit code (78 = configuration)."""
    args = _parser().parse_args(argv)
    log = logs.configure("gateway")
    try:
        settings = _settings(args)
        if args.check:
            own = {"version": version("moe-appliance"), "python": platform.python_version()}
            print(json.dumps({**own, "protocol": BoxState().protocol}))  # noqa: T201
            return 0
        hold_environment()
        public = socket.socket(fileno=args.fd) if args.fd is not None else _listen(args.listen)
        public.setblocking(False)
        gc.freeze()
        uvloop.run(run(settings, public, log, daemon_pipe=args.fd is not None))
    except MoeError as error:
        log.error("gateway.failed", error=error.message, remedy=error.remedy)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gateway", description=__doc__)
    parser.add_argument("--settings", type=Path, help="settings file written by the daemon")
    parser.add_argument("--fd", type=int, help="inherited listening socket")
    parser.add_argument("--check", action="store_true", help="start nothing; exit 0 when these settings can be used")
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT")
    parser.add_argument("--engine-url", help="an OpenAI-compatible engine, without /v1")
    parser.add_argument("--engine-key-file", type=Path, help="file that holds the engine's API key")
    parser.add_argument("--model", action="append", default=[], help="served model id; may be repeated")
    parser.add_argument("--seats", type=Path, default=Path("seats.toml"))
    parser.add_argument("--admins", type=Path)
    parser.add_argument("--state-dir", type=Path, default=Path())
    parser.add_argument("--streams", type=int, default=4, help="streams served at once")
    return parser


def _settings(args: argparse.Namespace) -> GatewaySettings:
    try:
        if args.settings is not None:
            return GatewaySettings.of_daemon(args.settings.read_bytes())
        if args.engine_url is None:
            raise ConfigError("no engine was named", "add --engine-url http://127.0.0.1:PORT (or --settings FILE)")
        profile = EngineProfile(name="static", floor_tok_per_s=40.0, cold_tokens=12_000, streams=args.streams)
        engine = StaticEngine(
            url=args.engine_url, key_file=args.engine_key_file, models=tuple(args.model), profile=profile
        )
        return GatewaySettings(
            seats_file=args.seats,
            admins_file=args.admins,
            state_dir=args.state_dir,
            engine=engine,
            admission=AdmissionSettings(streams=args.streams),
        )
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"the gateway's settings cannot be used: {error}", "correct the option named above"
        ) from error


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server((host.strip("[]"), int(port)), backlog=1024)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot listen on {address}: {error}", "choose another --listen HOST:PORT") from error


if __name__ == "__main__":
    sys.exit(main())
