"""Whole tensors for the host: the token embedding, and what else a plan names. Touches torch and vLLM's model.

Rules:
- A plan says checkpoint names; the model's own mapper says what it calls them.
- A tensor that the model uses under two names, a tied embedding, is refused: the head reads all of it for each token.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import ResidencyError
from .tensors import Ranges, whole


def move_whole(names: Iterable[str], model: Any, ranges: Ranges) -> None:
    """Move what `names` say. Raises ResidencyError: not there, part of a stacked tensor, or tied."""
    held: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        held.setdefault(parameter.data_ptr(), []).append(name)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in names:
        mapped = _called(name, model)
        parameter = parameters.get(mapped)
        if parameter is None:
            raise ResidencyError(f"tensors: {name}: this model has no parameter {mapped}; take it out of the plan")
        if len(held[parameter.data_ptr()]) > 1:
            shared = " and ".join(held[parameter.data_ptr()])
            raise ResidencyError(f"tensors: {name} is used as {shared}: it stays in VRAM; take it out of the plan")
        ranges.move(parameter, whole(parameter))


def _called(name: str, model: Any) -> str:
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    found = [name] if mapper is None else mapper.apply_list([name])
    return found[0] if found else name
