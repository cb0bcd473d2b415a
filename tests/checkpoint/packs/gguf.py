"""GGUF headers of Mixtral, Qwen3-30B-A3B, GLM-4.5-Air, gpt-oss-120b and DeepSeek-V3 as values. Pure.

Numbers are F16 and F32 here: what a family makes of a file hangs on names, shapes and lengths, not on the quantiser.
Shapes are as reading gives them, the outermost first: (experts, outputs, inputs).
Source: the names in llama.cpp's gguf-py constants, and the metadata that its converter writes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from appliance.checkpoint.tensors import Checkpoint, Format
from tests.checkpoint.packs.memory import checkpoint_of
from tests.checkpoint.packs.writer import Spec


class Shape(NamedTuple):
    """Numbers of a model; `layers` counts the prediction layers (`drafts`) too, as the file does."""

    layers: int
    hidden: int
    inner: int
    experts: int
    top_k: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_dim: int = 128
    dense: int = 0
    drafts: int = 0
    window: int = 0


SHAPES = {
    "llama": Shape(32, 4096, 14_336, 8, 2, 32, 8, 32_000),
    "qwen3moe": Shape(48, 2048, 768, 128, 8, 32, 4, 151_936),
    "glm4moe": Shape(47, 4096, 1408, 128, 8, 96, 8, 151_552, dense=1, drafts=1),
    "gpt-oss": Shape(36, 2880, 2880, 128, 4, 64, 8, 201_088, head_dim=64, window=128),
    "deepseek2": Shape(61, 7168, 2048, 256, 8, 128, 1, 129_280, dense=3),
}
"""`general.architecture` -> the model that it stands for here."""


def metadata(architecture: str) -> dict[str, Any]:
    """What the file says of itself."""
    shape = SHAPES[architecture]
    keys = {
        "block_count": shape.layers,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.inner if architecture == "llama" else 4 * shape.hidden,
        "expert_count": shape.experts,
        "expert_used_count": shape.top_k,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
    }
    if architecture != "llama":
        keys |= {"expert_feed_forward_length": shape.inner, "attention.key_length": shape.head_dim}
    if architecture == "deepseek2":
        keys |= {"attention.kv_lora_rank": 512, "rope.dimension_count": 64, "attention.key_length_mla": 192}
    some = {
        "leading_dense_block_count": shape.dense,
        "nextn_predict_layers": shape.drafts,
        "attention.sliding_window": shape.window,
    }
    keys |= {key: value for key, value in some.items() if value}
    return {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in keys.items()}}


def gguf(architecture: str) -> Checkpoint:
    """One file."""
    shape = SHAPES[architecture]
    hidden, inner, experts = shape.hidden, shape.inner, shape.experts
    made = [
        Spec("token_embd.weight", "F16", (shape.vocabulary, hidden)),
        Spec("output.weight", "F16", (shape.vocabulary, hidden)),
        Spec("output_norm.weight", "F32", (hidden,)),
    ]
    for layer in range(shape.layers):
        stem = f"blk.{layer}"
        second = "post_attention_norm" if architecture in ("glm4moe", "gpt-oss") else "ffn_norm"
        made += [Spec(f"{stem}.{name}.weight", "F32", (hidden,)) for name in ("attn_norm", second)]
        made += _attention(stem, architecture)
        if layer < shape.dense:
            made += [Spec(f"{stem}.ffn_{name}.weight", "F16", (4 * hidden, hidden)) for name in ("gate", "up", "down")]
            continue
        made.append(Spec(f"{stem}.ffn_gate_inp.weight", "F32", (experts, hidden)))
        made += [Spec(f"{stem}.ffn_{name}_exps.weight", "F16", (experts, inner, hidden)) for name in ("gate", "up")]
        made.append(Spec(f"{stem}.ffn_down_exps.weight", "F16", (experts, hidden, inner)))
        if architecture in ("glm4moe", "deepseek2"):
            made += [Spec(f"{stem}.ffn_{name}_shexp.weight", "F16", (inner, hidden)) for name in ("gate", "up", "down")]
            made.append(Spec(f"{stem}.exp_probs_b.bias", "F32", (experts,)))
        if architecture == "gpt-oss":
            made += [Spec(f"{stem}.ffn_{name}_exps.bias", "F32", (experts, inner)) for name in ("gate", "up")]
            made.append(Spec(f"{stem}.ffn_down_exps.bias", "F32", (experts, hidden)))
            made.append(Spec(f"{stem}.ffn_gate_inp.bias", "F32", (experts,)))
            made.append(Spec(f"{stem}.attn_sinks.weight", "F32", (shape.heads,)))
    if shape.drafts:
        stem = f"blk.{shape.layers - 1}.nextn"
        made += [Spec(f"{stem}.{name}.weight", "F32", (hidden,)) for name in ("enorm", "hnorm", "shared_head_norm")]
        made.append(Spec(f"{stem}.eh_proj.weight", "F16", (hidden, 2 * hidden)))
        made += [
            Spec(f"{stem}.{name}.weight", "F16", (shape.vocabulary, hidden))
            for name in ("embed_tokens", "shared_head_head")
        ]
    return checkpoint_of({f"{architecture}.gguf": made}, metadata(architecture), Format.GGUF)


def _attention(stem: str, architecture: str) -> list[Spec]:
    shape = SHAPES[architecture]
    hidden, heads = shape.hidden, shape.heads
    if architecture == "deepseek2":
        sizes: dict[str, tuple[int, ...]] = {
            "attn_q_a": (1536, hidden),
            "attn_q_b": (heads * 192, 1536),
            "attn_kv_a_mqa": (576, hidden),
            "attn_k_b": (heads, 512, 128),
            "attn_v_b": (heads, 128, 512),
            "attn_output": (hidden, heads * 128),
            "attn_q_a_norm": (1536,),
            "attn_kv_a_norm": (512,),
        }
    else:
        width = shape.head_dim
        sizes = {
            "attn_q": (heads * width, hidden),
            "attn_k": (shape.kv_heads * width, hidden),
            "attn_v": (shape.kv_heads * width, hidden),
            "attn_output": (hidden, heads * width),
        }
    made = [Spec(f"{stem}.{name}.weight", "F16" if len(size) > 1 else "F32", size) for name, size in sizes.items()]
    biased = {"glm4moe": ("attn_q", "attn_k", "attn_v"), "gpt-oss": tuple(sizes)}.get(architecture, ())
    return made + [Spec(f"{stem}.{name}.bias", "F32", sizes[name][:1]) for name in biased]
