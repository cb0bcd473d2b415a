"""DeepSeek-V4.1-Flash: the released checkpoint, a routed-only EXL3 pack, and a stand-in for the study's pack. Pure.

`released` is exact: 96,085 tensors and 510,286,023,000 bytes are what was published, and its index names shards 47 and
48 for the Engram tables. How the rest is spread over shards 1 to 46 is ours.

`study_pack` is a reconstruction. The study says 309.3 GiB in all and 102.1 GiB a card; nobody has published the pack's
layout. A public 3 bpw pack without Engram (experts 3, draft 4, attention 5, shared experts 4 or 5, head 6, indexer keys
8, Engram projections 5 and 4 bits, the rest as released) has 204.12 GiB by a public log, so its half is 102.06. What is
left to 309.3 is 147 B for each Engram row, which is no format that anybody is known to use: the rows here are bytes.
Where that pack's map leaves bits open (the draft's attention and shared experts: 5, `main_proj`: as released), they
are chosen so that its sum comes out. `wo_a` is stored by its eight output groups, since only so does the number of that
pack's matrices, 47,900, come out; how it names them is not known.
Source: facts/checkpoint-and-offload.md 1.1 to 1.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.checkpoint.packs.standard import bf16
from tests.checkpoint.packs.writer import Shards, Spec, shard_name

HIDDEN, INNER, EXPERTS, DRAFT_EXPERTS, LAYERS, DRAFTS = 5120, 2304, 384, 128, 40, 3
VOCABULARY = 129_280
ENGRAM_ROWS = {1: 384_006_168, 14: 384_016_682}
INDEX_LAYERS = (2, 8, 14, 20, 24, 28, 32, 36)
KV_LAYERS = (2, 8, 14, 20)
ROW_BYTES = 147
SHARDS = 48

Encode = Callable[[str, int, int], list[Spec]]
"""(name, outputs, inputs) -> the tensors that one matrix is stored as."""


def fp8(name: str, outputs: int, inputs: int) -> list[Spec]:
    """FP8 with one scale for 32 x 32."""
    blocks = (-(-outputs // 32), -(-inputs // 32))
    return [Spec(f"{name}.weight", "F8_E4M3", (outputs, inputs)), Spec(f"{name}.scale", "F8_E8M0", blocks)]


def fp4(name: str, outputs: int, inputs: int) -> list[Spec]:
    """FP4, two to a byte, with one scale for 32 inputs."""
    return [
        Spec(f"{name}.weight", "I8", (outputs, inputs // 2)),
        Spec(f"{name}.scale", "F8_E8M0", (outputs, inputs // 32)),
    ]


def exl3(bits: int) -> Encode:
    """EXL3 with `bits` a number: in * out * bits / 8 + 2 (in + out) + 4 bytes."""

    def encode(name: str, outputs: int, inputs: int) -> list[Spec]:
        return [
            Spec(f"{name}.trellis", "I16", (inputs // 16, outputs // 16, 16 * bits)),
            Spec(f"{name}.suh", "F16", (inputs,)),
            Spec(f"{name}.svh", "F16", (outputs,)),
            Spec(f"{name}.mul1", "I32", (1,)),
        ]

    return encode


def experts(prefix: str, count: int, encode: Encode) -> list[Spec]:
    """A layer's routed experts."""
    made = []
    for expert in range(count):
        stem = f"{prefix}.ffn.experts.{expert}"
        made += encode(f"{stem}.w1", INNER, HIDDEN)
        made += encode(f"{stem}.w2", HIDDEN, INNER)
        made += encode(f"{stem}.w3", INNER, HIDDEN)
    return made


def vectors(prefix: str, count: int) -> list[Spec]:
    """What a layer has that nobody quantises: norms, router, hyper-connections."""
    made = [
        Spec(f"{prefix}.attn.q_norm.weight", "BF16", (1280,)),
        Spec(f"{prefix}.attn.kv_norm.weight", "BF16", (512,)),
        Spec(f"{prefix}.attn.attn_sink", "F32", (64,)),
        Spec(f"{prefix}.attn_norm.weight", "BF16", (HIDDEN,)),
        Spec(f"{prefix}.ffn_norm.weight", "BF16", (HIDDEN,)),
        Spec(f"{prefix}.ffn.gate.weight", "BF16", (count, HIDDEN)),
        Spec(f"{prefix}.ffn.gate.bias", "F32", (count,)),
        Spec(f"{prefix}.ffn.gate.bias_vl", "F32", (count,)),
    ]
    for side in ("attn", "ffn"):
        made.append(Spec(f"{prefix}.hc_{side}_fn", "F32", (24, 4 * HIDDEN)))
        made.append(Spec(f"{prefix}.hc_{side}_base", "F32", (24,)))
        made.append(Spec(f"{prefix}.hc_{side}_scale", "F32", (3,)))
    return made


