"""Every log line has a name from the fixed list and no field that could hold a secret or a prompt."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from gateway.logs import EVENTS
from gateway.outcome import Outcome

ROOT = Path(__file__).parents[1]
METHODS = {"debug", "info", "warning", "error", "critical", "exception", "log", "msg"}
FORBIDDEN = {"key", "keys", "token", "body", "raw", "prompt", "messages", "content", "authorization", "headers"}


def is_log(node: ast.expr) -> bool:
    """True for `log`, `self._log`, `core.log`, `self._pages.log`, `log.bind(...)`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.lstrip("_") in ("log", "logger")
        case ast.Call(func=ast.Attribute(value=inner, attr="bind" | "new")):
            return is_log(inner)
    return False


def calls() -> Iterator[tuple[str, ast.Call, bool]]:
    """(where, call, whether it is a level and then the name) of each log call in the sources."""
    for folder in ("appliance", "gateway"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(func=ast.Attribute(value=log, attr=method)) if method in METHODS and is_log(log):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", node, method == "log"


def event_names(node: ast.expr) -> list[str]:
    """The names that an argument may be; none when it is not plain text."""
    match node:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.IfExp(body=one, orelse=other):
            return event_names(one) + event_names(other)
    return []


def test_there_are_calls_to_look_at() -> None:
    assert len(list(calls())) >= len(EVENTS) - 2


def test_every_name_is_on_the_list_and_every_name_on_the_list_is_used() -> None:
    used: set[str] = set()
    for where, call, levelled in calls():
        assert len(call.args) == (2 if levelled else 1), f"{where}: an event name and fields, nothing else"
        names = event_names(call.args[-1])
        assert names, f"{where}: the event name must be plain text"
        assert set(names) <= EVENTS, f"{where}: {names} is not in gateway.logs.EVENTS"
        used |= set(names)
    assert used == EVENTS


def test_no_field_is_named_as_a_secret_or_a_prompt_would_be() -> None:
    for where, call, _ in calls():
        bad = {keyword.arg for keyword in call.keywords} & FORBIDDEN
        assert not bad, f"{where}: {bad}"
    assert not {field.name for field in fields(Outcome)} & FORBIDDEN


def test_names_are_dotted_words() -> None:
    assert all(name.replace("_", "").replace(".", "").isalpha() and name.count(".") == 1 for name in EVENTS)
