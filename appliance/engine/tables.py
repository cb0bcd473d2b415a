"""What the tables that `[engine]` may be have in common. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_env(env: dict[str, str]) -> None:
    """Raises ValueError when one of the names is not a variable's."""
    bad = [name for name in env if not _ENV_NAME.fullmatch(name)]
    if bad:
        raise ValueError(f"env: {bad[0]!r} is not a variable's name")


def _path_of(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("is empty; leave it out for the default")
    if "\0" in str(value):
        raise ValueError("holds a NUL")
    return value


def _can_be_asked(path: str) -> str:
    if not path.startswith("/") or path.startswith("//") or not path.isprintable():  # // would begin a host
        raise ValueError("must be a path that begins with one /, without control characters")
    return path


PathSetting: TypeAlias = Annotated[Path, BeforeValidator(_path_of)]
"""A path; the empty text would be the current folder, and no system call takes a NUL."""
RequestPath: TypeAlias = Annotated[str, AfterValidator(_can_be_asked)]
"""A path that a request to the engine can carry."""


class Table(BaseModel):
    """Unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Declared(Table):
    """What an engine that we did not measure is taken to be able to do."""

    name: str = ""
    """How the page and `status` call the engine. Default: the served model, else where it comes from."""
    served_model: Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f\x7f]+$")] | None = None
    """The model id to ask the engine for. Default: none, the first one that it lists."""
    context_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Longest prompt and answer together, tokens. Default: none, as the engine says."""
    floor_tok_per_s: Annotated[float, Field(strict=True, gt=0)] = 40.0
    """The pace promised to each stream, output tokens a second. Default 40."""
    cold_tokens: Annotated[int, Field(strict=True, ge=1)] = 12_000
    """A prompt with more uncached tokens than this is cold, unless it is predicted to be read in less than
    `[admission] short_s`. Default 12000."""
    streams: Annotated[int, Field(strict=True, ge=1, le=256)] = 4
    """Streams that the engine may run at once. Default 4."""
    kv_tokens: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Tokens that the engine's prefix cache holds, of all streams together. Default: none, as the engine's metrics say
    (vLLM), else learned from what turns out to be lost."""
