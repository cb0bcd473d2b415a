"""The box as an agent shall see it: address, model, context length. Touches the box's sockets, or its public URL.

What was given by hand wins over what the box says, and a box that says nothing is then no error.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
import typer

from appliance.cli import show
from appliance.cli.box import ANSWER_S, Box
from appliance.config import public_url
from appliance.errors import MoeError, NotRunning
from gateway.agents.settings import VARIABLE, Agent, Target
from gateway.agents.shown import without_credentials

BY_HAND = "--model MODEL --context TOKENS"
"""What to add to the command when the box cannot be asked."""


def from_box(
    box: Box, program: Agent, seat: str, model: str | None, context: int | None
) -> tuple[Target, tuple[str, ...]]:
    """The box that runs here, and what to know about its address."""
    known = model is not None and (context is not None or not program.needs_context)
    try:
        view = show.fetch(box)
    except NotRunning as error:
        if not known:
            remedy = f"{error.remedy}   or give what it will serve: {BY_HAND}"
            raise NotRunning(f"model and context length are not known: {error.message}", remedy) from error
        url, models, tokens = public_url(box.config), tuple[str, ...](), None
    else:
        url, models = view.public_url, view.engine.models
        tokens = None if view.engine.context_tokens.value is None else int(view.engine.context_tokens.value)
        if not models and not known:
            why = f"the box has no model loaded, the engine is {view.engine.phase}"
            raise MoeError(why, f"moe-appliance status   says why; or give what it will serve: {BY_HAND}")
    notes = list(_reach(url))
    if models and model is not None and model not in models:
        if not known:
            raise _not_served(model, models)
        notes.append(f"At present the box serves {', '.join(models)}, not {model}.")
    elif len(models) > 1 and model is None:
        notes.append(f"The box serves {', '.join(models)}; --model chooses another one than {models[0]}.")
    url = _typed(url)
    return _target(url, model or models[0], context or tokens, seat, program), tuple(notes)


def from_url(
    url: str, key: str | None, program: Agent, seat: str | None, model: str | None, context: int | None
) -> tuple[Target, tuple[str, ...]]:
    """The box at a URL, as it shows itself to the key's seat; without a key nothing is asked."""
    if key is None:
        return _target(url, model or "", context, seat, program), ()
    rows = _models(url, key)
    row = next((row for row in rows if row["id"] == model), None) if model is not None else rows[0]
    if row is None:
        raise _not_served(str(model), [row["id"] for row in rows])
    return _target(url, row["id"], context or row["max_model_len"], seat, program), ()


def _not_served(model: str, models: Sequence[str]) -> MoeError:
    said = f"the box serves {', '.join(models)}, not {model}, whose context length is not known"
    return MoeError(said, f"--model {models[0]}   or say it: --context TOKENS")


def _target(url: str, model: str, tokens: int | None, seat: str | None, program: Agent) -> Target:
    if tokens is None and program.needs_context:
        raise MoeError(
            f"the box does not say how long a context {model} has, and {program.title} must be told",
            "add --context TOKENS   (and context_tokens to the engine's settings on the box)",
        )
    if not model.isprintable():
        said = f"the model's name {model!a} has characters that cannot be printed"
        raise MoeError(said, "--model MODEL   with the name that the box serves it under; its engine's settings say it")
    return Target(url, model, tokens, seat)


def _models(url: str, key: str) -> list[dict[str, Any]]:
    """The rows of GET /v1/models. Raises MoeError when there is none."""
    asked = f"{url}/v1/models"
    try:
        answer = httpx.get(asked, headers={"Authorization": f"Bearer {key}"}, timeout=ANSWER_S)
    except httpx.HTTPError as error:
        said = f"{url} does not answer: {str(error) or type(error).__name__}"
        raise NotRunning(said, f"curl {url}/health   shows whether the box is reached") from error
    try:
        body = answer.json()
    except ValueError:
        body = None
    if answer.status_code in (401, 403):
        error_ = body.get("error") if isinstance(body, dict) else None
        said = error_.get("message", "") if isinstance(error_, dict) else ""
        raise MoeError(
            f"{url} refuses the key with {answer.status_code}: {said or 'no reason given'}",
            f"correct {VARIABLE}; a lost key is replaced on the box: moe-appliance seats rotate NAME",
        )
    rows = body.get("data") if isinstance(body, dict) else None
    found = [row for row in rows or () if isinstance(row, dict) and isinstance(row.get("id"), str)]
    if answer.status_code != 200 or rows is None:
        raise MoeError(f"{asked} answers {answer.status_code} and no list of models", "is this the URL of the box?")
    if not found:
        raise MoeError("the box has no model loaded", f"wait until it serves, or give what it will: {BY_HAND}")
    return [row | {"max_model_len": _tokens(row.get("max_model_len"))} for row in found]


def _tokens(said: object) -> int | None:
    return said if isinstance(said, int) and not isinstance(said, bool) and said > 0 else None


def origin(url: str) -> str:
    """A URL as the box has it: without a slash or /v1 at its end. Raises typer.BadParameter."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, 0
    if (
        parts.scheme not in ("http", "https")
        or not host
        or port == 0
        or "@" in parts.netloc
        or set(url) & set(" ?#\"'")
    ):
        raise typer.BadParameter(f"{without_credentials(url)!r} is none; write http://BOX:8000", param_hint="--url")
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise typer.BadParameter(f"{url!r} has a path; write {parts.scheme}://{parts.netloc}", param_hint="--url")
    return f"{parts.scheme}://{parts.netloc}"


def _address(url: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(urlsplit(url).hostname or "")
    except ValueError:
        return None


def _typed(url: str) -> str:
    """The URL as it can be typed elsewhere: an address that means all of them becomes the host's name."""
    address = _address(url)
    if address is None or not address.is_unspecified:
        return url
    parts = urlsplit(url)
    return f"{parts.scheme}://{socket.gethostname()}" + (f":{parts.port}" if parts.port else "")


def _reach(url: str) -> Iterator[str]:
    """What to know about the address."""
    address, parts = _address(url), urlsplit(url)
    if parts.hostname == "localhost" or (address is not None and address.is_loopback):
        yield (
            f"{url} is reached from the box itself only. For others: put a proxy with TLS in front and set "
            f"`public_url`, or forward the port: ssh -N -L {parts.port or 80}:{parts.netloc} BOX"
        )
    elif address is not None and address.is_unspecified:
        yield f"The box listens on all its addresses; {_typed(url)} is its name. `public_url` sets what is said here."
