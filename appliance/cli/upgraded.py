"""What the package does after an upgrade: the gateway of the new version takes over, the engine goes on.

Touches the daemon's socket. Hidden: an operator needs it only when the package says so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx
import typer

from appliance import __version__
from appliance.cli.box import Box
from appliance.errors import MoeError, NotRunning
from appliance.gatewayproc import FALLBACK, FIRST_S, STOP_MARGIN_S, UNBORN_MAX, YOUNG_DELAY_S
from appliance.printable import printable
from gateway.state import BoxState

RESTART = "sudo systemctl restart moe-appliance"
LOOK_S = 0.2


def register(app: typer.Typer) -> None:
    """Add the verb to the root."""
    app.command(hidden=True)(upgraded)


def upgraded(ctx: typer.Context) -> None:
    """After an upgrade: let the new version's gateway take over. Says what has to be restarted by hand, and when."""
    box: Box = ctx.obj
    try:
        state = _state(box)
    except NotRunning:
        print("moe-appliance does not run: there is nothing to take over.")
        return
    if state.get("protocol") != BoxState().protocol:
        _say_restart("This version's gateway does not fit the daemon that runs.", state)
        return
    asked = box.daemon("POST", "/replace-gateway")
    said = _json(asked)
    if asked.status_code == httpx.codes.OK:
        if state.get("version") == __version__:
            print(f"{said['said']}.")
        else:
            _say_restart(f"{said['said']}.", state)
        return
    if asked.status_code != httpx.codes.ACCEPTED:
        raise MoeError(str(said.get("error", f"answered {asked.status_code}")), str(said.get("remedy", RESTART)))
    print(f"{said['said']}.")
    _await(box, state, str(said["version"]), float(said["limit_s"]))
    _say_restart(f"The gateway of version {printable(str(said['version']), 40)} answers.", state)


def _await(box: Box, before: Mapping[str, Any], version: str, limit_s: float) -> None:
    """Until another gateway process of `version` answers. Raises MoeError when the daemon went back to its own."""
    until_s = time.monotonic() + limit_s + STOP_MARGIN_S + UNBORN_MAX * (FIRST_S + YOUNG_DELAY_S)
    while time.monotonic() < until_s:
        time.sleep(LOOK_S)
        state = _state(box)
        gateway, failed = state["gateway"], [found for found in state["findings"] if found["id"] == FALLBACK]
        if failed and gateway["version"] != version:
            raise MoeError(failed[0]["observed"], "journalctl -u moe-appliance -n 50")
        if gateway["pid"] not in (None, before["gateway"]["pid"]) and gateway["version"] == version and _lives(box):
            return
    raise MoeError(f"no gateway of version {version} answers yet", "moe-appliance status")


def _lives(box: Box) -> bool:
    try:
        return box.gateway("GET", "/live").is_success
    except NotRunning:
        return False


def _state(box: Box) -> dict[str, Any]:
    """As the daemon wrote it: what an older one does not say must not be made up."""
    return _json(box.daemon("GET", "/state"))


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _say_restart(done: str, state: Mapping[str, Any]) -> None:
    """What goes on as it was, and how to have all of it new."""
    load_s = state.get("engine", {}).get("load_s")
    took = f", {load_s:.0f} s the last time" if isinstance(load_s, int | float) else ""
    version = printable(str(state.get("version", "unknown")), 40)
    print(f"{done} Daemon and engine go on as version {version}.")
    print(f"To have them new, at a quiet time, since the engine loads again{took}:  {RESTART}")
