"""The tables `[prewarm]` and `[[prefix]]` of appliance.toml. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

MIB = 1024 * 1024


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PrewarmSettings(_Table):
    """`[prewarm]`: what is read into the engine while nobody uses it."""

    model_config = ConfigDict(strict=True)

    enabled: bool = True
    """Read the prefixes of `[[prefix]]` into the idle engine after its start, and after a restart of the engine also
    the conversations of the last 10 minutes. Whoever comes meanwhile goes first. Default true."""
    bodies_bytes: Annotated[int, Field(ge=0)] = 64 * MIB
    """Bytes of request bodies that are kept in memory for that, the latest of each run; never on disk. 0 = none is
    kept: only prefixes with a `file` are read then. Default 67108864 (64 MiB)."""


def _plain_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ValueError("must be 1 to 64 of letters, digits, `.`, `_` and `-`, a letter or digit first")
    return name


class PrefixSettings(_Table):
    """`[[prefix]]`: a beginning that many requests share, read into the engine before they come. One of `file` and
    `seat` must be given."""

    name: Annotated[str, AfterValidator(_plain_name)]
    """How the page calls it: letters, digits, `.`, `_` and `-`, at most 64. Each name once."""
    file: Path | None = None
    """A JSON file with a request body; what it begins with is shared. Looked at again at a reload. Default none."""
    path: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"] = "/v1/chat/completions"
    """The request path that the body of `file` is for. Default "/v1/chat/completions"."""
    seat: Annotated[str, Field(min_length=1)] | None = None
    """The tools and system texts that the latest requests of this seat have in common. They are known once the seat
    has sent something to this gateway, so not right after a boot. Default none."""

    @model_validator(mode="after")
    def _one_source(self) -> PrefixSettings:
        if (self.file is None) is (self.seat is None):
            raise ValueError("needs one of file and seat" + ("" if self.file is None else ", and has both"))
        if self.file is not None and self.file == Path():
            raise ValueError("file is empty")
        if self.seat is not None and self.path != "/v1/chat/completions":
            raise ValueError("path goes with file; the requests of a seat have their own")
        return self


def _named_once(prefixes: tuple[PrefixSettings, ...]) -> tuple[PrefixSettings, ...]:
    names = [prefix.name for prefix in prefixes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"has two of the name {twice[0]}")
    return prefixes


Prefixes = Annotated[tuple[PrefixSettings, ...], AfterValidator(_named_once)]
"""All tables `[[prefix]]`, in the order of the file."""
