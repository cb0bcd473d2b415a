"""What all families have in common: names are looked up in tables, never guessed. Pure.

Rules:
- A name that no table has is nobody's: `place` says None, and the catalogue counts it as OTHER, whole on every rank.
- Cuts are those of vLLM's linear layers: a column-parallel one has its outputs cut, a row-parallel one its inputs (and
  keeps its bias whole), key and value projections are cut by heads, embedding and head by vocabulary.
- A part of a matrix that runs along its uncut side is whole on every rank: EXL3's `suh` of a column-parallel matrix,
  `svh` of a row-parallel one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from copy import copy
from dataclasses import replace
from enum import Enum, auto
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from appliance.checkpoint.families.kinds import Geometry, KvCost, Load, Place, TensorClass

EXPERT = re.compile(r"(.{1,200}\.experts)\.(\d{1,6})\.([\w.]{1,100})", re.ASCII)
"""A tensor of one expert: its layer's bank of experts, which one, the matrix and the part of it."""

MARKERS = frozenset(("mcg", "mul1"))
"""EXL3's codebooks, each by the tensor that says that a matrix uses it."""

_SINGLE = MARKERS | {"input_scale", "weight_shape", "weight_global_scale", "weight_scale_2", "input_global_scale"}

PARTS = _SINGLE | {
    *("weight", "bias"),
    *("scale", "weight_scale", "weight_scale_inv", "weight_packed"),
    *("qweight", "qzeros", "scales", "g_idx"),
    *("trellis", "suh", "svh"),
}
"""What quantisers make of one matrix: block FP8, compressed-tensors and NVFP4; GPTQ and AWQ; EXL3."""

_BODY = frozenset(("weight", "qweight", "weight_packed"))
_NVFP4 = frozenset(("w13_weight_scale_2", "w13_weight_global_scale"))
"""What an expert has in NVFP4 alone."""
_NVFP4_PADDED = frozenset(("w13_weight", "w13_weight_scale", "w2_weight", "w2_weight_scale"))
NVFP4_WIDTHS = (64, 128)
"""What Marlin pads a rank's width to: where the model's width is a multiple of 128, and where it is not. Source: vLLM
0.26.0, quantization/utils/marlin_utils_fp4.py."""
FP8_BLOCK = 128
"""Where the configuration does not say."""
_ELEMENT_BYTES = {"auto": 2, "bf16": 2, "fp8": 1}


class Cut(Enum):
    """How an engine's layer holds its matrix on several ranks."""

    COLUMN = auto()
    ROW = auto()
    HEADS = auto()
    """By key/value heads, whole ones."""
    COPY = auto()
    """All of it on every rank."""


class Rule(NamedTuple):
    """What a table says about a matrix."""

    cls: TensorClass
    cut: Cut
    load: Load = Load.ALWAYS


class Block(NamedTuple):
    """Where in the stack a name is. `layer`: counted within the backbone, or within the draft."""

    draft: bool
    layer: int
    rest: str


def matrix_and_part(name: str) -> tuple[str, str]:
    """`a.b.weight` -> (`a.b`, `weight`). The part is "" for a name that is whole by itself (`a.attn_sink`)."""
    stem, _, part = name.rpartition(".")
    return (stem, part) if stem and part in PARTS else (name, "")


def rules(cls: TensorClass, load: Load = Load.ALWAYS, **names: str) -> dict[str, Rule]:
    """A piece of a table: for each cut, by its name in lower case, the matrices that are held so."""
    return {name: Rule(cls, Cut[cut.upper()], load) for cut, text in names.items() for name in text.split()}


