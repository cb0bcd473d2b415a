"""GGUF files of the same models, for llama.cpp: a layer's experts are one tensor for each matrix. Pure.

llama.cpp does not cut matrices, it gives each card whole layers (--split-mode layer, its default): a layer's tensors
are cut by layers here, so that with 61 layers the fuller of two cards is taken to hold 31. The rows of experts are cut
evenly, which is the average over the layers.
Embedding and head are counted whole on each card: the head is on one card, which must have room for it, and the
embedding is in host RAM unless the head is tied to it. That errs on the safe side.
DeepSeek's files of before May 2025 have no `attention.key_length_mla`: of these llama.cpp caches keys and values of all
heads, not the latent vectors, 70 times as much.
Source of names: llama.cpp's gguf-py constants. Mixtral goes by the architecture `llama` with experts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from appliance.checkpoint.families.base import (
    Block,
    Cut,
    Family,
    Rule,
    grouped_query,
    is_count,
    latent,
    per_head,
    rules,
)
from appliance.checkpoint.families.kinds import Geometry, KvCost, Load, TensorClass

_BLOCK = re.compile(r"blk\.(\d{1,6})\.([\w.]{1,100})", re.ASCII)

_NAMES = {
    "qwen3moe": "qwen3-moe-gguf",
    "glm4moe": "glm-4.5-gguf",
    "gpt-oss": "gpt-oss-gguf",
    "llama": "mixtral-gguf",
    "deepseek2": "deepseek-gguf",
}


class Gguf(Family):
    """Any of the architectures above; keys are `ARCHITECTURE.key` in the file's metadata."""

    model_types = frozenset(_NAMES)
    keys = ("block_count", "expert_count", "expert_used_count", "embedding_length")
    bank = ""
    fused: ClassVar[Mapping[str, str]] = {
        f"ffn_{matrix}_exps": f"ffn_{matrix}_exps" for matrix in ("gate", "up", "down", "gate_up")
    }
    root: ClassVar[Mapping[str, Rule]] = {
        **rules(TensorClass.EMBEDDING, copy="token_embd"),
        **rules(TensorClass.HEAD, copy="output"),
        **rules(TensorClass.DENSE, copy="output_norm rope_freqs"),
    }
    layer: ClassVar[Mapping[str, Rule]] = {
        **rules(
            TensorClass.ATTENTION,
            column="attn_q attn_k attn_v attn_output attn_q_norm attn_k_norm attn_sinks attn_q_a attn_q_a_norm "
            "attn_q_b attn_kv_a_mqa attn_kv_a_norm attn_kv_b attn_k_b attn_v_b attn_rot_embd",
        ),
        **rules(
            TensorClass.DENSE,
            column="attn_norm ffn_norm post_attention_norm ffn_gate_inp exp_probs_b ffn_gate ffn_up ffn_down",
        ),
        **rules(TensorClass.SHARED, column="ffn_gate_shexp ffn_up_shexp ffn_down_shexp"),
        **rules(
            TensorClass.DRAFT,
            column="nextn.eh_proj nextn.enorm nextn.hnorm nextn.shared_head_norm",
        ),
        **rules(TensorClass.DRAFT, Load.NEVER, column="nextn.embed_tokens nextn.shared_head_head"),
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config`: the file's metadata."""
        self.architecture = str(config["general.architecture"])
        self.name = _NAMES[self.architecture]
        super().__init__(config)

    @classmethod
    def accepts(cls, config: Mapping[str, Any]) -> bool:
        """See Family. A `llama` without experts is no mixture."""
        architecture = config.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in _NAMES:
            return False
        return architecture != "llama" or is_count(config.get("llama.expert_count"))

    @classmethod
    def lacks(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """See Family."""
        architecture = config["general.architecture"]
        heads = (
            ("attention.kv_lora_rank", "rope.dimension_count", "attention.head_count_kv")
            if architecture == "deepseek2"
            else ("attention.head_count_kv", "attention.head_count")
        )
        wanted = tuple(f"{architecture}.{key}" for key in (*cls.keys, *heads))
        return tuple(key for key in wanted if not is_count(config.get(key)))

    def number(self, key: str, default: int = 0) -> int:
        """See Family; the key without its architecture."""
        return super().number(f"{self.architecture}.{key}", default)

    @property
    def kv_heads(self) -> int:
        """Key/value heads, at least 1."""
        return max(1, self.number("attention.head_count_kv"))

    def block(self, name: str) -> Block | None:
        """See Family."""
        match = _BLOCK.fullmatch(name)
        return None if match is None else self.numbered(int(match[1]), match[2])

    def units(self, cut: Cut, part: str) -> int:
        """By layers; what is outside of them is on one card."""
        return 1 if cut is Cut.COPY else max(1, self.number("block_count"))

    def geometry(self) -> Geometry:
        """See Family. `block_count` counts the prediction layers too."""
        drafts = self.number("nextn_predict_layers")
        layers = max(0, self.number("block_count") - drafts)
        experts, top_k = self.number("expert_count"), self.number("expert_used_count")
        return Geometry(
            layers=layers,
            moe_layers=tuple(range(self.number("leading_dense_block_count"), layers)),
            experts=experts,
            top_k=top_k,
            hidden=self.number("embedding_length"),
            moe_intermediate=self.number("expert_feed_forward_length", self.number("feed_forward_length")),
            draft_layers=drafts,
            draft_experts=experts if drafts else 0,
            draft_top_k=top_k if drafts else 0,
        )

    def kv(self, tp: int, dtype: str) -> KvCost:
        """See Family. A card has the cache of its layers."""
        layers = -(-self.shape.layers // tp)
        rank = self.number("attention.kv_lora_rank")
        if rank and self.number("attention.key_length_mla"):
            return latent(layers, rank, self.number("rope.dimension_count"), dtype)
        width = self.number("attention.key_length") or self.number("embedding_length") // max(
            1, self.number("attention.head_count")
        )
        if rank:
            return per_head(layers, self.kv_heads, width, self.number("attention.value_length") or width, dtype)
        window = self.number("attention.sliding_window") if self.architecture == "gpt-oss" else 0
        sliding = (layers + 1) // 2 if window else 0
        return grouped_query(layers - sliding, self.kv_heads, width, 1, dtype, sliding, window)
