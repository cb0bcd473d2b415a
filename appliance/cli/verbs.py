"""The root's verbs, each of them imported when it is asked for. Touches nothing but Python's imports.

Rule: a verb pays for its own imports; only who wants to know all of them (help, man page) pays for all.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

MODULES = {
    "run": "run",
    "check": "run",
    "stop": "operator",
    "reload": "operator",
    "drain": "operator",
    "pause": "operator",
    "resume": "operator",
    "restart": "operator",
    "start-engine": "operator",
    "events": "events",
    "doctor": "doctor",
    "status": "show",
    "connect": "connect",
    "demo": "demo",
    "preflight": "preflight",
    "usage": "usage",
    "backup": "backup",
    "restore": "backup",
    "upgraded": "upgraded",
    "seats": "seats",
    "admins": "admins",
    "checkpoint": "checkpoint",
    "plan": "plan",
    "engine": "engine",
    "scale": "scale",
    "simulate": "simulate",
}
"""Every verb, and its module in this folder, in the order of the help."""
GROUPS = {
    "seats": "Who may use the box.",
    "admins": "Who may see and change the box over the network.",
    "checkpoint": "What a checkpoint holds, and its weights onto this machine.",
    "plan": "Which experts sit in host RAM: make, check, show, compare, translate.",
    "engine": "The environments that engines run in, and what would run in them.",
    "scale": "Several boxes behind one address.",
}
"""The verbs that have verbs of their own."""


class Verbs(MutableMapping[str, Any]):
    """Name -> command, as a group of Typer's keeps them. What Typer adds itself is kept beside ours."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made and name in MODULES:
            self._made |= commands_of(name)
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"{name}: verbs stay")

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES | self._made)

    def __len__(self) -> int:
        return len(MODULES | self._made)


class Root(TyperGroup):
    """The root command."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = Verbs()


def commands_of(name: str) -> dict[str, Any]:
    """The verb, and those that share its module."""
    module = import_module(f"appliance.cli.{MODULES[name]}")
    made = typer.Typer()
    made.callback()(_nothing)  # a group, also when there is one verb only
    if name in GROUPS:
        made.add_typer(module.app, name=name, help=GROUPS[name])
    else:
        module.register(made)
    commands: dict[str, Any] = get_command(made).commands  # type: ignore[attr-defined]
    return commands


def _nothing() -> None:
    """Options before the verb are the root's."""
