"""A family: what a name is for and how it is cut, and what a context costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint.families import FAMILIES, Family, Unfit, find, flat
from appliance.checkpoint.families.kinds import Load, Place, TensorClass
from appliance.checkpoint.tensors import Checkpoint, Format
from tests.checkpoint.packs.fixtures import GGUF, PACKS, checkpoint

OF = {
    "released": "deepseek-v4.1",
    "exl3-routed-only": "deepseek-v4.1",
    "study": "deepseek-v4.1",
    "qwen3-moe": "qwen3-moe",
    "qwen3-moe-fp8": "qwen3-moe",
    "gpt-oss": "gpt-oss",
    "mixtral": "mixtral",
    "glm-4.5": "glm-4.5",
    "glm-4.5-air": "glm-4.5",
    "deepseek-v3": "deepseek-v3",
    "deepseek-v2": "deepseek-v2",
    "llama.gguf": "mixtral-gguf",
    "qwen3moe.gguf": "qwen3-moe-gguf",
    "glm4moe.gguf": "glm-4.5-gguf",
    "gpt-oss.gguf": "gpt-oss-gguf",
    "deepseek2.gguf": "deepseek-gguf",
}


def family(name: str) -> Family:
    found = find(checkpoint(name))
    assert isinstance(found, Family)
    return found


def reason(made: Checkpoint) -> str:
    found = find(made)
    assert isinstance(found, Unfit)
    return found.reason


@pytest.mark.parametrize("name", [*PACKS, *GGUF])
def test_the_family_of_a_pack_is_found(name: str) -> None:
    assert family(name).name == OF[name]


A, D, S, V = TensorClass.ATTENTION, TensorClass.DENSE, TensorClass.SHARED, TensorClass.VISION
DRAFT, HEAD, EMBEDDING = TensorClass.DRAFT, TensorClass.HEAD, TensorClass.EMBEDDING
PLACES = [
    ("released", "layers.3.attn.wq_a.weight", Place(A, 3, units=1)),
    ("released", "layers.3.attn.wkv.scale", Place(A, 3, units=1)),
    ("released", "layers.3.attn.wq_b.weight", Place(A, 3)),
    ("released", "layers.3.attn.wo_a.weight", Place(A, 3)),
    ("released", "layers.3.attn.wo_b.scale", Place(A, 3)),
    ("released", "layers.3.attn.attn_sink", Place(A, 3)),
    ("released", "layers.2.attn.indexer.wq_b.weight", Place(A, 2, units=1)),
    ("released", "layers.2.attn.compressor.wgate.weight", Place(A, 2, units=1)),
    ("released", "layers.3.ffn.gate.weight", Place(D, 3, units=1)),
    ("released", "layers.3.ffn.gate.bias_vl", Place(D, 3, units=1)),
    ("released", "layers.3.hc_attn_fn", Place(D, 3, units=1)),
    ("released", "layers.3.ffn.shared_experts.w2.weight", Place(S, 3)),
    ("released", "layers.1.engram.embed.scale", Place(TensorClass.ENGRAM, 1, units=24)),
    ("released", "layers.1.engram.q_weight", Place(D, 1, units=1)),
    ("released", "mtp.0.main_proj.weight", Place(DRAFT, 0, load=Load.DRAFT)),
    ("released", "mtp.2.norm.weight", Place(DRAFT, 2, units=1, load=Load.DRAFT)),
    ("released", "mtp.1.attn.wq_a.weight", Place(DRAFT, 1, units=1, load=Load.DRAFT)),
    ("released", "embed.weight", Place(EMBEDDING)),
    ("released", "head.weight", Place(HEAD)),
    ("released", "norm.weight", Place(D, units=1)),
    ("released", "vision.blocks.31.attn.wqkv.bias", Place(V, load=Load.VISION)),
    ("released", "vision.blocks.31.attn.wo.bias", Place(V, units=1, load=Load.VISION)),
    ("released", "aligner.w1.weight", Place(V, load=Load.VISION)),
    ("released", "image_newline", Place(V, units=1, load=Load.VISION)),
    ("study", "layers.0.attn.wo_a.7.trellis", Place(A, 0)),
    ("study", "layers.0.attn.wq_b.suh", Place(A, 0, units=1)),
    ("study", "layers.0.attn.wq_b.svh", Place(A, 0)),
    ("study", "layers.0.attn.wo_b.suh", Place(A, 0)),
    ("study", "layers.0.attn.wo_b.svh", Place(A, 0, units=1)),
    ("study", "layers.0.attn.wo_b.mul1", Place(A, 0, units=1)),
    ("qwen3-moe", "model.layers.47.self_attn.q_proj.weight", Place(A, 47)),
    ("qwen3-moe", "model.layers.47.self_attn.k_proj.weight", Place(A, 47, units=4)),
    ("qwen3-moe", "model.layers.47.self_attn.k_norm.weight", Place(A, 47, units=1)),
    ("qwen3-moe", "model.layers.47.mlp.gate.weight", Place(D, 47, units=1)),
    ("qwen3-moe-fp8", "model.layers.47.self_attn.v_proj.weight_scale_inv", Place(A, 47, units=4)),
    ("gpt-oss", "model.layers.0.self_attn.o_proj.bias", Place(A, 0, units=1)),
    ("gpt-oss", "model.layers.0.self_attn.v_proj.bias", Place(A, 0, units=8)),
    ("gpt-oss", "model.layers.0.self_attn.sinks", Place(A, 0)),
    ("gpt-oss", "model.layers.0.mlp.router.bias", Place(D, 0, units=1)),
    ("glm-4.5", "model.layers.0.mlp.down_proj.weight", Place(D, 0)),
    ("glm-4.5", "model.layers.3.mlp.shared_experts.up_proj.weight", Place(S, 3)),
    ("glm-4.5", "model.layers.3.mlp.gate.e_score_correction_bias", Place(D, 3, units=1)),
    ("glm-4.5", "model.layers.92.eh_proj.weight", Place(DRAFT, 0, units=1, load=Load.DRAFT)),
    ("glm-4.5", "model.layers.92.self_attn.k_proj.bias", Place(DRAFT, 0, units=8, load=Load.DRAFT)),
    ("glm-4.5", "model.layers.92.embed_tokens.weight", Place(DRAFT, 0, load=Load.NEVER)),
    ("deepseek-v3", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight", Place(A, 0, units=1)),
    ("deepseek-v3", "model.layers.0.self_attn.kv_b_proj.weight_scale_inv", Place(A, 0)),
    ("deepseek-v3", "model.layers.0.self_attn.q_a_layernorm.weight", Place(A, 0, units=1)),
    ("deepseek2.gguf", "blk.0.attn_kv_a_mqa.weight", Place(A, 0, units=61)),
    ("deepseek2.gguf", "token_embd.weight", Place(EMBEDDING, units=1)),
]


@pytest.mark.parametrize(("pack", "name", "place"), PLACES, ids=[f"{pack}:{name}" for pack, name, _ in PLACES])
def test_a_tensor_is_placed_and_cut_as_the_engine_does(pack: str, name: str, place: Place) -> None:
    assert name in {tensor.name for tensor in checkpoint(pack).tensors}
    assert family(pack).place(name) == place


EXPERTS = [
    ("released", "layers.39.ffn.experts.383.w3.weight", "w13_weight", 0, 383, 0),
    ("study", "layers.39.ffn.experts.383.w1.suh", "w13_suh", 1, 383, 0),
    ("study", "layers.39.ffn.experts.383.w2.suh", "w2_suh", 0, 383, 0),
    ("study", "layers.39.ffn.experts.383.w2.svh", "w2_svh", 1, 383, 0),
    ("qwen3-moe-fp8", "model.layers.1.mlp.experts.7.up_proj.weight_scale_inv", "w13_weight_scale_inv", 0, 7, 0),
    ("mixtral", "model.layers.1.block_sparse_moe.experts.7.w2.weight", "w2_weight", 0, 7, 0),
    ("gpt-oss", "model.layers.1.mlp.experts.down_proj_scales", "w2_weight_scale", 0, None, 128),
    ("gpt-oss", "model.layers.1.mlp.experts.down_proj_bias", "w2_bias", 1, None, 128),
    ("gpt-oss.gguf", "blk.1.ffn_gate_exps.bias", "ffn_gate_exps_bias", 0, None, 128),
]


@pytest.mark.parametrize(("pack", "name", "parameter", "units", "expert", "fused"), EXPERTS)
def test_an_experts_tensor_says_which_row_of_which_tensor_it_becomes(
    pack: str, name: str, parameter: str, units: int, expert: int | None, fused: int
) -> None:
    shape = next(tensor.shape for tensor in checkpoint(pack).tensors if tensor.name == name)

    place = family(pack).place(name, shape)

    assert place is not None
    assert (place.cls, place.parameter, place.units) == (TensorClass.ROUTED, parameter, units)
    assert (place.expert, place.fused) == (expert, fused)


def test_a_tensor_that_does_not_hold_all_experts_is_not_theirs() -> None:
    one = family("qwen3moe.gguf")

    assert one.place("blk.0.ffn_up_exps.weight", (128, 768, 2048)) is not None
    assert one.place("blk.0.ffn_up_exps.weight", (64, 768, 2048)) is None
    assert one.place("blk.0.ffn_up_exps.weight") is None


@pytest.mark.parametrize(
    ("pack", "name"),
    [
        ("released", "layers.40.attn.wq_a.weight"),
        ("released", "mtp.3.attn.wq_a.weight"),
        ("released", "layers.0.attn.wq_a.qs"),
        ("released", "layers.0.ffn.experts.0.w4.weight"),
        ("released", "layers.0.mlp.experts.0.w1.weight"),
        ("mixtral", "model.layers.32.input_layernorm.weight"),
        ("glm-4.5", "model.layers.93.enorm.weight"),
        ("llama.gguf", "blk.32.attn_q.weight"),
    ],
)
def test_a_name_that_no_table_has_is_nobodys(pack: str, name: str) -> None:
    assert family(pack).place(name) is None


@settings(deadline=None)
@given(name=st.text(max_size=80), shape=st.lists(st.integers(0, 500), max_size=4))
@pytest.mark.parametrize("pack", ["released", "glm-4.5", "gpt-oss", "gpt-oss.gguf"])
def test_no_name_breaks_a_family(pack: str, name: str, shape: list[int]) -> None:
    place = family(pack).place(name, shape)

    assert place is None or place.units >= 0


GQA = [
    ("qwen3-moe", 1, 2 * 48 * 4 * 128 * 2, 0),
    ("qwen3-moe", 2, 2 * 48 * 2 * 128 * 2, 0),
    ("qwen3-moe", 8, 2 * 48 * 1 * 128 * 2, 0),
    ("mixtral", 2, 2 * 32 * 4 * 128 * 2, 0),
    ("gpt-oss", 1, 2 * 18 * 8 * 64 * 2, 18 * 128 * 2 * 8 * 64 * 2),
    ("gpt-oss", 4, 2 * 18 * 2 * 64 * 2, 18 * 128 * 2 * 2 * 64 * 2),
    ("glm-4.5-air", 2, 2 * 47 * 4 * 128 * 2, 0),
    ("deepseek-v2", 1, 60 * 576 * 2, 0),
    ("deepseek-v2", 4, 60 * 576 * 2, 0),
    ("deepseek-v3", 2, 62 * 576 * 2, 0),
    ("qwen3moe.gguf", 2, 2 * 24 * 4 * 128 * 2, 0),
    ("deepseek2.gguf", 2, 31 * 576 * 2, 0),
    ("gpt-oss.gguf", 1, 2 * 18 * 8 * 64 * 2, 18 * 128 * 2 * 8 * 64 * 2),
]


@pytest.mark.parametrize(("pack", "tp", "token_bytes", "sequence_bytes"), GQA)
def test_a_context_costs_what_the_shape_says(pack: str, tp: int, token_bytes: int, sequence_bytes: int) -> None:
    one = family(pack)

    cost, half = one.kv(tp, "bf16"), one.kv(tp, "fp8")

    assert (cost.per_token_bytes, cost.per_sequence_bytes, cost.exact) == (token_bytes, sequence_bytes, True)
    assert (half.per_token_bytes * 2, half.per_sequence_bytes * 2) == (token_bytes, sequence_bytes)
    assert one.kv(tp, "auto") == cost


def test_a_context_of_deepseek_v41_costs_what_was_measured_and_not_the_models_own_floor() -> None:
    cost = family("released").kv(2, "fp8")

    assert cost.per_token_bytes == pytest.approx(2.3 * 1024)
    assert cost.per_sequence_bytes == round(5.6 * 2**20)
    assert not cost.exact


def test_layers_without_experts_follow_the_configuration() -> None:
    config = {**checkpoint("qwen3-moe").config, "decoder_sparse_step": 2, "mlp_only_layers": [1, "x"]}

    found = find(replace(checkpoint("qwen3-moe"), config=config))

    assert isinstance(found, Family)
    assert found.shape.moe_layers == tuple(range(3, 48, 2))
    assert family("deepseek-v3").shape.moe_layers == tuple(range(3, 61))


@pytest.mark.parametrize("name", GGUF)
def test_every_tensor_that_llama_cpp_knows_of_an_architecture_has_a_place(name: str) -> None:
    constants = pytest.importorskip("gguf.constants")
    architecture = name.removesuffix(".gguf")
    (number,) = (one for one, text in constants.MODEL_ARCH_NAMES.items() if text == architecture)
    one = family(name)

    for tensor in constants.MODEL_TENSORS[number]:
        known = constants.TENSOR_NAMES[tensor].format(bid=5) + ".weight"
        assert one.place(known, (one.shape.experts, 64, 64)) is not None, known


def test_what_is_nested_in_text_config_counts_as_if_it_were_at_the_top() -> None:
    assert flat({"model_type": "a", "text_config": {"model_type": "b", "x": 1}})["model_type"] == "a"
    assert flat({"text_config": {"model_type": "b", "x": 1}})["model_type"] == "b"
    assert flat({"x": 2, "text_config": {"x": 1}})["x"] == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "there is no config.json, which says what model this is"),
        ({"x": 1}, "config.json has no model_type, which says what model this is"),
        ({"model_type": ["a"]}, "config.json has no model_type, which says what model this is"),
        ({"model_type": "\x1b[2J"}, "config.json has no model_type, which says what model this is"),
        ({"model_type": "llama"}, "config.json: model_type llama is of no family that is known here"),
        ({"model_type": "mixtral", "hidden_size": True}, "config.json lacks num_hidden_layers, hidden_size, "),
    ],
)
def test_why_there_is_no_family_is_said(config: dict[str, object], said: str) -> None:
    assert reason(replace(checkpoint("mixtral"), config=config)).startswith(said)


def test_a_configuration_beside_other_weights_is_not_believed() -> None:
    made = replace(checkpoint("qwen3-moe"), config=checkpoint("mixtral").config)

    assert reason(made) == "config.json says mixtral, but no tensor is named as one of its routed experts"


def test_a_gguf_file_of_an_architecture_without_experts_has_no_family() -> None:
    metadata = {"general.architecture": "llama", "llama.block_count": 32}

    made = Checkpoint("memory", Format.GGUF, (), (), metadata)

    assert reason(made) == "the file's metadata: general.architecture llama is of no family that is known here"
    assert reason(replace(made, config={"general.architecture": "qwen3moe"})).startswith(
        "the file's metadata lacks qwen3moe.block_count, qwen3moe.expert_count"
    )


def test_the_formats_do_not_answer_for_each_other() -> None:
    made = replace(checkpoint("gpt-oss"), format=Format.GGUF)

    assert reason(made) == "the file's metadata has no general.architecture, which says what model this is"


def test_every_family_is_registered_once_and_has_a_pack() -> None:
    assert len({kind.__name__ for kind in FAMILIES}) == len(FAMILIES)
    assert {type(family(name)) for name in OF} == set(FAMILIES)


def test_an_old_gguf_of_deepseek_caches_all_heads_and_not_the_latent_vectors() -> None:
    made = checkpoint("deepseek2.gguf")
    old = {key: value for key, value in made.config.items() if not key.endswith("_mla")}
    old |= {"deepseek2.attention.key_length": 192, "deepseek2.attention.value_length": 128}
    old |= {"deepseek2.attention.head_count_kv": 128}

    found = find(replace(made, config=old))

    assert isinstance(found, Family)
    assert found.kv(2, "bf16").per_token_bytes == 31 * 128 * (192 + 128) * 2
