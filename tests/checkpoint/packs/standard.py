"""Qwen3-30B-A3B, GLM-4.5 and -Air, gpt-oss-120b, Mixtral-8x7B, DeepSeek-V3 and -V2 by their public shapes. Pure.

Tensors, dtypes and shapes are those of the published checkpoints; how they are spread over shards is ours.
Source: each model's config.json, and the names that vLLM's and transformers' model files load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.checkpoint.packs.writer import Shards, Spec, shard_name

Pack = tuple[Shards, dict[str, Any]]
Encode = Callable[[str, int, int], list[Spec]]

QWEN = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
}
GLM = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    "num_hidden_layers": 92,
    "hidden_size": 5120,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12_288,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "use_qk_norm": True,
    "vocab_size": 151_552,
    "tie_word_embeddings": False,
}
GLM_AIR = {
    **GLM,
    "num_hidden_layers": 46,
    "hidden_size": 4096,
    "intermediate_size": 10_944,
    "n_routed_experts": 128,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "use_qk_norm": False,
}
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 36,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "vocab_size": 201_088,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4"},
}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32_000,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "intermediate_size": 18_432,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "num_nextn_predict_layers": 1,
    "vocab_size": 129_280,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
DEEPSEEK_V2 = {
    **{
        key: value
        for key, value in DEEPSEEK_V3.items()
        if key not in ("quantization_config", "num_nextn_predict_layers")
    },
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "num_hidden_layers": 60,
    "hidden_size": 5120,
    "intermediate_size": 12_288,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1536,
    "first_k_dense_replace": 1,
    "vocab_size": 102_400,
}


def bf16(name: str, outputs: int, inputs: int) -> list[Spec]:
    """As it is."""
    return [Spec(f"{name}.weight", "BF16", (outputs, inputs))]


def fp8(scale: str) -> Encode:
    """FP8 with one `scale` for 128 x 128."""

    def encode(name: str, outputs: int, inputs: int) -> list[Spec]:
        blocks = (-(-outputs // 128), -(-inputs // 128))
        return [Spec(f"{name}.weight", "F8_E4M3", (outputs, inputs)), Spec(f"{name}.weight_scale_inv", scale, blocks)]

    return encode


def nvfp4(name: str, outputs: int, inputs: int) -> list[Spec]:
    """4 bits with one FP8 scale for 16, and one for all, as ModelOpt writes it."""
    return [
        Spec(f"{name}.weight", "U8", (outputs, inputs // 2)),
        Spec(f"{name}.weight_scale", "F8_E4M3", (outputs, inputs // 16)),
        Spec(f"{name}.weight_scale_2", "F32", ()),
        Spec(f"{name}.input_scale", "F32", ()),
    ]


def vector(name: str, length: int, dtype: str = "BF16") -> Spec:
    """A norm or a bias."""
    return Spec(name, dtype, (length,))


def mlp(stem: str, hidden: int, inner: int, encode: Encode) -> list[Spec]:
    """Gate, up and down."""
    made = encode(f"{stem}.gate_proj", inner, hidden) + encode(f"{stem}.up_proj", inner, hidden)
    return made + encode(f"{stem}.down_proj", hidden, inner)


def grouped_query(
    stem: str, config: dict[str, Any], encode: Encode, *, bias: str = "", norms: bool = False
) -> list[Spec]:
    """q, k, v, o; `bias`: which of them have one."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim", hidden // heads)
    sizes = {"q": heads * width, "k": config["num_key_value_heads"] * width, "v": config["num_key_value_heads"] * width}
    made = [spec for one, size in sizes.items() for spec in encode(f"{stem}.{one}_proj", size, hidden)]
    made += encode(f"{stem}.o_proj", hidden, heads * width)
    made += [vector(f"{stem}.{one}_proj.bias", sizes.get(one, hidden)) for one in bias]
    return made + [vector(f"{stem}.{one}_norm.weight", width) for one in ("q", "k") if norms]


def latent(stem: str, config: dict[str, Any], encode: Encode) -> list[Spec]:
    """Multi-head latent attention."""
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    made = encode(f"{stem}.q_a_proj", config["q_lora_rank"], hidden)
    made += encode(f"{stem}.q_b_proj", heads * (nope + rope), config["q_lora_rank"])
    made += encode(f"{stem}.kv_a_proj_with_mqa", rank + rope, hidden)
    made += encode(f"{stem}.kv_b_proj", heads * (nope + value), rank)
    made += encode(f"{stem}.o_proj", hidden, heads * value)
    norms = (("q_a_layernorm", config["q_lora_rank"]), ("kv_a_layernorm", rank))
    return made + [vector(f"{stem}.{name}.weight", length) for name, length in norms]


def ends(config: dict[str, Any], prefix: str = "") -> list[Spec]:
    """Embedding and head, or the copies of them in a prediction layer."""
    table = (config["vocab_size"], config["hidden_size"])
    if prefix:
        return [Spec(f"{prefix}.{name}.weight", "BF16", table) for name in ("embed_tokens", "shared_head.head")]
    made = [Spec(f"{name}.weight", "BF16", table) for name in ("model.embed_tokens", "lm_head")]
    return [*made, vector("model.norm.weight", config["hidden_size"])]


def norms_of(prefix: str, hidden: int) -> list[Spec]:
    """The two of every layer."""
    return [vector(f"{prefix}.{name}.weight", hidden) for name in ("input_layernorm", "post_attention_layernorm")]


