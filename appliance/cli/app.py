"""The root command: runs a verb, and prints errors with their remedy.

Touches standard output and error. What cannot be written to standard output is an error as well: one line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from appliance import __version__
from appliance.cli.box import Box
from appliance.cli.verbs import Root
from appliance.errors import MoeError

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

app = typer.Typer(
    name="moe-appliance",
    cls=Root,
    help="Turns one box with two GPUs and a lot of RAM into a coding-agent server for a team.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="Configuration file. Default: $MOE_APPLIANCE_CONFIG, ./appliance.toml, then /etc's. The package's "
            "command takes /etc's first, for root and for who may look into /etc/moe-appliance.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the verb."""
    ctx.obj = Box(config, dict(os.environ))


def run() -> int:
    """Run the verb of the command line; the exit code."""
    try:
        try:
            app()
        except SystemExit as done:
            _flush()
            return done.code if isinstance(done.code, int) else int(done.code is not None)
        return 0
    except KeyboardInterrupt:
        return 130
    except MoeError as error:
        _show(error)
        return error.exit_code
    except BrokenPipeError:  # whoever read it has enough
        return 1
    except OSError as error:
        # Unbuffered, nothing is left that could fail again; errors of files that we open have their name.
        if not _stdout_fails() and (error.filename is not None or error.errno not in _WRITE_ERRORS):
            raise
        _show(MoeError(f"standard output cannot be written: {error.strerror}", "df -h   or write it elsewhere"))
        return 1
    finally:
        if _stdout_fails():
            _give_up_stdout()


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _stdout_fails() -> bool:
    """Whether what was printed is still unwritten and cannot be written."""
    try:
        _flush()
    except (OSError, ValueError):
        return True
    return False


def _give_up_stdout() -> None:
    """Let the interpreter's own flush at its end find a place for what is left, and be quiet."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _show(error: MoeError) -> None:
    with contextlib.suppress(OSError):
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print("[bold red]error:[/] ", end="")
        console.print(error.message, markup=False)
        console.print("[bold]remedy:[/] ", end="")
        console.print(error.remedy, markup=False)
