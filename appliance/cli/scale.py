"""`moe-appliance scale`: what several boxes behind one address need. Touches FILE and the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from appliance.cli.context import say
from appliance.errors import MoeError
from gateway.files import replace_file

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Several boxes behind one address.")

BoxOption = Annotated[
    list[str], typer.Option("--box", metavar="URL", help="A box, as the balancer reaches it; at least two.")
]
ListenOption = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="Where. Default 0.0.0.0:443 with --tls-cert, 127.0.0.1:8080."),
]
CertOption = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="The .pem with chain and key, there. Default: no TLS.")
]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it. Default: print it.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="FILE may exist.")]


@app.command()
def haproxy(
    box: BoxOption,
    listen: ListenOption = None,
    tls_cert: CertOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Make the haproxy.cfg of a balancer: each seat has its box, and another one while that does not serve."""
    from appliance import addresses
    from appliance.scale.haproxy import box_address, configuration, fit_path, for_each_box

    if len(box) < 2:
        raise typer.BadParameter("name at least two boxes", param_hint="--box")
    listen = listen or ("0.0.0.0:443" if tls_cert else "127.0.0.1:8080")
    certificate = _read("--tls-cert", fit_path, tls_cert) if tls_cert is not None else ""
    boxes = [_read("--box", box_address, url) for url in box]
    listen = _read("--listen", addresses.listening, listen)
    try:
        text = configuration(boxes, listen=listen, certificate=certificate)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--box") from error
    if out is None:
        print(text, end="")
    else:
        _write(out, text, overwrite)
    say(*_notes(out, listen, bool(certificate), [found.place for found in boxes if not found.tls]))
    say("In appliance.toml of each box:", *for_each_box("https" if certificate else "http").splitlines())


def _read(option: str, read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}", param_hint=option) from error


def _write(out: Path, text: str, overwrite: bool) -> None:
    if out.exists() and not overwrite:
        raise MoeError(f"{out} exists", "--overwrite   replaces it; or name another --out FILE")
    try:
        replace_file(out, text.encode(), 0o644)
    except OSError as error:
        raise MoeError(f"{out} cannot be written: {error.strerror}", f"ls -ld {out.parent}   shows why") from error


def _notes(out: Path | None, listen: str, tls: bool, plain: list[str]) -> list[str]:
    """What to do with the file, and where keys can be read on their way."""
    notes = [] if out is None else [f"{out} is written. Check it where it will run: haproxy -c -f {out}"]
    if not tls and not _is_loopback(listen):
        notes.append(f"Without --tls-cert, who listens on the way to {listen} reads keys.")
    exposed = [place for place in plain if not _is_loopback(place)]
    if exposed:
        notes.append(f"Keys go to {', '.join(exposed)} in the clear: let that be a network of their own, or use https.")
    return notes


def _is_loopback(place: str) -> bool:
    host = place.rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")
