"""Routing statistics: how often a token visited each expert. Pure, but for `load`, which reads one file.

The file is JSON, schema moe-appliance.routing-stats/1:
{"schema": ..., "model": NAME, "tokens": N, "counts": {"<layer>": [visits of expert 0, of expert 1, ...]}}

Rules:
- Every error names the file and the key.
- Counts are visits, a token visits top-k experts of a layer, each once: more visits than that are another model's
  counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.checkpoint.catalogue import Geometry
from appliance.errors import PlanError
from appliance.plan import jsonfile
from appliance.printable import printable
from appliance.residency.document import COUNTS_SCHEMA

SCHEMA = COUNTS_SCHEMA
_KEYS = {"schema", "model", "tokens", "counts"}
_REMEDY = "give statistics that were counted for this model, or choose without them: --select uniform"
_MOST = 2**53
"""Above it JSON's numbers are not whole in every program."""


@dataclass(frozen=True, slots=True)
class RoutingStats:
    """`model`: as whoever counted calls it. `tokens`: how many were counted. `counts`: layer -> visits by expert.
    `sha256`: of the file; `file`: its name, for errors."""

    model: str
    tokens: int
    counts: Mapping[int, tuple[int, ...]]
    sha256: str
    file: str

    def hits_per_token(self, cold: Mapping[int, Iterable[int]]) -> float:
        """Visits to `cold` experts (layer -> experts) that a token makes, on average over what was counted."""
        return sum(self.counts[layer][expert] for layer, experts in cold.items() for expert in experts) / self.tokens

    def require_shape(self, geometry: Geometry) -> None:
        """Raise PlanError unless these are counts of a model with this geometry."""
        wanted = set(geometry.moe_layers)
        for layer in sorted(wanted.symmetric_difference(self.counts)):
            said = "is missing" if layer in wanted else "has no routed experts in this model"
            raise self._refused(f"counts: layer {layer} {said}")
        for layer, visits in self.counts.items():
            if len(visits) != geometry.experts:
                raise self._refused(f"counts.{layer} has {len(visits)} experts, the model has {geometry.experts}")
            most_visited = max(range(len(visits)), key=visits.__getitem__)
            if visits[most_visited] > self.tokens:
                said = f"is {visits[most_visited]:,}, and {self.tokens:,} tokens visit an expert once each at most"
                raise self._refused(f"counts.{layer}[{most_visited}] {said}")
            if sum(visits) > self.tokens * geometry.top_k:
                most = f"{self.tokens:,} tokens visit {geometry.top_k} experts each"
                raise self._refused(f"counts.{layer} sums to {sum(visits):,} visits, and {most}")

    def _refused(self, said: str) -> PlanError:
        return _refused(self.file, said)


def load(path: Path) -> RoutingStats:
    """Read a file of routing statistics. Raises PlanError."""
    return parse(jsonfile.content(path, "routing statistics", _REMEDY), str(path))


def parse(data: bytes, file: str) -> RoutingStats:
    """The statistics that `data` holds; `file` is for errors. Raises PlanError."""
    table = jsonfile.value(data, file, _REMEDY)
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        raise _refused(file, f'schema: must be "{SCHEMA}"')
    for key in sorted(_KEYS.symmetric_difference(table)):
        raise _refused(file, f"{key}: is missing" if key in _KEYS else f"{key}: there is no such key")
    tokens, model = table["tokens"], table["model"]
    if not _is_count(tokens) or tokens < 1:
        raise _refused(file, "tokens: must be a whole number from 1")
    if not isinstance(model, str):
        raise _refused(file, "model: must be a text")
    return RoutingStats(model, tokens, _counts(table["counts"], file), hashlib.sha256(data).hexdigest(), file)


def _counts(table: Any, file: str) -> dict[int, tuple[int, ...]]:
    if not isinstance(table, dict):
        raise _refused(file, "counts: must be a table of layers")
    counts: dict[int, tuple[int, ...]] = {}
    for key, visits in table.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 6 and key == str(int(key))):
            raise _refused(file, f"counts.{key}: is not a layer's number")
        if not isinstance(visits, list):
            raise _refused(file, f"counts.{key}: must be a list of numbers")
        for expert, count in enumerate(visits):
            if not _is_count(count):
                raise _refused(file, f"counts.{key}[{expert}]: must be a whole number from 0")
        if not any(visits):
            raise _refused(file, f"counts.{key}: nobody visited this layer, so nothing says which experts may go")
        counts[int(key)] = tuple(visits)
    return counts


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST


def _refused(file: str, said: str) -> PlanError:
    return PlanError(f"{printable(file)}: {printable(said)}", _REMEDY)
