"""How fast the pod writes and reads: the study's figures, or those of a file. Pure.

Rules:
- Figures of a box are one JSON object: `ms_per_token` (a list: milliseconds of one token of each stream when 1, 2, 3 ..
  streams write), `prefill` with `a` and `b` (seconds to read x thousand tokens: a x + b x^2), and, if they were
  measured, `reading_share` (how much of that speed is left while a prompt is read) and `reload_tok_per_s` (what comes
  back from host RAM).
- A file that cannot be used is a ConfigError that names the file and each key.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gateway.errors import ConfigError
from gateway.toml_lines import validation_error

READY_S = 0.3
"""From a ticket to the engine's queue of prompts. Source: facts/simulation-model.md section 1."""
STREAMS_MAX = 256
_MS_MAX = 1e5
_EXTRA_MS = 3.0


@dataclass(frozen=True, slots=True)
class Pace:
    """`ms_per_token[n - 1]`: milliseconds of one token of each of n streams; above the last, each stream more costs
    what the last one did. `a`, `b`: seconds to read x thousand tokens are a x + b x^2. `reading_share`: the share of
    their speed that replies keep while a prompt is read. `reload_tok_per_s`: what comes back from host RAM.
    Source: facts/simulation-model.md section 1."""

    ms_per_token: tuple[float, ...] = (7.9, 11.0, 14.0, 17.0, 19.0, 21.0, 24.0, 27.0)
    a: float = 0.11397
    b: float = 2.284e-4
    reading_share: float = 0.05
    reload_tok_per_s: float = 200_000.0
    source: str = "the study"

    def tok_per_s(self, streams: int) -> float:
        """The pace of each of so many streams, at least one, with nothing being read."""
        known = self.ms_per_token
        if streams <= len(known):
            return 1000.0 / known[streams - 1]
        more_ms = known[-1] - known[-2] if len(known) > 1 else _EXTRA_MS
        return 1000.0 / (known[-1] + more_ms * (streams - len(known)))

    def prefill_s(self, prompt_tokens: float, uncached_tokens: float) -> float:
        """Seconds to read the last `uncached_tokens` of a prompt."""
        end, begin = prompt_tokens / 1000, (prompt_tokens - uncached_tokens) / 1000
        return self.a * (end - begin) + self.b * (end * end - begin * begin)


STUDY = Pace()

_Ms = Annotated[float, Field(gt=0, le=_MS_MAX)]


class _Prefill(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    a: Annotated[float, Field(gt=0, le=1e4)]
    b: Annotated[float, Field(ge=0, le=1e4)] = 0.0


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    ms_per_token: Annotated[list[_Ms], Field(min_length=1, max_length=STREAMS_MAX)]
    prefill: _Prefill
    reading_share: Annotated[float, Field(gt=0, le=1)] = STUDY.reading_share
    reload_tok_per_s: Annotated[float, Field(ge=1, le=1e12)] = STUDY.reload_tok_per_s

    @field_validator("ms_per_token")
    @classmethod
    def _no_stream_makes_the_others_faster(cls, found: list[float]) -> list[float]:
        if any(more < fewer for fewer, more in pairwise(found)):
            raise ValueError(
                "more streams cannot be faster each than fewer: write the milliseconds of 1, 2, 3 .. streams"
            )
        return found


def from_values(file: Path, values: object) -> Pace:
    """The pace that a JSON file's value says. Raises ConfigError naming file and key."""
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: must be a table", f"edit {file}: it needs ms_per_token and prefill")
    try:
        found = _File.model_validate(values)
    except ValidationError as error:
        raise validation_error(file, "", error, _File) from error
    return Pace(
        tuple(found.ms_per_token),
        found.prefill.a,
        found.prefill.b,
        found.reading_share,
        found.reload_tok_per_s,
        str(file),
    )
