"""Families that transformers names alike, `model.layers.N.self_attn.q_proj`: Qwen3-MoE, GLM-4.5 MoE, gpt-oss, Mixtral.
Pure.

Source of names and cuts: vLLM's model files qwen3_moe.py, glm4_moe.py (and its MTP file), gpt_oss.py, mixtral.py.
gpt-oss's MXFP4 experts are counted as vLLM's Marlin backend holds them, the one for cards of compute capability 12: a
rank's width in whole blocks of 32, padded to 128, and the model's width padded to 256 (1440 -> 1536, 2880 -> 3072 at
two ranks; 14 % more than in the file). Other backends pad less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from fractions import Fraction
from typing import Any, ClassVar

from appliance.checkpoint.families.base import Block, Family, Rule, grouped_query, is_count, number, rules, up
from appliance.checkpoint.families.kinds import Geometry, KvCost, Load, TensorClass

MXFP4_BLOCK = 32
MARLIN_WIDTH, MARLIN_HIDDEN = 128, 256
"""What a rank's width and the model's width are padded to. Source: vLLM's mxfp4.py, as its figures for gpt-oss-120b
show: 1440 -> 1536 and 2880 -> 3072."""
_BLOCK = re.compile(r"model\.layers\.(\d{1,6})\.([\w.]{1,100})", re.ASCII)

ROOT: Mapping[str, Rule] = {
    **rules(TensorClass.EMBEDDING, column="model.embed_tokens"),
    **rules(TensorClass.HEAD, column="lm_head"),
    **rules(TensorClass.DENSE, copy="model.norm"),
}
"""Matrices outside of layers."""

NORMS: Mapping[str, Rule] = rules(TensorClass.DENSE, copy="input_layernorm post_attention_layernorm")

GROUPED_QUERY: Mapping[str, Rule] = rules(
    TensorClass.ATTENTION,
    column="self_attn.q_proj",
    heads="self_attn.k_proj self_attn.v_proj",
    row="self_attn.o_proj",
    copy="self_attn.q_norm self_attn.k_norm",
)

MLP: Mapping[str, Rule] = rules(TensorClass.DENSE, column="mlp.gate_proj mlp.up_proj", row="mlp.down_proj")

ROUTER: Mapping[str, Rule] = rules(TensorClass.DENSE, copy="mlp.gate mlp.gate.e_score_correction_bias")

SHARED: Mapping[str, Rule] = rules(
    TensorClass.SHARED,
    column="mlp.shared_experts.gate_proj mlp.shared_experts.up_proj",
    row="mlp.shared_experts.down_proj",
)

PREDICTION: Mapping[str, Rule] = {
    **rules(TensorClass.DRAFT, copy="enorm hnorm eh_proj shared_head.norm"),
    **rules(TensorClass.DRAFT, Load.NEVER, column="embed_tokens shared_head.head"),
}
"""What a multi-token prediction layer has besides. Its copies of embedding and head are the backbone's, and shared."""


class Standard(Family):
    """Layers are `model.layers.N`; those after the backbone's, if any, are the draft's."""

    root = ROOT

    def block(self, name: str) -> Block | None:
        """See Family."""
        match = _BLOCK.fullmatch(name)
        return None if match is None else self.numbered(int(match[1]), match[2])

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.number("head_dim") or self.number("hidden_size") // max(1, self.number("num_attention_heads"))

    def kv(self, tp: int, dtype: str) -> KvCost:
        """See Family."""
        return grouped_query(self.shape.layers + self.shape.draft_layers, self.kv_heads, self.head_dim, tp, dtype)


class Qwen3Moe(Standard):
    """Qwen3-30B-A3B, -235B-A22B, -Coder."""

    name = "qwen3-moe"
    model_types = frozenset(("qwen3_moe",))
    keys = (
        "num_hidden_layers",
        "hidden_size",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
    )
    layer: ClassVar[Mapping[str, Rule]] = {**NORMS, **GROUPED_QUERY, **MLP, **ROUTER}

    def geometry(self) -> Geometry:
        """See Family. `decoder_sparse_step` and `mlp_only_layers` say which layers are dense."""
        layers, step = self.number("num_hidden_layers"), max(1, self.number("decoder_sparse_step", 1))
        dense = self.config.get("mlp_only_layers")
        kept = {layer for layer in dense if is_count(layer)} if isinstance(dense, list) else set()
        return Geometry(
            layers=layers,
            moe_layers=tuple(layer for layer in range(layers) if layer not in kept and (layer + 1) % step == 0),
            experts=self.number("num_experts"),
            top_k=self.number("num_experts_per_tok"),
            hidden=self.number("hidden_size"),
            moe_intermediate=self.number("moe_intermediate_size"),
        )


AFTER_DENSE_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "first_k_dense_replace",
)


