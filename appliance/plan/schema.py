"""The plan file, schema moe-appliance.plan/1: which weights sit in host RAM, for which checkpoint and which box. Pure.

Rules:
- What a plan decides (model, geometry, topology, host, selection, targets, limits, profile) makes its `plan_id`. What
  is derived from it (budget, exports) and when it was made do not: they are made anew from the headers, never believed.
- Defaults are left out of what is hashed, so that a key that a later version adds changes no old plan's id. So a
  default, once released, is never changed.
- Experts are written as ranges ("0-11,40"), layers as decimal texts, each in one spelling (ranges.py).
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from appliance.plan import ranges

SCHEMA = "moe-appliance.plan/1"
_MOST = 2**63 - 1
UNDECIDED: dict[str, Any] = {
    "schema_": True,
    "plan_id": True,
    "created": True,
    "tool_version": True,
    "note": True,
    "budget": True,
    "exports": True,
    "selection": {"expected_cold_hits_per_token"},
    "profile": {"validated"},
}
"""What decides nothing and so is not part of the plan_id, as pydantic's `exclude`."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def _layer(text: str) -> str:
    if not text.isdecimal() or text != str(int(text)):
        raise ValueError(f"{text!r} is not a layer's number")
    return text


def _experts(table: dict[str, str]) -> dict[str, str]:
    """Layers in order, without those that have none: one spelling for one choice."""
    return {layer: text for layer, text in sorted(table.items(), key=lambda item: int(item[0])) if text}