def attention(prefix: str, encode: Encode, groups: int = 1) -> list[Spec]:
    """The five projections; `groups`: into how many matrices `wo_a` is stored."""
    made = encode(f"{prefix}.attn.wq_a", 1280, HIDDEN)
    made += encode(f"{prefix}.attn.wq_b", 32_768, 1280)
    made += encode(f"{prefix}.attn.wkv", 512, HIDDEN)
    for group in range(groups):
        suffix = f".{group}" if groups > 1 else ""
        made += encode(f"{prefix}.attn.wo_a{suffix}", 8192 // groups, 4096)
    return made + encode(f"{prefix}.attn.wo_b", HIDDEN, 8192)


def shared(prefix: str, encode: Encode) -> list[Spec]:
    """The shared expert."""
    stem = f"{prefix}.ffn.shared_experts"
    return (
        encode(f"{stem}.w1", INNER, HIDDEN) + encode(f"{stem}.w2", HIDDEN, INNER) + encode(f"{stem}.w3", INNER, HIDDEN)
    )


def sparse_attention(layer: int, projection: Encode, key: Encode, compressor: Encode) -> list[Spec]:
    """Indexer and compressor of the layers that have them."""
    made: list[Spec] = []
    stem = f"layers.{layer}.attn"
    if layer in INDEX_LAYERS:
        made += projection(f"{stem}.indexer.wq_b", 4096, 1280)
        made.append(Spec(f"{stem}.indexer.weights_proj.weight", "BF16", (32, HIDDEN)))
    if layer in KV_LAYERS:
        made += key(f"{stem}.indexer.wk", 128, 512)
        made.append(Spec(f"{stem}.indexer.k_norm.weight", "BF16", (128,)))
        made += compressor(f"{stem}.compressor.wkv", 512, HIDDEN)
        made.append(Spec(f"{stem}.compressor.norm.weight", "BF16", (512,)))
        if layer != KV_LAYERS[-1]:
            made += compressor(f"{stem}.compressor.wgate", 512, HIDDEN)
    return made


def engram(layer: int, encode: Encode) -> list[Spec]:
    """What reads the Engram tables."""
    stem = f"layers.{layer}.engram"
    gates = [Spec(f"{stem}.{name}", "BF16", (4, HIDDEN)) for name in ("q_weight", "k_weight")]
    return encode(f"{stem}.wkv", 25_600, 6144) + gates


def draft_ends(stage: int) -> list[Spec]:
    """What only the first or the last stage of the draft has."""
    if stage == 0:
        return [Spec("mtp.0.main_norm.weight", "BF16", (HIDDEN,)), *fp8("mtp.0.main_proj", HIDDEN, 3 * HIDDEN)]
    if stage < DRAFTS - 1:
        return []
    stem = f"mtp.{stage}"
    return [
        Spec(f"{stem}.norm.weight", "BF16", (HIDDEN,)),
        Spec(f"{stem}.markov_head.embed.weight", "BF16", (VOCABULARY, 256)),
        Spec(f"{stem}.markov_head.head.weight", "BF16", (VOCABULARY, 256)),
        Spec(f"{stem}.confidence_head.proj.weight", "BF16", (1, HIDDEN + 256)),
    ]


def vision() -> list[Spec]:
    """The vision tower and its aligner."""

    def matrix(name: str, outputs: int, inputs: int, bias: bool = True) -> Iterator[Spec]:
        yield Spec(f"{name}.weight", "BF16", (outputs, inputs))
        if bias:
            yield Spec(f"{name}.bias", "BF16", (outputs,))

    made = [*matrix("vision.patch_embed.proj", 1024, 588)]
    for number in range(32):
        block = f"vision.blocks.{number}"
        made += matrix(f"{block}.attn.wqkv", 3072, 1024)
        made += matrix(f"{block}.attn.wo", 1024, 1024)
        made += matrix(f"{block}.mlp.w1", 5632, 1024, bias=False)
        made += matrix(f"{block}.mlp.w2", 1024, 2816, bias=False)
        made += [Spec(f"{block}.{norm}.weight", "BF16", (1024,)) for norm in ("norm1", "norm2")]
    made.append(Spec("vision.norm.weight", "BF16", (1024,)))
    return [*made, *matrix("aligner.w1", HIDDEN, 9216), *matrix("aligner.w2", HIDDEN, HIDDEN)]


def root(head: Encode) -> list[list[Spec]]:
    """What stands outside of layers: the embedding and some vectors, the head."""
    names = ("norm.weight", "image_start", "image_end", "image_newline")
    made = [*bf16("embed", VOCABULARY, HIDDEN), *(Spec(name, "BF16", (HIDDEN,)) for name in names)]
    return [made, head("head", VOCABULARY, HIDDEN)]


def tables(layer: int) -> list[Spec]:
    """An Engram table as released: 264 bytes a row."""
    rows, stem = ENGRAM_ROWS[layer], f"layers.{layer}.engram.embed"
    return [Spec(f"{stem}.weight", "F8_E4M3", (rows, 256)), Spec(f"{stem}.scale", "F8_E8M0", (rows, 8))]


def _shards(pieces: list[list[Spec]], last: list[list[Spec]]) -> Shards:
    """`pieces` in shards 1 to 46, `last` in 47 and 48."""
    names = (shard_name(number + 1, SHARDS) for number in range(SHARDS))
    return dict(zip(names, pieces + last, strict=True))


def _as_released(main: Encode) -> Shards:
    pieces = [experts(f"layers.{layer}", EXPERTS, main) for layer in range(LAYERS)]
    pieces += [experts(f"mtp.{stage}", DRAFT_EXPERTS, fp4) for stage in range(DRAFTS)]
    pieces += [vision(), *root(bf16)]
    for number in range(LAYERS + DRAFTS):
        draft = number >= LAYERS
        prefix = f"mtp.{number - LAYERS}" if draft else f"layers.{number}"
        piece = vectors(prefix, DRAFT_EXPERTS if draft else EXPERTS) + attention(prefix, fp8) + shared(prefix, fp8)
        piece += draft_ends(number - LAYERS) if draft else sparse_attention(number, fp8, bf16, bf16)
        pieces[number] = piece + pieces[number]
    return _shards(pieces, [tables(layer) + engram(layer, fp8) for layer in ENGRAM_ROWS])


def released() -> tuple[Shards, dict[str, Any]]:
    """The released checkpoint: experts FP4, the rest FP8 and BF16."""
    return _as_released(fp4), config({"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"})


def exl3_routed_only(k: int) -> tuple[Shards, dict[str, Any]]:
    """The backbone's experts as EXL3 of `k` bits, all else as released: 188,245 tensors."""
    source = {"quant_method": "deepseek_v4_fp8", "weight_block_size": [32, 32]}
    quantization = {"quant_method": "exl3", "bits": k, "codebook": "mul1", "mtp_experts": "source"}
    return _as_released(exl3(k)), config({**quantization, "non_routed_quantization": source})


def study_pack() -> tuple[Shards, dict[str, Any]]:
    """A stand-in for the pack of the study; see above for what it is made of."""
    pieces = [experts(f"layers.{layer}", EXPERTS, exl3(3)) for layer in range(LAYERS)]
    pieces += [experts(f"mtp.{stage}", DRAFT_EXPERTS, exl3(4)) for stage in range(DRAFTS)]
    pieces += [vision(), *root(exl3(6))]
    for number in range(LAYERS + DRAFTS):
        draft = number >= LAYERS
        prefix = f"mtp.{number - LAYERS}" if draft else f"layers.{number}"
        piece = vectors(prefix, DRAFT_EXPERTS if draft else EXPERTS) + attention(prefix, exl3(5), groups=8)
        piece += shared(prefix, exl3(4 if 11 <= number <= 29 else 5))
        piece += draft_ends(number - LAYERS) if draft else sparse_attention(number, exl3(5), exl3(8), exl3(5))
        pieces[number] = piece + pieces[number]
    last = [
        [Spec(f"layers.{layer}.engram.embed.weight", "U8", (rows, ROW_BYTES)), *engram(layer, exl3(bits))]
        for (layer, rows), bits in zip(ENGRAM_ROWS.items(), (5, 4), strict=True)
    ]
    return _shards(pieces, last), config({"quant_method": "exl3", "bits": 3.0, "codebook": "mul1", "head_bits": 6})


def config(quantization: dict[str, Any]) -> dict[str, Any]:
    """config.json, the keys that say something of shape."""
    text = {
        "model_type": "deepseek_v41_text",
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1280,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1_048_576,
        "first_k_dense_replace": 0,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": INNER,
        "sliding_window": 128,
        "compress_ratios": [0] * 2 + [2] * 18 + [1] * 20 + [0] * 3,
        "kv_source_layer_ids": list(KV_LAYERS),
        "index_source_layer_ids": list(INDEX_LAYERS),
        "engram_layer_ids": list(ENGRAM_ROWS),
        "engram_num_embeddings": list(ENGRAM_ROWS.values()),
        "engram_max_ngram_size": 4,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "num_nextn_predict_layers": DRAFTS,
        "dspark_n_routed_experts": DRAFT_EXPERTS,
        "dspark_num_experts_per_tok": 3,
        "tie_word_embeddings": False,
    }
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "text_config": text,
        "vision_config": {"num_hidden_layers": 32, "hidden_size": 1024, "intermediate_size": 2816},
        "quantization_config": quantization,
    }
