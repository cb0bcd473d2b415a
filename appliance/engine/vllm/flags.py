"""What a command of vLLM is made of: flags and variables, each with its reason and where that is from. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Build: TypeAlias = Literal["pinned", "operator"]
"""Which vLLM knows a flag and takes its value: the release that the environments pin, or only a build of the
operator's."""
SINCE: Mapping[str, tuple[int, ...]] = {"--max-num-active-seqs": (0, 32)}
"""Flags that older releases do not have. Source: the parser of 0.26.0; 0.32.0, engine/arg_utils.py."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag; `values` is empty for a switch. `why`: a sentence for people; `source`: where that is known from."""

    name: str
    values: tuple[str, ...]
    why: str
    source: str
    build: Build = "pinned"

    @property
    def words(self) -> tuple[str, ...]:
        """As it stands in argv."""
        return (self.name, *self.values)


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One variable of the engine's environment."""

    name: str
    value: str
    why: str
    source: str


def known_to(flag: str, version: tuple[int, ...]) -> bool:
    """Whether that release of vLLM has the flag."""
    return version >= SINCE.get(flag, ())


def capture_sizes(streams: int, speculative: int) -> tuple[int, ...]:
    """Numbers of tokens in a step for which vLLM records CUDA graphs, ascending; a step with more runs without one, at
    a third of the pace. Each stream puts 1 + `speculative` tokens into a step, so that the largest size is `streams`
    times that: every number of streams up to 8 has its own size, above that every fourth, above 64 every sixteenth.

    Source: vLLM pads a step to the next size (config/vllm.py); a list that ends too early cost a factor of 2.95 on the
    public two-card recipe (its docs/ROOT-CAUSES.md).
    """
    each = 1 + speculative
    counts = {n for n in (*range(1, 8), *range(8, 64, 4), *range(64, streams, 16)) if n < streams} | {streams}
    alone = {size for size in (1, 2, 4) if size <= streams * each}
    return tuple(sorted(alone | {count * each for count in counts}))
