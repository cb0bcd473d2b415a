"""Settings files in YAML. Pure.

The text is edited where a change is, found by the marks of the nodes; all other bytes stay. Only block style takes a
new table, and only block style and lists in brackets take anything new; edit.py refuses what does not come out right.
"""

from __future__ import annotations

import io
import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from gateway.agents.merge import Change
from gateway.agents.parse_error import Unreadable

_NO_WRAP = 1_000_000


class Yaml:
    """The format; see edit.Codec."""

    NAME = "YAML"

    @staticmethod
    def parse(text: str) -> Any:
        """The values."""
        try:
            return _yaml().load(text)
        except YAMLError as error:
            raise _unreadable(error) from error
        except RecursionError as error:
            raise Unreadable("nests lists or tables too deep", None) from error
        except (ValueError, OverflowError) as error:  # a number, date or character that is none
            raise Unreadable("not valid YAML: a value cannot be read", None) from error

    @staticmethod
    def edited(text: str, changes: tuple[Change, ...]) -> str:
        """The text after the changes."""
        for change in changes:
            text = _changed(text, change)
        return text

    @staticmethod
    def comments(text: str) -> list[str]:
        """The lines that are nothing but a comment."""
        return [line.strip() for line in text.split("\n") if line.lstrip().startswith("#")]


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.width = _NO_WRAP
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared by its first value, None
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml


def _unreadable(error: YAMLError) -> Unreadable:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    said = error.problem if isinstance(error, MarkedYAMLError) else None
    line = mark.line + 1 if mark is not None else None
    return Unreadable(f"not valid YAML: {said or 'it cannot be read'}", line)


def _changed(text: str, change: Change) -> str:
    try:
        node = _yaml().compose(text)
    except YAMLError as error:
        raise _unreadable(error) from error
    if node is None:
        text += "" if not text or text.endswith("\n") else "\n"
        return text + _block({change.path[0]: change.new}, 0) + "\n"
    key = None
    for part in change.path[:-1]:
        key, node = _child(node, part)
    last, there = _child(node, change.path[-1])
    if there is not None:
        return _replaced(text, last, there, change.new)
    if key is not None and not node.value and isinstance(change.new, dict | list):
        value = [change.new] if isinstance(node, SequenceNode) else {change.path[-1]: change.new}
        return _filled(text, key, node, value)
    return _added(text, node, change.path[-1], change.new)


def _child(node: Any, part: str | int) -> tuple[Any, Any]:
    """The nodes of a key and of its value, or None and that of an element; None when there is none."""
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == part), (None, None))
    if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
        return None, node.value[part]
    return None, None


def _replaced(text: str, key: Any, node: Any, value: Any) -> str:
    if not isinstance(node, ScalarNode) or node.style in ("|", ">"):
        raise Unreadable("cannot be edited", None)
    start, end = node.start_mark.index, node.end_mark.index
    if key is not None and (start == end or isinstance(value, dict | list)):  # it is null
        return _filled(text, key, node, value)
    return f"{text[:start]}{_scalar(value)}{text[end:]}"


def _filled(text: str, key: Any, node: Any, value: Any) -> str:
    """The text with a value behind a key that has none, or has null or an empty list or table."""
    start, end = node.start_mark.index, node.end_mark.index
    colon = text.index(":", key.end_mark.index) + 1
    rest = text[colon:] if start == end else text[end:]
    if not isinstance(value, dict | list):
        return f"{text[:colon]} {_scalar(value)}{rest}"
    line, newline, below = rest.partition("\n")
    return f"{text[:colon]}{line.rstrip()}\n{_block(value, key.start_mark.column + 2)}{newline}{below}"


def _added(text: str, node: Any, part: str | int, value: Any) -> str:
    """The text with a new key or element behind the last one of `node`."""
    if not isinstance(node, MappingNode | SequenceNode):
        raise Unreadable("cannot be edited", None)
    if node.flow_style or not node.value:
        return _added_in_brackets(text, node, value)
    mapping = isinstance(node, MappingNode)
    end = _end(text, node)
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    block = _block({part: value} if mapping else [value], node.start_mark.column)
    return f"{text[:line_end]}\n{block}{text[line_end:]}"


def _added_in_brackets(text: str, node: Any, value: Any) -> str:
    close = node.end_mark.index - 1
    if isinstance(value, dict | list) or not isinstance(node, SequenceNode) or text[close] != "]":
        raise Unreadable("cannot be edited", None)
    before = text[:close].rstrip()
    comma = "" if not node.value or before.endswith(",") else ", "
    return f"{before}{comma}{_scalar(value)}{text[close:]}"


def _end(text: str, node: Any) -> int:
    """Where the last value of a node ends; the mark of a block is at what follows it, past comments."""
    if isinstance(node, MappingNode | SequenceNode) and not node.flow_style and node.value:
        last = node.value[-1]
        if isinstance(node, MappingNode):
            key, value = last
            empty = value.start_mark.index == value.end_mark.index  # its mark may be lines below
            return _end(text, key if empty else value)
        return _end(text, last)
    end: int = node.end_mark.index
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        return len(text[:end].rstrip())
    return end


def _block(value: Any, column: int) -> str:
    out = io.StringIO()
    _yaml().dump(value, out)
    shift = _list_shift(value)
    return "\n".join(" " * column + line[shift:] for line in out.getvalue().removesuffix("\n").split("\n"))


def _list_shift(value: Any) -> int:
    """So far are the elements of a list moved to the right by the writer."""
    return 2 if isinstance(value, list) else 0


def _scalar(value: Any) -> str:
    return re.sub(r"^k:\s+", "", _block({"k": value}, 0))
