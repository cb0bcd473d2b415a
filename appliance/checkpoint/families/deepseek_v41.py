"""DeepSeek-V4.1: the released checkpoint (FP4 experts, FP8 rest) and EXL3 packs of it. Pure.

Known, from vLLM's models/deepseek_v41 (attention, compressor, common/engram, vision, dspark): `wq_a` and `wkv` are one
replicated matrix; `wq_b`, `wo_a` are column-parallel and `wo_b` row-parallel; indexer and compressor, norms, routers
and the hyper-connections are whole on every rank; the Engram tables are cut by whole hash columns, (n-gram size - 1) x
heads of them; the vision tower is cut like a language model's layers, and not loaded under --language-model-only, which
every published recipe for two cards has. EXL3 keeps `suh` of a column-parallel matrix and `svh` of a row-parallel one
whole.
Reconstructed: nobody has published how the study's engine cuts. `engram.wkv`, the draft's `main_proj` and its Markov
head are taken as cut here, since that gives the study's 102.1 GiB a card; today's vLLM holds them whole, 0.18 GiB more.
ENGRAM is the tables only. What reads them (`wkv`, `q_weight`, `k_weight`) stays on the cards with the layers: DENSE.
Source of names: facts/checkpoint-and-offload.md 1.2 and 1.3. A pack may cut `wo_a` by its output groups (`wo_a.3`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from appliance.checkpoint.families.base import Block, Family, Rule, matrix_and_part, rules
from appliance.checkpoint.families.kinds import Geometry, KvCost, Load, Place, TensorClass
from appliance.checkpoint.families.standard import after_dense_layers

KV_TOKEN_BYTES = 2.3 * 1024
"""KV cache of one token on each rank. Source: a public recipe's 8 GiB = 3.8 to 4.4 million tokens, 1.95 to 2.3 KiB each
(facts/checkpoint-and-offload.md 1.1); the model's own floor of 890 B is not what the engine allocates."""

KV_SEQUENCE_BYTES = round(5.6 * 2**20)
"""Fixed part of one sequence: sliding windows and compressor states. Source: as above, 2.8 to 5.6 MiB."""

_BLOCK = re.compile(r"(layers|mtp)\.(\d{1,6})\.([\w.]{1,100})", re.ASCII)
_VISION = re.compile(r"vision\.blocks\.\d{1,6}\.([\w.]{1,100})", re.ASCII)
_WO_A = re.compile(r"attn\.wo_a\.\d{1,4}", re.ASCII)

_HYPER = "hc_attn_fn hc_attn_base hc_attn_scale hc_ffn_fn hc_ffn_base hc_ffn_scale"
_TABLES = frozenset(("engram.embed.weight", "engram.embed.scale"))


class DeepseekV41(Family):
    """DeepSeek-V4.1-Flash and packs of it."""

    name = "deepseek-v4.1"
    model_types = frozenset(("deepseek_v41", "deepseek_v41_text"))
    keys = (
        "num_hidden_layers",
        "hidden_size",
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    )
    bank = "ffn.experts"
    matrices: ClassVar[Mapping[str, str]] = {"w1": "w13", "w3": "w13", "w2": "w2"}
    root: ClassVar[Mapping[str, Rule]] = {
        **rules(TensorClass.EMBEDDING, column="embed"),
        **rules(TensorClass.HEAD, column="head"),
        **rules(TensorClass.DENSE, copy="norm"),
        **rules(
            TensorClass.VISION,
            Load.VISION,
            column="aligner.w1",
            row="aligner.w2",
            copy="vision.patch_embed.proj vision.norm image_start image_end image_newline",
        ),
    }
    layer: ClassVar[Mapping[str, Rule]] = {
        **rules(
            TensorClass.ATTENTION,
            column="attn.wq_b attn.wo_a attn.attn_sink",
            row="attn.wo_b",
            copy="attn.wq_a attn.wkv attn.q_norm attn.kv_norm attn.indexer.wq_b attn.indexer.weights_proj "
            "attn.indexer.wk attn.indexer.k_norm attn.compressor.wkv attn.compressor.wgate attn.compressor.norm",
        ),
        **rules(
            TensorClass.DENSE,
            column="engram.wkv",
            copy=f"attn_norm ffn_norm ffn.gate ffn.gate.bias_vl engram.q_weight engram.k_weight {_HYPER}",
        ),
        **rules(TensorClass.SHARED, column="ffn.shared_experts.w1 ffn.shared_experts.w3", row="ffn.shared_experts.w2"),
        **rules(
            TensorClass.DRAFT,
            column="main_proj markov_head.embed markov_head.head",
            copy="main_norm norm confidence_head.proj",
        ),
    }
    tower: ClassVar[Mapping[str, Rule]] = rules(
        TensorClass.VISION, Load.VISION, column="attn.wqkv mlp.w1", row="attn.wo mlp.w2", copy="norm1 norm2"
    )
    """Matrices of a layer of the vision tower."""

    @classmethod
    def accepts(cls, config: Mapping[str, Any]) -> bool:
        """See Family; an older configuration has the architecture only."""
        named = config.get("architectures")
        return super().accepts(config) or (isinstance(named, list) and "DeepseekV41ForCausalLM" in named)

    def block(self, name: str) -> Block | None:
        """See Family."""
        match = _BLOCK.fullmatch(name)
        if match is None:
            return None
        draft, layer = match[1] == "mtp", int(match[2])
        known = self.shape.draft_layers if draft else self.shape.layers
        rest = "attn.wo_a" if _WO_A.fullmatch(match[3]) else match[3]
        return Block(draft, layer, rest) if layer < known else None

    def place(self, name: str, shape: Sequence[int] = ()) -> Place | None:
        """See Family."""
        stem, part = matrix_and_part(name)
        match = _VISION.fullmatch(stem)
        if match is not None:
            rule = self.tower.get(match[1])
            return None if rule is None else Place(rule.cls, units=self.units(rule.cut, part), load=rule.load)
        block = self.block(name)
        if block is not None and not block.draft and block.rest in _TABLES:
            return Place(TensorClass.ENGRAM, block.layer, units=self.hash_columns)
        return super().place(name, shape)

    @property
    def hash_columns(self) -> int:
        """Look-ups a token in one Engram layer; a rank holds whole ones."""
        return max(1, (self.number("engram_max_ngram_size", 4) - 1) * self.number("engram_n_heads", 8))

    def geometry(self) -> Geometry:
        """See Family."""
        shape = after_dense_layers(self.config)
        if not shape.draft_layers:
            return shape
        return replace(
            shape,
            draft_experts=self.number("dspark_n_routed_experts", shape.experts),
            draft_top_k=self.number("dspark_num_experts_per_tok", shape.top_k),
        )

    def kv(self, tp: int, dtype: str) -> KvCost:
        """See Family. Whole on every rank, and what the engine was seen to take, whatever the dtype."""
        source = "measured by others on this engine: 1.95 to 2.3 KiB a token, 2.8 to 5.6 MiB a sequence; the upper ones"
        return KvCost(KV_TOKEN_BYTES, KV_SEQUENCE_BYTES, exact=False, source=source)
