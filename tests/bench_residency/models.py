"""Small MoE checkpoints with random weights, one for each method, and shapes without weights. Touches one folder.

Weights are random but of a useful scale, and norms are 1: with vLLM's dummy weights experts hardly matter, and any
mistake in placing them would pass. Source of the formats: vLLM 0.26.0's loaders.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SEED = 7
STD = 0.03
VOCABULARY = 4096
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Qwen3-MoE."""

    hidden: int
    expert: int
    layers: int
    experts: int
    top_k: int
    heads: int
    kv_heads: int = 4
    head: int = 64

    @property
    def expert_bytes(self) -> int:
        """Of all experts, bf16."""
        return self.layers * self.experts * 3 * self.hidden * self.expert * 2


SMALL = Shape(hidden=1024, expert=512, layers=6, experts=64, top_k=6, heads=16)
MIDDLE = Shape(hidden=2048, expert=768, layers=12, experts=128, top_k=8, heads=32, head=128)
WIDE = Shape(hidden=1024, expert=128, layers=48, experts=512, top_k=10, heads=16)
"""As many experts as the largest models have, and small ones: what deciding about them costs a step."""
HUGE = Shape(hidden=4096, expert=1536, layers=36, experts=128, top_k=8, heads=32, head=128)
"""162 GiB of experts: more than a card of 140 GiB holds."""
BACKENDS = {"bf16": "triton", "fp8": "triton", "awq": "marlin", "nvfp4": "marlin", "mxfp4": "marlin"}
"""Method -> the --moe-backend that placement asks for."""