class Family(ABC):
    """Checkpoints that are named and cut alike, for one configuration. Subclasses are tables first of all."""

    name: str
    """How plans and people call it."""
    model_types: ClassVar[frozenset[str]]
    """`model_type` of config.json, or `general.architecture` of a GGUF file."""
    keys: ClassVar[tuple[str, ...]]
    """Whole numbers that the configuration must have."""
    bank: ClassVar[str] = "mlp.experts"
    """Where in a layer the experts are."""
    matrices: ClassVar[Mapping[str, str]] = {"gate_proj": "w13", "up_proj": "w13", "down_proj": "w2"}
    """An expert's matrix -> what the engine fuses it into."""
    fused: ClassVar[Mapping[str, str]] = {}
    """A layer's tensor that holds all experts -> the engine's name of it."""
    root: ClassVar[Mapping[str, Rule]]
    """Matrices outside of layers."""
    layer: ClassVar[Mapping[str, Rule]]
    """Matrices of a layer, by their names within it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config`: flat, and with all of `keys`."""
        self.config = config
        self.shape = self.geometry()

    @classmethod
    def accepts(cls, config: Mapping[str, Any]) -> bool:
        """Whether the configuration is one of this family's."""
        named = config.get("model_type")
        return isinstance(named, str) and named in cls.model_types

    @classmethod
    def lacks(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The keys that the configuration must have and has not, as whole numbers."""
        return tuple(key for key in cls.keys if not is_count(config.get(key)))

    def number(self, key: str, default: int = 0) -> int:
        """A whole number of the configuration."""
        return number(self.config, key, default)

    @property
    def kv_heads(self) -> int:
        """Key/value heads, at least 1."""
        return max(1, self.number("num_key_value_heads", 1))

    def without_draft(self) -> Family:
        """The same for a checkpoint whose configuration tells of a draft that was left out."""
        other = copy(self)
        other.shape = replace(self.shape, draft_layers=0, draft_experts=0, draft_top_k=0)
        return other

    @abstractmethod
    def block(self, name: str) -> Block | None:
        """Where in the stack a name is; None outside of the layers that the configuration has."""

    def numbered(self, layer: int, rest: str) -> Block | None:
        """A layer by its number where the draft's layers are counted on after the backbone's."""
        shape = self.shape
        if layer < shape.layers:
            return Block(False, layer, rest)
        return Block(True, layer - shape.layers, rest) if layer < shape.layers + shape.draft_layers else None

    @abstractmethod
    def geometry(self) -> Geometry:
        """The model's shape."""

    @abstractmethod
    def kv(self, tp: int, dtype: str) -> KvCost:
        """What a context takes on each of `tp` ranks. `dtype`: auto, bf16 or fp8."""

    def bank_of(self, prefix: str) -> Block | None:
        """The layer whose bank of experts has this name."""
        block = self.block(prefix)
        return block if block is not None and block.rest == self.bank else None

    def parameter(self, tail: str) -> tuple[str, int] | None:
        """The engine's tensor that an expert's `gate_proj.weight` goes into (`w13_weight`), and the units of its cut;
        None: no matrix of an expert."""
        matrix, part = matrix_and_part(tail)
        engine = self.matrices.get(matrix)
        if engine is None or not part:
            return None
        cut = Cut.ROW if engine == "w2" else Cut.COLUMN
        return f"{engine}_{'weight' if part in _BODY else part}", self.units(cut, part)

    def padding(self, parameter: str, bank: Container[str]) -> Callable[[int], Fraction] | None:
        """Ranks -> how much larger the engine makes a rank's row of one of its tensors; `bank`: the names of all that
        hold this layer's experts. None: it does not. Here NVFP4 on Marlin."""
        if parameter not in _NVFP4_PADDED or not any(name in bank for name in _NVFP4):
            return None
        inner, step = self.shape.moe_intermediate, NVFP4_WIDTHS[self.shape.hidden % 128 != 0]

        def ratio(tp: int) -> Fraction:
            return Fraction(up(-(-inner // tp), step) * tp, inner)

        return ratio

    @property
    def fp8_block(self) -> int:
        """How much of an expert's width shares a scale, where its matrices are FP8 in blocks."""
        said = self.config.get("quantization_config")
        sizes = said.get("weight_block_size") if isinstance(said, Mapping) else None
        return sizes[0] if isinstance(sizes, list) and sizes and is_count(sizes[0]) and sizes[0] else FP8_BLOCK

    def place(self, name: str, shape: Sequence[int] = ()) -> Place | None:
        """What a tensor is; None when no table has its name."""
        match = EXPERT.fullmatch(name)
        if match is not None:
            block, parameter = self.bank_of(match[1]), self.parameter(match[3])
            if block is None or parameter is None:
                return None
            cls, load = _role(block, TensorClass.ROUTED, Load.ALWAYS)
            return Place(cls, block.layer, int(match[2]), parameter=parameter[0], units=parameter[1], load=load)
        stem, part = matrix_and_part(name)
        block = self.block(stem)
        if block is None:
            rule = self.root.get(stem)
            return None if rule is None else Place(rule.cls, units=self.units(rule.cut, part), load=rule.load)
        if block.rest in self.fused:
            return self._fused(block, part, shape)
        rule = self.layer.get(block.rest)
        if rule is None:
            return None
        cls, load = _role(block, rule.cls, rule.load)
        return Place(cls, block.layer, units=self.units(rule.cut, part), load=load)

    def _fused(self, block: Block, part: str, shape: Sequence[int]) -> Place | None:
        held = self.shape.draft_experts if block.draft else self.shape.experts
        if not shape or shape[0] != held:
            return None
        cls, load = _role(block, TensorClass.ROUTED, Load.ALWAYS)
        parameter = self.fused[block.rest] + ("_bias" if part == "bias" else "")
        whole = parameter == "w2_bias"
        return Place(cls, block.layer, fused=held, parameter=parameter, units=1 if whole else 0, load=load)

    def units(self, cut: Cut, part: str) -> int:
        """What a part of a matrix that is held so is cut by; see Place."""
        if part in _SINGLE:
            return 1
        match cut:
            case Cut.COPY:
                return 1
            case Cut.HEADS:
                return 1 if part == "suh" else self.kv_heads
            case Cut.ROW:
                return 1 if part in ("bias", "svh") else 0
            case Cut.COLUMN:
                return 1 if part == "suh" else 0


def _role(block: Block, cls: TensorClass, load: Load) -> tuple[TensorClass, Load]:
    if not block.draft:
        return cls, load
    return TensorClass.DRAFT, Load.DRAFT if load is Load.ALWAYS else load


def up(count: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-count // step) * step


def is_count(value: object) -> bool:
    """Whether a configuration's value is a whole number that some model may have: 0 to 2^20."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**20


def number(config: Mapping[str, Any], key: str, default: int = 0) -> int:
    """A whole number of a configuration; `default` where there is none."""
    value = config.get(key)
    return value if isinstance(value, int) and is_count(value) else default


def grouped_query(
    layers: int, heads: int, head_dim: int, tp: int, dtype: str, sliding: int = 0, window: int = 0
) -> KvCost:
    """Grouped-query attention: keys and values of this rank's heads in `layers`, for each token; in `sliding` further
    layers for the last `window` tokens only, so once a sequence."""
    element = _ELEMENT_BYTES.get(dtype, 2)
    layer_bytes = 2 * -(-heads // tp) * head_dim * element
    source = f"2 x {layers} layers x {-(-heads // tp)} of {heads} heads x {head_dim} x {element} B"
    if sliding:
        source += f"; {sliding} layers keep {window} tokens a sequence"
    return KvCost(layers * layer_bytes, sliding * window * layer_bytes, exact=True, source=source)


def latent(layers: int, rank: int, rope: int, dtype: str) -> KvCost:
    """Multi-head latent attention: one compressed vector a token for each of this rank's layers, never cut."""
    element = _ELEMENT_BYTES.get(dtype, 2)
    source = f"{layers} layers x ({rank} + {rope}) x {element} B, uncut"
    return KvCost(layers * (rank + rope) * element, 0, exact=True, source=source)


def per_head(layers: int, heads: int, key_dim: int, value_dim: int, dtype: str) -> KvCost:
    """Keys and values of different widths, of all heads in `layers`, for each token."""
    element = _ELEMENT_BYTES.get(dtype, 2)
    source = f"{layers} layers x {heads} heads x ({key_dim} + {value_dim}) x {element} B, not as latent vectors"
    return KvCost(layers * heads * (key_dim + value_dim) * element, 0, exact=True, source=source)