def after_dense_layers(config: Mapping[str, Any]) -> Geometry:
    """The shape of a model whose first layers are dense, with prediction layers behind its last: GLM-4.5, DeepSeek."""
    layers, drafts = number(config, "num_hidden_layers"), number(config, "num_nextn_predict_layers")
    experts, top_k = number(config, "n_routed_experts"), number(config, "num_experts_per_tok")
    return Geometry(
        layers=layers,
        moe_layers=tuple(range(number(config, "first_k_dense_replace"), layers)),
        experts=experts,
        top_k=top_k,
        hidden=number(config, "hidden_size"),
        moe_intermediate=number(config, "moe_intermediate_size"),
        draft_layers=drafts,
        draft_experts=experts if drafts else 0,
        draft_top_k=top_k if drafts else 0,
    )


ALL_SPARSE_KEYS = (
    "num_hidden_layers",
    "hidden_size",
    "num_local_experts",
    "num_experts_per_tok",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
)


def all_sparse(config: Mapping[str, Any]) -> Geometry:
    """The shape of a model with experts in every layer, named as Mixtral names them."""
    layers = number(config, "num_hidden_layers")
    return Geometry(
        layers=layers,
        moe_layers=tuple(range(layers)),
        experts=number(config, "num_local_experts"),
        top_k=number(config, "num_experts_per_tok"),
        hidden=number(config, "hidden_size"),
        moe_intermediate=number(config, "intermediate_size"),
    )


class Glm45(Standard):
    """GLM-4.5, GLM-4.5-Air and what is shaped like them; with a multi-token prediction layer."""

    name = "glm-4.5"
    model_types = frozenset(("glm4_moe",))
    keys = (*AFTER_DENSE_KEYS, "num_attention_heads", "num_key_value_heads")
    layer: ClassVar[Mapping[str, Rule]] = {**NORMS, **GROUPED_QUERY, **MLP, **ROUTER, **SHARED, **PREDICTION}

    def geometry(self) -> Geometry:
        """See Family."""
        return after_dense_layers(self.config)


class Mixtral(Standard):
    """Mixtral-8x7B and -8x22B: `w1`, `w3`, `w2` for gate, up, down."""

    name = "mixtral"
    model_types = frozenset(("mixtral",))
    keys = ALL_SPARSE_KEYS
    bank = "block_sparse_moe.experts"
    matrices: ClassVar[Mapping[str, str]] = {"w1": "w13", "w3": "w13", "w2": "w2"}
    layer: ClassVar[Mapping[str, Rule]] = {
        **NORMS,
        **GROUPED_QUERY,
        **rules(TensorClass.DENSE, copy="block_sparse_moe.gate"),
    }

    def geometry(self) -> Geometry:
        """See Family."""
        return all_sparse(self.config)


class GptOss(Standard):
    """gpt-oss-20b and -120b: a layer's experts are one tensor, MXFP4 as blocks and scales; every second layer sees a
    sliding window."""

    name = "gpt-oss"
    model_types = frozenset(("gpt_oss",))
    keys = (*ALL_SPARSE_KEYS, "head_dim")
    fused: ClassVar[Mapping[str, str]] = {
        "mlp.experts.gate_up_proj": "w13_weight",
        "mlp.experts.gate_up_proj_blocks": "w13_weight",
        "mlp.experts.gate_up_proj_scales": "w13_weight_scale",
        "mlp.experts.gate_up_proj_bias": "w13_bias",
        "mlp.experts.down_proj": "w2_weight",
        "mlp.experts.down_proj_blocks": "w2_weight",
        "mlp.experts.down_proj_scales": "w2_weight_scale",
        "mlp.experts.down_proj_bias": "w2_bias",
    }
    layer: ClassVar[Mapping[str, Rule]] = {
        **NORMS,
        **GROUPED_QUERY,
        **rules(TensorClass.ATTENTION, column="self_attn.sinks"),
        **rules(TensorClass.DENSE, copy="mlp.router"),
    }

    def geometry(self) -> Geometry:
        """See Family."""
        return all_sparse(self.config)

    def padding(self, parameter: str, bank: Container[str]) -> Callable[[int], Fraction] | None:
        """See Family. Only MXFP4, which has scales, is padded."""
        if "w13_weight_scale" not in bank:
            return None
        hidden, inner = self.shape.hidden, self.shape.moe_intermediate
        across = Fraction(up(hidden, MARLIN_HIDDEN), hidden) if parameter != "w13_bias" else Fraction(1)

        def ratio(tp: int) -> Fraction:
            if parameter == "w2_bias":
                return across
            width = up(up(-(-inner // tp), MXFP4_BLOCK), MARLIN_WIDTH)
            return Fraction(width * tp, inner) * across

        return ratio

    def kv(self, tp: int, dtype: str) -> KvCost:
        """See Family."""
        window, layers = self.number("sliding_window"), self.shape.layers
        kinds = self.config.get("layer_types")
        named = [kind == "sliding_attention" for kind in kinds] if isinstance(kinds, list) else []
        sliding = 0 if not window else sum(named[:layers]) if named else (layers + 1) // 2
        return grouped_query(layers - sliding, self.kv_heads, self.head_dim, tp, dtype, sliding, window)
