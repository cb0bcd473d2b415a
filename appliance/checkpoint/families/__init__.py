"""Which family a checkpoint is of. Pure.

The registry is explicit. The configuration decides; the tensors' names must bear it out, since a configuration that was
copied beside other weights would plan nonsense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from appliance.checkpoint.families.base import Family
from appliance.checkpoint.families.deepseek import DeepseekV2, DeepseekV3
from appliance.checkpoint.families.deepseek_v41 import DeepseekV41
from appliance.checkpoint.families.gguf import Gguf
from appliance.checkpoint.families.kinds import TensorClass
from appliance.checkpoint.families.standard import Glm45, GptOss, Mixtral, Qwen3Moe
from appliance.checkpoint.tensors import Checkpoint, Format

__all__ = ["FAMILIES", "Family", "Unfit", "find", "flat"]

FAMILIES: tuple[type[Family], ...] = (DeepseekV41, DeepseekV3, DeepseekV2, Qwen3Moe, Glm45, GptOss, Mixtral, Gguf)
"""All families that are known."""

MOST_LAYERS, MOST_EXPERTS = 1024, 2048
"""Several times what any published model has. One tensor of a hostile file may claim to hold 2^20 experts, in each of
2^20 layers; every one of them would be a row here."""
_PLAIN = re.compile(r"[\w.-]{1,60}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why no family can speak for a checkpoint."""

    reason: str


def flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration with what is nested in `text_config` at its top; the top's own `model_type` stays."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    return {**config, **text, "model_type": config.get("model_type") or text.get("model_type")}


def find(checkpoint: Checkpoint) -> Family | Unfit:
    """The family of a checkpoint, or why there is none: nothing says what it is, or keys are missing, or no tensor is
    named as that family names its experts."""
    config = flat(checkpoint.config)
    gguf = checkpoint.format is Format.GGUF
    kind = next((one for one in FAMILIES if (one is Gguf) == gguf and one.accepts(config)), None)
    key = "general.architecture" if gguf else "model_type"
    where = "the file's metadata" if gguf else "config.json"
    if kind is None:
        named = config.get(key)
        if not checkpoint.config:
            return Unfit(f"there is no {where}, which says what model this is")
        if not isinstance(named, str) or not _PLAIN.fullmatch(named):
            return Unfit(f"{where} has no {key}, which says what model this is")
        return Unfit(f"{where}: {key} {named} is of no family that is known here")
    lacking = kind.lacks(config)
    if lacking:
        return Unfit(f"{where} lacks {', '.join(lacking)}")
    family = kind(config)
    shape = family.shape
    if max(shape.layers, shape.draft_layers) > MOST_LAYERS or max(shape.experts, shape.draft_experts) > MOST_EXPERTS:
        said = f"{shape.layers:,} layers, {max(shape.experts, shape.draft_experts):,} experts in each"
        return Unfit(f"{where} says {said}: more than {MOST_LAYERS:,} or {MOST_EXPERTS:,} are not planned")
    if not _has_experts(family, checkpoint):
        return Unfit(f"{where} says {family.name}, but no tensor is named as one of its routed experts")
    return family


def _has_experts(family: Family, checkpoint: Checkpoint) -> bool:
    names = ((tensor.name, tensor.shape) for tensor in checkpoint.tensors if "exp" in tensor.name)
    places = (family.place(name, shape) for name, shape in islice(names, 100_000))
    return any(place is not None and place.cls is TensorClass.ROUTED for place in places)