def config(folder: Path, shape: Shape, quantization: dict[str, Any] | None = None) -> Path:
    """The folder with a config.json and no weights: enough for `--load-format dummy`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": shape.hidden,
        "intermediate_size": 2 * shape.hidden,
        "moe_intermediate_size": shape.expert,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": 0,
    }
    if quantization:
        found["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(found))
    return folder


def checkpoint(folder: Path, method: str, shape: Shape = SMALL) -> Path:
    """A folder with weights for `method`, one of BACKENDS; one that is there already is left."""
    if (folder / "model.safetensors").exists():
        return folder
    chance = torch.Generator().manual_seed(SEED)
    tensors: Tensors = {}
    if method == "mxfp4":
        _gpt_oss(folder, tensors, chance, shape)
    else:
        quantization, expert = _METHODS[method]
        config(folder, shape, quantization(shape) if quantization else None)
        _backbone(tensors, chance, shape)
        for layer in range(shape.layers):
            for number in range(shape.experts):
                name = f"model.layers.{layer}.mlp.experts.{number}"
                expert(tensors, chance, f"{name}.gate_proj", shape.expert, shape.hidden)
                expert(tensors, chance, f"{name}.up_proj", shape.expert, shape.hidden)
                expert(tensors, chance, f"{name}.down_proj", shape.hidden, shape.expert)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _normal(chance: torch.Generator, *size: int) -> torch.Tensor:
    return (torch.randn(*size, generator=chance) * STD).to(torch.bfloat16)


def _bytes(chance: torch.Generator, *size: int) -> torch.Tensor:
    return torch.randint(0, 256, size, generator=chance).to(torch.uint8)


def _around(chance: torch.Generator, value: float, *size: int) -> torch.Tensor:
    return value * (0.7 + 0.6 * torch.rand(*size, generator=chance))


def _frame(tensors: Tensors, chance: torch.Generator, shape: Shape) -> None:
    """What all of them have beside routers and experts."""
    for name in ("model.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = _normal(chance, VOCABULARY, shape.hidden)
    tensors["model.norm.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}.{norm}.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
        for letter, out, into in _attention(shape):
            tensors[f"{name}.self_attn.{letter}_proj.weight"] = _normal(chance, out, into)


def _backbone(tensors: Tensors, chance: torch.Generator, shape: Shape) -> None:
    _frame(tensors, chance, shape)
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        for norm in ("q_norm", "k_norm"):
            tensors[f"{name}.self_attn.{norm}.weight"] = torch.ones(shape.head, dtype=torch.bfloat16)
        tensors[f"{name}.mlp.gate.weight"] = _normal(chance, shape.experts, shape.hidden)


def _attention(shape: Shape) -> tuple[tuple[str, int, int], ...]:
    wide, narrow = shape.heads * shape.head, shape.kv_heads * shape.head
    return (
        ("q", wide, shape.hidden),
        ("k", narrow, shape.hidden),
        ("v", narrow, shape.hidden),
        ("o", shape.hidden, wide),
    )


def _bf16(tensors: Tensors, chance: torch.Generator, name: str, out: int, into: int) -> None:
    tensors[f"{name}.weight"] = _normal(chance, out, into)


def _fp8(tensors: Tensors, chance: torch.Generator, name: str, out: int, into: int) -> None:
    """Blocks of 128 x 128."""
    tensors[f"{name}.weight"] = (60 * torch.randn(out, into, generator=chance)).clamp(-440, 440).to(torch.float8_e4m3fn)
    tensors[f"{name}.weight_scale_inv"] = _around(chance, STD / 60, out // 128, into // 128)


def _awq(tensors: Tensors, chance: torch.Generator, name: str, out: int, into: int) -> None:
    """4 bits, groups of 64, zero points of 6 to 9."""
    zeros = 6 + torch.randint(0, 4, (into // 64, out), generator=chance)
    packed = (zeros[:, 0::2] | (zeros[:, 1::2] << 4)).to(torch.uint8).contiguous()
    tensors[f"{name}.qweight"] = _bytes(chance, into, out // 2).view(torch.int32)
    tensors[f"{name}.qzeros"] = packed.view(torch.int32)
    tensors[f"{name}.scales"] = _around(chance, STD / 4.6, into // 64, out).to(torch.float16)


def _nvfp4(tensors: Tensors, chance: torch.Generator, name: str, out: int, into: int) -> None:
    """4 bits, a scale for 16, and one for all."""
    tensors[f"{name}.weight"] = _bytes(chance, out, into // 2)
    tensors[f"{name}.weight_scale"] = _around(chance, 1.0, out, into // 16).to(torch.float8_e4m3fn)
    tensors[f"{name}.weight_scale_2"] = torch.tensor(STD / 3)
    tensors[f"{name}.input_scale"] = torch.tensor(1.0)


def _left_alone(shape: Shape) -> list[str]:
    names = [*(f"self_attn.{letter}_proj" for letter in ("q", "k", "v", "o", "qkv")), "mlp.gate"]
    return [f"model.layers.{layer}.{name}" for layer in range(shape.layers) for name in names] + ["lm_head"]


def _of_fp8(shape: Shape) -> dict[str, Any]:
    blocks = {"activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return {"quant_method": "fp8", "ignored_layers": _left_alone(shape), **blocks}


def _of_awq(shape: Shape) -> dict[str, Any]:
    skipped = ["self_attn", "mlp.gate.", "mlp.gate", "lm_head"]
    form = {"bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
    return {"quant_method": "awq", "modules_to_not_convert": skipped, **form}


def _of_nvfp4(shape: Shape) -> dict[str, Any]:
    form = {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": None}
    return {"quant_method": "modelopt", "ignore": _left_alone(shape), "exclude_modules": _left_alone(shape), **form}


_Expert = Callable[[Tensors, torch.Generator, str, int, int], None]
_METHODS: dict[str, tuple[Callable[[Shape], dict[str, Any]] | None, _Expert]] = {
    "bf16": (None, _bf16),
    "fp8": (_of_fp8, _fp8),
    "awq": (_of_awq, _awq),
    "nvfp4": (_of_nvfp4, _nvfp4),
}


def _gpt_oss(folder: Path, tensors: Tensors, chance: torch.Generator, shape: Shape) -> None:
    """MXFP4: vLLM reads it in gpt-oss's form alone, all experts of a layer in one tensor."""
    _gpt_oss_config(folder, shape)
    _frame(tensors, chance, shape)
    for layer in range(shape.layers):
        name = f"model.layers.{layer}"
        for letter, out, _ in _attention(shape):
            tensors[f"{name}.self_attn.{letter}_proj.bias"] = _normal(chance, out)
        tensors[f"{name}.self_attn.sinks"] = _normal(chance, shape.heads)
        tensors[f"{name}.mlp.router.weight"] = _normal(chance, shape.experts, shape.hidden)
        tensors[f"{name}.mlp.router.bias"] = _normal(chance, shape.experts)
        for matrix, out, into in (("gate_up", 2 * shape.expert, shape.hidden), ("down", shape.hidden, shape.expert)):
            block = f"{name}.mlp.experts.{matrix}_proj"
            tensors[f"{block}_blocks"] = _bytes(chance, shape.experts, out, into // 32, 16)
            tensors[f"{block}_scales"] = 118 + _bytes(chance, shape.experts, out, into // 32) % 3
            tensors[f"{block}_bias"] = _normal(chance, shape.experts, out)


def _gpt_oss_config(folder: Path, shape: Shape) -> None:
    config(folder, shape)
    found = json.loads((folder / "config.json").read_text())
    kinds = ["sliding_attention", "full_attention"]
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    found |= {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "intermediate_size": shape.expert,
        "num_local_experts": shape.experts,
        "experts_per_token": shape.top_k,
        "initial_context_length": 4096,
        "rope_theta": 150_000,
        "rope_scaling": yarn | {"original_max_position_embeddings": 4096},
        "sliding_window": 128,
        "layer_types": [kinds[layer % 2] for layer in range(shape.layers)],
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    }
    (folder / "config.json").write_text(json.dumps(found))