def spread(pieces: Sequence[list[Spec]], count: int) -> Shards:
    """Layers over `count` shards, neighbours together."""
    size = -(-len(pieces) // count)
    groups = [pieces[start : start + size] for start in range(0, len(pieces), size)]
    return {
        shard_name(number + 1, len(groups)): [spec for piece in group for spec in piece]
        for number, group in enumerate(groups)
    }


def qwen3_moe(fp8_blocks: bool = False) -> Pack:
    """Qwen3-30B-A3B; or its FP8 form."""
    encode, hidden = fp8("BF16") if fp8_blocks else bf16, 2048
    pieces = [ends(QWEN)]
    for layer in range(48):
        prefix = f"model.layers.{layer}"
        piece = norms_of(prefix, hidden) + grouped_query(f"{prefix}.self_attn", QWEN, encode, norms=True)
        piece += bf16(f"{prefix}.mlp.gate", 128, hidden)
        for expert in range(128):
            piece += mlp(f"{prefix}.mlp.experts.{expert}", hidden, 768, encode)
        pieces.append(piece)
    quantization = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    return spread(pieces, 7 if fp8_blocks else 16), {**QWEN, **(quantization if fp8_blocks else {})}


def mixtral() -> Pack:
    """Mixtral-8x7B."""
    pieces = [ends(MIXTRAL)]
    for layer in range(32):
        prefix = f"model.layers.{layer}"
        piece = norms_of(prefix, 4096) + grouped_query(f"{prefix}.self_attn", MIXTRAL, bf16)
        piece += bf16(f"{prefix}.block_sparse_moe.gate", 8, 4096)
        for expert in range(8):
            stem = f"{prefix}.block_sparse_moe.experts.{expert}"
            piece += (
                bf16(f"{stem}.w1", 14_336, 4096) + bf16(f"{stem}.w2", 4096, 14_336) + bf16(f"{stem}.w3", 14_336, 4096)
            )
        pieces.append(piece)
    return spread(pieces, 19), dict(MIXTRAL)


def gpt_oss() -> Pack:
    """gpt-oss-120b: one tensor for all experts of a layer, 32 FP4 numbers and a scale to a block."""
    experts, width = 128, 2880
    pieces = [ends(GPT_OSS)]
    for layer in range(36):
        prefix = f"model.layers.{layer}"
        piece = norms_of(prefix, width) + grouped_query(f"{prefix}.self_attn", GPT_OSS, bf16, bias="qkvo")
        piece.append(vector(f"{prefix}.self_attn.sinks", 64))
        piece += [*bf16(f"{prefix}.mlp.router", experts, width), vector(f"{prefix}.mlp.router.bias", experts)]
        for name, outputs in (("gate_up_proj", 2 * width), ("down_proj", width)):
            stem = f"{prefix}.mlp.experts.{name}"
            piece.append(Spec(f"{stem}_blocks", "U8", (experts, outputs, width // 32, 16)))
            piece.append(Spec(f"{stem}_scales", "U8", (experts, outputs, width // 32)))
            piece.append(Spec(f"{stem}_bias", "BF16", (experts, outputs)))
        pieces.append(piece)
    return spread(pieces, 15), dict(GPT_OSS)


def glm45(air: bool = False) -> Pack:
    """GLM-4.5, or -Air: dense layers first, a prediction layer behind the last."""
    config = dict(GLM_AIR if air else GLM)

    def attend(stem: str) -> list[Spec]:
        return grouped_query(stem, config, bf16, bias="qkv", norms=bool(config["use_qk_norm"]))

    return spread(_after_dense(config, attend, bf16, correction=True), 47 if air else 93), config


def deepseek_v3() -> Pack:
    """DeepSeek-V3: FP8 in blocks of 128 x 128."""
    encode = fp8("F32")
    pieces = _after_dense(DEEPSEEK_V3, lambda stem: latent(stem, DEEPSEEK_V3, encode), encode, correction=True)
    return spread(pieces, 63), dict(DEEPSEEK_V3)


def deepseek_v2() -> Pack:
    """DeepSeek-V2: BF16, no prediction layer."""
    pieces = _after_dense(DEEPSEEK_V2, lambda stem: latent(stem, DEEPSEEK_V2, bf16), bf16, correction=False)
    return spread(pieces, 55), dict(DEEPSEEK_V2)


def _after_dense(
    config: dict[str, Any], attend: Callable[[str], list[Spec]], encode: Encode, *, correction: bool
) -> list[list[Spec]]:
    hidden, inner, experts = config["hidden_size"], config["moe_intermediate_size"], config["n_routed_experts"]
    pieces = [ends(config)]
    for layer in range(config["num_hidden_layers"] + config.get("num_nextn_predict_layers", 0)):
        prefix = f"model.layers.{layer}"
        piece = norms_of(prefix, hidden) + attend(f"{prefix}.self_attn")
        if layer < config["first_k_dense_replace"]:
            piece += mlp(f"{prefix}.mlp", hidden, config["intermediate_size"], encode)
        else:
            piece += bf16(f"{prefix}.mlp.gate", experts, hidden)
            piece += [vector(f"{prefix}.mlp.gate.e_score_correction_bias", experts, "F32")] if correction else []
            piece += mlp(f"{prefix}.mlp.shared_experts", hidden, inner * config["n_shared_experts"], encode)
            for expert in range(experts):
                piece += mlp(f"{prefix}.mlp.experts.{expert}", hidden, inner, encode)
        if layer >= config["num_hidden_layers"]:
            piece += [vector(f"{prefix}.{name}.weight", hidden) for name in ("enorm", "hnorm", "shared_head.norm")]
            piece += [*bf16(f"{prefix}.eh_proj", hidden, 2 * hidden), *ends(config, prefix)]
        pieces.append(piece)
    return pieces
