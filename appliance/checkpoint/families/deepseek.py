"""DeepSeek-V3 and -V2: multi-head latent attention, dense layers first, a multi-token prediction layer in V3. Pure.

Source of names and cuts: vLLM's deepseek_v2.py and deepseek_mtp.py. The down-projections to the latent vectors are
whole on every rank, what comes up from them is cut by heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from appliance.checkpoint.families.base import Rule, latent, rules
from appliance.checkpoint.families.kinds import Geometry, KvCost, TensorClass
from appliance.checkpoint.families.standard import (
    AFTER_DENSE_KEYS,
    MLP,
    NORMS,
    PREDICTION,
    ROUTER,
    SHARED,
    Standard,
    after_dense_layers,
)


class DeepseekV3(Standard):
    """DeepSeek-V3, -R1 and their like."""

    name = "deepseek-v3"
    model_types = frozenset(("deepseek_v3",))
    keys = (*AFTER_DENSE_KEYS, "kv_lora_rank", "qk_rope_head_dim")
    layer: ClassVar[Mapping[str, Rule]] = {
        **NORMS,
        **MLP,
        **ROUTER,
        **SHARED,
        **PREDICTION,
        **rules(
            TensorClass.ATTENTION,
            column="self_attn.q_proj self_attn.q_b_proj self_attn.kv_b_proj",
            row="self_attn.o_proj",
            copy="self_attn.q_a_proj self_attn.q_a_layernorm self_attn.kv_a_proj_with_mqa self_attn.kv_a_layernorm",
        ),
    }

    def geometry(self) -> Geometry:
        """See Family."""
        return after_dense_layers(self.config)

    def kv(self, tp: int, dtype: str) -> KvCost:
        """See Family."""
        layers = self.shape.layers + self.shape.draft_layers
        return latent(layers, self.number("kv_lora_rank"), self.number("qk_rope_head_dim"), dtype)


class DeepseekV2(DeepseekV3):
    """DeepSeek-V2, -V2.5, -V2-Lite (whose queries are not compressed)."""

    name = "deepseek-v2"
    model_types = frozenset(("deepseek_v2",))
