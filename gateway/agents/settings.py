"""What connecting an agent takes: the box as the agent sees it, variables, a file, commands. Pure.

Rules:
- `KEY` in a value stands for the key of the seat: printed as it is, put in only when a file is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Any

VARIABLE = "MOE_API_KEY"
"""Environment variable in which a developer keeps the key of the seat."""
KEY = f"${VARIABLE}"
"""Stands for the key wherever a file or a variable must hold the key itself."""

KeyPath = tuple[str | int, ...]


class Format(StrEnum):
    """How a settings file is written."""

    JSON = "json"
    TOML = "toml"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Target:
    """The box as agents see it: `url` without a path and without a slash at its end, `context_tokens` one stream's
    window, None when it is not known; `seat` whose key is used, None when that is not known either."""

    url: str
    model: str
    context_tokens: int | None
    seat: str | None = None

    @property
    def window(self) -> int:
        """The context length, for agents that must be told it. Raises ValueError when it is not known."""
        if self.context_tokens is None:
            raise ValueError("the context length is not known")
        return self.context_tokens

    @property
    def output_tokens(self) -> int:
        """Longest answer that an agent should plan for. Source: 32,768 of 262,144 worked with opencode and pi; a
        quarter at most leaves room for the prompt in a small window."""
        return min(32_768, self.window // 4)

    @property
    def openai_url(self) -> str:
        """What clients of the OpenAI forms call the base URL."""
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file is: `inside` the folder that `variable` names, else the one under the home folder."""

    variable: str | None
    folder: str
    inside: str

    def path(self, environ: Mapping[str, str], home: str) -> PurePath:
        """The file's path for this environment; `~/` in the variable is the home folder."""
        named = environ.get(self.variable, "") if self.variable is not None else ""
        if not named:
            return PurePath(home) / self.folder / self.inside
        return (PurePath(home) / named[2:] if named.startswith("~/") else PurePath(named)) / self.inside

    @property
    def shown(self) -> str:
        """Where it is for most people."""
        return f"~/{PurePath(self.folder) / self.inside}"


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file of the agent's own and the `values` to merge into it. `kept`: settings whose value stays when it is one
    of those given, or whatever it is when none is given, because the agent works with it as well."""

    place: Place
    format: Format
    values: Mapping[str, Any]
    kept: Mapping[KeyPath, frozenset[str]] = field(default_factory=dict)

    @property
    def holds_key(self) -> bool:
        """Whether the file must hold the key itself."""
        return _has(self.values, KEY)


def _has(value: Any, wanted: str) -> bool:
    if isinstance(value, Mapping):
        return any(_has(inner, wanted) for inner in value.values())
    if isinstance(value, list):
        return any(_has(inner, wanted) for inner in value)
    return bool(value == wanted)


def filled(value: Any, key: str) -> Any:
    """The same values with the key in the place of `KEY`."""
    if isinstance(value, Mapping):
        return {name: filled(inner, key) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, key) for inner in value]
    return key if value == KEY else value


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that one agent needs. `environment`: variables besides MOE_API_KEY; `setup`: a command to run once;
    `start`: the command that starts it, or `code` for a library; `notes`: what to know, a sentence or two each."""

    environment: Mapping[str, str] = field(default_factory=dict)
    file: SettingsFile | None = None
    setup: str | None = None
    start: str | None = None
    code: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """One program. `needs_context`: it must be told the context length; `prompt_tokens`: its first prompt, about.

    Source of prompt_tokens: bytes of the first request measured with the real program, 4 bytes a token.
    """

    name: str
    title: str
    settings: Callable[[Target], Settings]
    prompt_tokens: int
    needs_context: bool = False
