"""The document that says which experts are cold, schema moe-appliance.residency/1. Pure, but for `load`.

It is what `moe-appliance plan export --to residency` writes. Rules:
- A key that is missing, unknown or of another type is refused with its name.
- What it says of the model (layers, experts, top-k, TP) is compared with the model by decided.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from .errors import ResidencyError

SCHEMA = "moe-appliance.residency/1"
COUNTS_SCHEMA = "moe-appliance.routing-stats/1"
"""Of the counts that a plan is made by, and the plugin writes (appliance/plan/stats.py)."""
FILE = "MOE_RESIDENCY_FILE"
"""The variable that names the document's file."""
REMEDY = "write it anew: moe-appliance plan export PLAN --to residency --out FILE"
_KEYS = {
    "schema": str,
    "plan_id": str,
    "model": str,
    "layers_total": int,
    "experts_per_layer": int,
    "top_k": int,
    "tp": int,
    "layers": dict,
    "draft_layers": dict,
    "tensors": list,
}
_LAYER = re.compile(r"0|[1-9][0-9]{0,5}")
_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True, slots=True)
class Residency:
    """What is cold. `cold`, `draft_cold`: layer -> cold experts, ascending. `tensors`: checkpoint names of whole
    tensors for the host. `layers`: of the backbone; `experts`: of each layer; `tp`: ranks that each expert is cut
    for."""

    plan_id: str
    model: str
    layers: int
    experts: int
    top_k: int
    tp: int
    cold: Mapping[int, tuple[int, ...]]
    draft_cold: Mapping[int, tuple[int, ...]]
    tensors: tuple[str, ...]

    def cold_of(self, layer: int) -> tuple[int, ...]:
        """The cold experts of a layer. Draft layers are numbered on behind the backbone's."""
        return self.draft_cold.get(layer - self.layers, ()) if layer >= self.layers else self.cold.get(layer, ())


def load(path: Path) -> Residency:
    """Read a document. Raises ResidencyError: it cannot be read, or `parse` refuses it."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ResidencyError(f"{path}: cannot be read: {error}; {REMEDY}") from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Residency:
    """The document in `text`, called `name` in errors. Raises ResidencyError with the key."""
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _refused(name, f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _refused(name, "is not a JSON object")
    if found.get("schema") != SCHEMA:
        raise _refused(name, f"schema is {found.get('schema')!r}, not {SCHEMA!r}")
    for key in sorted(found.keys() ^ _KEYS.keys()):
        raise _refused(name, f"{key} is {'missing' if key in _KEYS else 'not a key of this schema'}")
    for key, kind in _KEYS.items():
        if not isinstance(found[key], kind) or isinstance(found[key], bool):
            raise _refused(name, f"{key} is {found[key]!r}")
    for key in ("layers_total", "experts_per_layer", "top_k", "tp"):
        if found[key] < 1:
            raise _refused(name, f"{key} is {found[key]}, not at least 1")
    experts = found["experts_per_layer"]
    cold = _layers(found["layers"], experts, "layers", name)
    if beyond := [layer for layer in cold if layer >= found["layers_total"]]:
        raise _refused(name, f"layers.{beyond[0]}: the model has layers 0 to {found['layers_total'] - 1}")
    if not all(isinstance(tensor, str) for tensor in found["tensors"]):
        raise _refused(name, "tensors holds what is no name")
    return Residency(
        found["plan_id"],
        found["model"],
        found["layers_total"],
        experts,
        found["top_k"],
        found["tp"],
        cold,
        _layers(found["draft_layers"], None, "draft_layers", name),
        tuple(found["tensors"]),
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"{twice!r} is there twice")
    return found


def text(residency: Residency) -> str:
    """The document that `parse` reads as `residency`."""
    return json.dumps(table(residency))


def table(residency: Residency) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "schema": SCHEMA,
        "plan_id": residency.plan_id,
        "model": residency.model,
        "layers_total": residency.layers,
        "experts_per_layer": residency.experts,
        "top_k": residency.top_k,
        "tp": residency.tp,
        "layers": {str(layer): _ranges(cold) for layer, cold in residency.cold.items()},
        "draft_layers": {str(layer): _ranges(cold) for layer, cold in residency.draft_cold.items()},
        "tensors": list(residency.tensors),
    }


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges."""
    groups = groupby(enumerate(numbers), key=lambda at: at[1] - at[0])
    runs = ([number for _, number in group] for _, group in groups)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _layers(table: Mapping[str, Any], experts: int | None, key: str, name: str) -> dict[int, tuple[int, ...]]:
    """Layer -> experts; `experts` None = as many as there may be."""
    read = {}
    for layer, text in table.items():
        if not _LAYER.fullmatch(layer) or not isinstance(text, str):
            raise _refused(name, f"{key}.{layer} is not a layer and its experts")
        try:
            numbers = _numbers(text)
        except ValueError as error:
            raise _refused(name, f"{key}.{layer}: {error}") from error
        if experts is not None and numbers and numbers[-1] >= experts:
            raise _refused(name, f"{key}.{layer}: expert {numbers[-1]}, and a layer has {experts}")
        read[int(layer)] = numbers
    return read


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers of ranges such as "0-11,40", ascending. Raises ValueError."""
    numbers: list[int] = []
    for part in text.split(",") if text.strip() else []:
        match = _PART.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{part!r} is no range")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"{text!r} names an expert twice")
    return tuple(sorted(numbers))


def _refused(name: str, said: str) -> ResidencyError:
    return ResidencyError(f"{name}: {said}; {REMEDY}")