def _ascending(items: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(sorted(set(items)))


Ranges = Annotated[str, AfterValidator(ranges.respell)]
Layer = Annotated[str, AfterValidator(_layer)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Layers = Annotated[int, Field(ge=0, le=1_000)]
Experts = Annotated[int, Field(ge=0, le=ranges.MOST)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PlanModel(_Part):
    """Which checkpoint the plan was made for."""

    name: str
    """What people call it, for instance a hub's ORGANISATION/NAME."""
    revision: str | None = None
    """The hub's commit, when known."""
    index_sha256: Sha256 | None = None
    """Of model.safetensors.index.json; left out = the plan is not bound to one checkpoint."""
    header_sha256: tuple[Sha256, ...] = ()
    """Of each shard's header, in the order of the shards' names."""
    tensor_count: Count = 0
    """Tensors in all shards; 0 = not known."""
    total_bytes: Count = 0
    """Bytes of all tensors; 0 = not known."""


class PlanGeometry(_Part):
    """The shape of the model; must match the checkpoint's."""

    family: str
    """How tensors are named and cut: a name that `moe-appliance checkpoint show` prints."""
    layers: Annotated[Layers, Field(ge=1)]
    """The backbone's layers, all of them."""
    moe_layers: Ranges
    """Which of them have routed experts."""
    experts: Annotated[Experts, Field(ge=1)]
    """Routed experts a layer."""
    top_k: Annotated[Experts, Field(ge=1)]
    """Experts that a token visits in a layer."""
    draft_layers: Layers = 0
    """Layers of the built-in draft model; 0 = there is none."""
    draft_experts: Experts = 0
    """Routed experts of each of them."""
    draft_top_k: Experts = 0
    """Experts that a token visits in each of them."""
    hidden: Count = 0
    """Width of the model."""
    moe_intermediate: Count = 0
    """Width inside an expert."""
    codebook: str | None = None
    """EXL3's codebook, when it is one."""
    bits_per_layer: tuple[float, ...] | None = None
    """Bits of the routed experts, by layer, where a quantiser chose them."""


class PlanTopology(_Part):
    """The cards that the plan is for."""

    tp: Annotated[int, Field(ge=1, le=64)]
    """Tensor parallelism: each expert is cut into so many parts."""
    ep: Annotated[int, Field(ge=1, le=64)] = 1
    """Expert parallelism; 1 = none. Only 1 can be budgeted."""
    gpu_names: tuple[str, ...] = ()
    """Names of the cards, as the driver spells them."""
    vram_bytes_each: Annotated[int, Field(ge=1, le=_MOST)]
    """What the driver reports for one card, bytes."""
    numa: tuple[Count | None, ...] = ()
    """The NUMA node of each card, when known."""
    link: str | None = None
    """Between the cards, as `nvidia-smi topo -m` says it."""


class HostEngram(_Part):
    """Where the Engram tables are."""

    mode: Literal["pinned", "disk", "vram"] = "pinned"
    """In pinned host RAM, on disk, or on the cards."""
    layers: Annotated[tuple[Count, ...], AfterValidator(_ascending)] = ()
    """Layers that have one."""
    row_bytes: Count = 0
    """One row with its scales, bytes."""


class PlanHost(_Part):
    """What is kept in host RAM."""

    experts: Annotated[dict[Layer, Ranges], AfterValidator(_experts)] = {}
    """Layer -> its cold experts. A layer that is missing has none."""
    engram: HostEngram | None = None
    """Left out = the model has none."""
    tensors: Annotated[tuple[str, ...], AfterValidator(_ascending)] = ()
    """Other tensors, by their exact names."""
    draft_experts: Annotated[dict[Layer, Ranges], AfterValidator(_experts)] = {}
    """The same as `experts`, for the built-in draft model."""


class Selection(_Part):
    """How the cold experts were chosen."""

    method: Literal["routing-stats", "uniform", "layers", "manual"]
    """Coldest first by counts; as many in each layer; whole layers; a list."""
    stats_sha256: Sha256 | None = None
    """Of the routing statistics."""
    tokens: Count = 0
    """Tokens that the statistics counted."""
    expected_cold_hits_per_token: Annotated[float, Field(ge=0)] | None = None
    """Visits to cold experts a token makes over all layers, on average over the statistics."""


class Targets(_Part):
    """What the cards must have room for besides weights; left out = the tool's own estimate."""

    kv_bytes: Count | None = None
    """KV cache on each card, bytes; wins over streams x context_tokens."""
    streams: Annotated[int, Field(ge=1, le=100_000)] = 4
    """Sequences at once."""
    context_tokens: Annotated[int, Field(ge=1, le=_MOST)] = 131_072
    """Context of each of them, tokens."""
    graphs_bytes: Count | None = None
    """CUDA graphs, bytes a card."""
    activation_bytes: Count | None = None
    """Activations and workspaces of the largest prefill step, bytes a card."""
    driver_bytes: Count | None = None
    """What the driver and the CUDA context keep, bytes a card."""
    kv_dtype: Literal["auto", "fp8", "bf16"] = "auto"
    """How the KV cache is stored; auto = as the family's engine does."""
    kv_tier_bytes: Count = 0
    """KV cache in host RAM, bytes in all; shared out over the cards' NUMA nodes. `[engine] host_kv_gib` must not be
    above it. The line `host.kv_tier.rounded` is what vLLM's default connector may take on top: it pins each layer's
    part as a power of two."""
    vision: bool = False
    """Whether the engine loads the vision tower."""
    draft: bool = True
    """Whether the engine loads the built-in draft model."""


class Limits(_Part):
    """Bounds on the host's side; left out = none."""

    max_host_bytes: Count | None = None
    """Most that may be pinned."""
    min_free_host_bytes: Count | None = None
    """What must stay free on each NUMA node at the load's peak."""
    whole_layers: bool = False
    """Whether a layer may have fewer experts on the cards than a token visits: for engines that run cold layers on
    the CPU."""


class Profile(_Part):
    """What an engine with this plan was seen or is taken to do; goes to the gateway."""

    name: str
    """How the page calls it."""
    floor_tok_per_s: Annotated[float, Field(gt=0)] = 40.0
    """The pace promised to each stream, output tokens a second."""
    cold_tokens: Annotated[int, Field(ge=1, le=_MOST)] = 12_000
    """A prompt with more uncached tokens than this is cold."""
    streams: Annotated[int, Field(ge=1, le=256)] = 4
    """The validated cap: streams that hold the floor."""
    validated: str = ""
    """Where that was measured; "" = it was not."""


class Export(_Part):
    """Whether another tool can carry the plan out."""

    verdict: Literal["exact", "approximate", "impossible"]
    """How true to the plan."""
    reason: str
    """Why."""


def _refused(key: str, said: str) -> PydanticCustomError:
    """An error of the plan as a whole; `key` is where it stands, dotted."""
    return PydanticCustomError("plan", "{key}: {said}", {"key": key, "said": said})


class Plan(_Part):
    """A plan file. `identity` is what `plan_id` must be."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    schema_: Annotated[Literal["moe-appliance.plan/1"], Field(alias="schema")] = "moe-appliance.plan/1"
    """Which schema this is."""
    plan_id: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """sha256 over what the plan decides."""
    created: str = ""
    """When, ISO 8601, UTC."""
    tool_version: str = ""
    """Which moe-appliance made it."""
    note: str = ""
    """For people: what is measured, what is reconstructed."""
    model: PlanModel
    geometry: PlanGeometry
    topology: PlanTopology
    host: PlanHost = PlanHost()
    selection: Selection
    targets: Targets = Targets()
    limits: Limits = Limits()
    profile: Profile | None = None
    budget: dict[str, Any] | None = None
    """Derived, for people who read the file; made anew at every check."""
    exports: dict[str, Export] = {}
    """Derived: target -> whether it can carry the plan out."""

    @model_validator(mode="after")
    def _in_range(self) -> Plan:
        shape = self.geometry
        try:
            layers = set(ranges.parse(shape.moe_layers, shape.layers))
        except ValueError as error:
            raise _refused("geometry.moe_layers", str(error)) from None
        tables = (
            ("host.experts", self.host.experts, layers, shape.experts),
            ("host.draft_experts", self.host.draft_experts, set(range(shape.draft_layers)), shape.draft_experts),
        )
        for key, table, known, experts in tables:
            for layer, text in table.items():
                if int(layer) not in known:
                    raise _refused(f"{key}.{layer}", "there is no such layer with routed experts in the geometry")
                try:
                    ranges.parse(text, experts)
                except ValueError as error:
                    raise _refused(f"{key}.{layer}", str(error)) from None
        return self

    @property
    def identity(self) -> str:
        """The plan_id that belongs to what the plan decides."""
        decided = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=UNDECIDED)
        decided["schema"] = SCHEMA
        canonical = json.dumps(decided, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def sealed(self) -> bool:
        """Whether `plan_id` is the one that belongs to what the plan decides."""
        return self.plan_id == self.identity

    def seal(self) -> Plan:
        """The same plan with the plan_id that belongs to it."""
        return self.model_copy(update={"plan_id": self.identity})

    def cold(self, layer: int) -> tuple[int, ...]:
        """The cold experts of a layer, ascending."""
        return ranges.parse(self.host.experts.get(str(layer), ""))

    @property
    def cold_count(self) -> int:
        """Routed experts on the host, over all layers."""
        return sum(len(ranges.parse(text)) for text in self.host.experts.values())

    @property
    def cold_draft_count(self) -> int:
        """Experts of the draft model on the host, over all of its layers."""
        return sum(len(ranges.parse(text)) for text in self.host.draft_experts.values())

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """The layers with routed experts, ascending."""
        return ranges.parse(self.geometry.moe_layers)

    @property
    def expert_count(self) -> int:
        """Routed experts over all layers."""
        return len(self.moe_layers) * self.geometry.experts
