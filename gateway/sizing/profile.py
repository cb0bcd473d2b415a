"""One developer's week of agent work, which seats are sized from. Pure.

Rules:
- Tokens are of one developer in one week. `new_input_tokens` are read anew by the engine; what its cache gives is only
  in `total_tokens`.
- A file that cannot be used is a ConfigError that names the file and each key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.errors import ConfigError
from gateway.toml_lines import parse_toml, validation_error

TOKENS_MAX = 10**15
"""A week of more tokens is a mistake in a file, not a developer."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One developer's week. `active_days`: days with work, 0..7, an average may be broken; `hours_a_day`: the working
    hours of such a day, in which the work is spread; `sessions`: None = not known; `reply_tokens`: output tokens of
    one turn; `source`: where it is from, for people."""

    source: str
    output_tokens: float
    new_input_tokens: float
    total_tokens: float
    active_days: float = 5.0
    hours_a_day: float = 8.0
    sessions: float | None = None
    reply_tokens: float = 400.0

    @property
    def window_s(self) -> float:
        """Seconds of working time in the week."""
        return self.active_days * self.hours_a_day * 3600.0

    def generating_s(self, floor_tok_per_s: float, prefill_tok_per_s: float) -> float:
        """Seconds of the week in which a stream of this developer reads or writes, were each output token written at
        the floor. Source: study.txt, "2.8 hours a week"."""
        return self.output_tokens / floor_tok_per_s + self.new_input_tokens / prefill_tok_per_s


_STUDY_TOTAL = 94.6e6
_STUDY_REREAD = 234
_STUDY_NEW = 3500 / 400
_STUDY_OUTPUT = _STUDY_TOTAL / (1 + _STUDY_REREAD + _STUDY_NEW)

STUDY = Profile(
    source="the study's developer",
    output_tokens=_STUDY_OUTPUT,
    new_input_tokens=_STUDY_OUTPUT * _STUDY_NEW,
    total_tokens=_STUDY_TOTAL,
    active_days=5,
    hours_a_day=8,
    sessions=9,
)
"""388,103 output tokens and 3,395,897 new input tokens. Source: study.txt gives 94.6 million tokens, 9 sessions, 5
days, 234 tokens re-read for each one written, turns of 3,500 new tokens with replies of 400; the rest follows."""

_Tokens = Annotated[float, Field(ge=0, le=TOKENS_MAX)]


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    output_tokens: Annotated[float, Field(gt=0, le=TOKENS_MAX)]
    new_input_tokens: _Tokens
    total_tokens: _Tokens | None = None
    active_days: Annotated[float, Field(gt=0, le=7)] = STUDY.active_days
    hours_a_day: Annotated[float, Field(gt=0, le=24)] = STUDY.hours_a_day
    sessions: Annotated[float, Field(ge=0, le=TOKENS_MAX)] | None = None
    reply_tokens: Annotated[float, Field(ge=1, le=TOKENS_MAX)] = STUDY.reply_tokens

    @model_validator(mode="after")
    def _total_is_the_most(self) -> _File:
        if self.total_tokens is not None and self.total_tokens < self.output_tokens + self.new_input_tokens:
            raise ValueError("total_tokens is less than output_tokens and new_input_tokens together")
        return self


def from_toml(file: Path, raw: bytes) -> Profile:
    """The profile that a TOML file of this developer's week says. Raises ConfigError naming file, line and key."""
    text, values = parse_toml(file, raw)
    return _checked(file, text, values)


def from_values(file: Path, values: object) -> Profile:
    """The profile that a JSON file's value says. Raises ConfigError naming file and key."""
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: must be a table of numbers", f"edit {file}: it needs {_keys()}")
    return _checked(file, "", values)


def json_values(file: Path, raw: bytes) -> Any:
    """What a JSON file says; a key must not be there twice. Raises ConfigError naming file and line."""
    remedy = f"edit {file} and correct it; nothing of it was used"
    try:
        return json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text", remedy) from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}: not valid JSON: {error.msg}", remedy) from error
    except RecursionError as error:
        raise ConfigError(f"{file}: nests tables or lists too deep", remedy) from error
    except ValueError as error:
        raise ConfigError(f"{file}: {error}", remedy) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:64]!r} is there twice")
    return made


def _keys() -> str:
    return ", ".join(name for name, field in _File.model_fields.items() if field.is_required())


def _checked(file: Path, text: str, values: dict[str, Any]) -> Profile:
    try:
        found = _File.model_validate(values)
    except ValidationError as error:
        raise validation_error(file, text, error, _File) from error
    total = found.total_tokens if found.total_tokens is not None else found.output_tokens + found.new_input_tokens
    return Profile(str(file), total_tokens=total, **found.model_dump(exclude={"total_tokens"}))
