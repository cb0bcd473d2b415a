"""A catalogue: every byte has a class, every rank its share, and what is not whole is said."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint.catalogue import Catalogue, ExpertParameter, Load, Part, TensorClass, catalogue_of
from appliance.checkpoint.tensors import Checkpoint, Format, Tensor
from tests.checkpoint.packs.fixtures import GGUF, PACKS, catalogue, checkpoint
from tests.checkpoint.packs.memory import checkpoint_of
from tests.checkpoint.packs.standard import QWEN, mlp, nvfp4

GIB = 2**30
CARD_BYTES = 97_887 * 2**20
"""What the driver reports for an RTX PRO 6000. Source: the study."""

ALL = (*PACKS, *GGUF)


def card_bytes(made: Catalogue, tp: int = 2) -> int:
    """Weights of the fullest card, Engram on the host, no vision tower."""
    return sum(
        part.rank_bytes(tp)
        for cls, parts in made.classes.items()
        for part in parts
        if cls is not TensorClass.ENGRAM and part.load in (Load.ALWAYS, Load.DRAFT)
    )


def without(made: Checkpoint, lost: Callable[[str], bool]) -> Checkpoint:
    """A checkpoint that lost some tensors."""
    return replace(made, tensors=tuple(tensor for tensor in made.tensors if not lost(tensor.name)))


@pytest.mark.parametrize("name", ALL)
def test_every_byte_of_every_pack_has_a_class_and_none_is_other(name: str) -> None:
    made = catalogue(name)

    assert made.missing == ""
    assert sum(made.whole_bytes(cls) for cls in TensorClass) == checkpoint(name).total_bytes
    assert set(made.classes) == set(TensorClass)
    assert made.classes[TensorClass.OTHER] == ()


@pytest.mark.parametrize("name", ALL)
def test_experts_and_named_tensors_say_the_same_bytes_as_the_classes(name: str) -> None:
    made = catalogue(name)

    routed = sum(parameter.rows * parameter.row_bytes for bank in made.experts.values() for parameter in bank)
    drafted = sum(parameter.rows * parameter.row_bytes for bank in made.draft_experts.values() for parameter in bank)
    assert routed == made.whole_bytes(TensorClass.ROUTED)
    assert routed + drafted + sum(part.whole_bytes for part in made.named.values()) == checkpoint(name).total_bytes
    assert made.named.keys() == made.named_classes.keys()
    for cls in TensorClass:
        named = sum(part.whole_bytes for name, part in made.named.items() if made.named_classes[name] is cls)
        experts = {TensorClass.ROUTED: routed, TensorClass.DRAFT: drafted}.get(cls, 0)
        assert named + experts == made.whole_bytes(cls)
    assert sum(made.dtypes.values()) == checkpoint(name).total_bytes


@pytest.mark.parametrize("name", ALL)
def test_experts_are_where_the_configuration_says(name: str) -> None:
    made = catalogue(name)

    assert tuple(made.experts) == made.geometry.moe_layers
    assert tuple(made.draft_experts) == tuple(range(made.geometry.draft_layers))
    assert {parameter.rows for bank in made.experts.values() for parameter in bank} == {made.geometry.experts}


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", ALL)
def test_all_ranks_together_hold_everything_and_each_no_more_than_all(name: str, tp: int) -> None:
    made = catalogue(name)

    for cls in TensorClass:
        whole, rank = made.whole_bytes(cls), made.rank_bytes(cls, tp)
        assert whole <= rank * tp
        assert rank <= whole
        if tp == 1:
            assert rank == whole
    for bank in made.experts.values():
        for parameter in bank:
            assert parameter.rank_row_bytes(tp) * tp >= parameter.row_bytes


def test_the_released_checkpoint_has_the_sizes_that_were_published() -> None:
    made = catalogue("released")

    assert made.geometry.moe_layers == tuple(range(40))
    assert (made.geometry.experts, made.geometry.top_k, made.geometry.draft_experts) == (384, 6, 128)
    assert made.geometry.draft_top_k == 3
    assert made.whole_bytes(TensorClass.ENGRAM) / GIB == pytest.approx(188.833, abs=0.001)
    assert made.whole_bytes(TensorClass.ROUTED) / GIB == pytest.approx(268.945, abs=0.001)
    assert made.whole_bytes(TensorClass.EMBEDDING) / GIB == pytest.approx(1.233, abs=0.001)
    assert made.expert_bytes(0) == 18_800_640
    assert made.geometry.bits is None
    assert [parameter.name for parameter in made.experts[0]] == ["w13_scale", "w13_weight", "w2_scale", "w2_weight"]


def test_an_exl3_expert_has_six_tensors_in_the_engine_and_what_runs_along_the_uncut_side_is_replicated() -> None:
    made = catalogue("exl3-routed-only")

    bank = {parameter.name: parameter for parameter in made.experts[39]}
    assert made.expert_bytes(39) == 13_315_596
    assert made.geometry.bits == (3.0,) * 40
    assert made.geometry.codebook == "mul1"
    assert bank.keys() - {"w13_mul1", "w2_mul1"} == {
        f"{matrix}_{part}" for matrix in ("w13", "w2") for part in ("trellis", "suh", "svh")
    }
    assert {name for name, one in bank.items() if one.replicated_bytes} == {"w13_suh", "w2_svh", "w13_mul1", "w2_mul1"}
    assert bank["w13_trellis"] == ExpertParameter("w13_trellis", 384, 8_847_360)


def test_the_studys_pack_in_vram_is_6_5_gib_over_the_card() -> None:
    made = catalogue("study")

    assert card_bytes(made) == 109_654_780_468
    assert card_bytes(made) / GIB == pytest.approx(102.1, abs=0.2)
    assert (card_bytes(made) - CARD_BYTES) / GIB == pytest.approx(6.5, abs=0.05)


def test_the_studys_plan_brings_its_pack_to_72_4_gib_a_card() -> None:
    made = catalogue("study")

    moved = 4608 * sum(parameter.rank_row_bytes(2) for parameter in made.experts[0])
    left = card_bytes(made) - moved - made.named["embed.weight"].rank_bytes(2)
    assert left == 78_242_927_156
    assert left / GIB == pytest.approx(72.4, abs=0.6)


def test_engram_tables_are_cut_by_whole_hash_columns() -> None:
    table = catalogue("released").named["layers.14.engram.embed.weight"]

    assert table == Part(384_016_682 * 256, units=24)
    assert table.rank_bytes(2) * 2 == table.whole_bytes
    assert table.rank_bytes(5) == -(-table.whole_bytes * 5 // 24)


def test_what_reads_the_engram_tables_stays_with_the_layers() -> None:
    made = catalogue("released")

    assert made.named_classes["layers.1.engram.wkv.weight"] is TensorClass.DENSE
    assert {name for name, cls in made.named_classes.items() if cls is TensorClass.ENGRAM} == {
        f"layers.{layer}.engram.embed.{part}" for layer in (1, 14) for part in ("weight", "scale")
    }


def test_vision_and_draft_are_loaded_only_with_them_and_copies_of_embedding_and_head_never() -> None:
    released, glm = catalogue("released"), catalogue("glm-4.5")

    assert {part.load for part in released.classes[TensorClass.VISION]} == {Load.VISION}
    assert {part.load for part in released.classes[TensorClass.DRAFT]} == {Load.DRAFT}
    never = {name for name, part in glm.named.items() if part.load is Load.NEVER}
    assert never == {f"model.layers.92.{name}.weight" for name in ("embed_tokens", "shared_head.head")}


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (r"layers.5.ffn.experts.37.", "layer 5 lacks expert 37"),
        (r"layers.5.ffn.experts.37.w1.scale", "layer 5: w13_scale of expert 37 is not like the others' (368640 B, not"),
        (r"layers.5.ffn.experts.37.w2.weight", "layer 5: expert 37 without w2_weight"),
        (r"layers.7.ffn.experts.", "layer 7 has no experts; the configuration says 384"),
        (r"mtp.1.ffn.experts.127.", "draft layer 1 lacks expert 127"),
        (r"layers.9.attn.wq_b.", "layer 9 has no attn.wq_b, unlike 39 others"),
        (r"embed.", "there is no token embedding"),
        (r"head.", "there is no output head"),
    ],
)
def test_what_is_lost_is_named(lost: str, said: str) -> None:
    made = catalogue_of(without(checkpoint("released"), lambda name: name.startswith(lost)))

    assert made.family == "deepseek-v4.1"
    assert made.missing.startswith(said)


def test_many_faults_are_told_in_few_words() -> None:
    made = catalogue_of(without(checkpoint("released"), lambda name: ".experts.3." in name))

    assert made.missing.count("lacks expert 3") == 5
    assert made.missing.endswith("; and more")


def test_experts_of_another_make_in_one_layer_are_named() -> None:
    tensors = tuple(
        replace(tensor, nbytes=tensor.nbytes // 3 * 4)
        if tensor.name == "layers.2.ffn.experts.11.w2.trellis"
        else tensor
        for tensor in checkpoint("exl3-routed-only").tensors
    )

    made = catalogue_of(replace(checkpoint("exl3-routed-only"), tensors=tensors))

    assert made.missing == "layer 2: w2_trellis of expert 11 is not like the others' (5898240 B, not 4423680 B)"


def test_layers_may_differ_in_bits() -> None:
    tensors = tuple(
        replace(tensor, nbytes=tensor.nbytes // 3 * 2)
        if tensor.name.startswith("layers.20.ffn.experts.") and tensor.name.endswith(".trellis")
        else tensor
        for tensor in checkpoint("exl3-routed-only").tensors
    )

    made = catalogue_of(replace(checkpoint("exl3-routed-only"), tensors=tensors))

    assert made.missing == ""
    assert made.geometry.bits == (3.0,) * 20 + (2.0,) + (3.0,) * 19


def test_a_draft_that_was_left_out_is_no_fault() -> None:
    made = catalogue_of(without(checkpoint("glm-4.5-air"), lambda name: name.startswith("model.layers.46.")))

    assert made.missing == ""
    assert (made.geometry.draft_layers, made.draft_experts) == (0, {})
    assert made.kv is not None
    assert made.kv(1, "bf16").per_token_bytes == 2 * 46 * 8 * 128 * 2


def test_a_fused_tensor_that_does_not_hold_all_experts_is_no_experts() -> None:
    tensors = tuple(
        replace(tensor, shape=(127, *tensor.shape[1:])) if ".layers.3.mlp.experts." in tensor.name else tensor
        for tensor in checkpoint("gpt-oss").tensors
    )

    made = catalogue_of(replace(checkpoint("gpt-oss"), tensors=tensors))

    assert made.missing == "layer 3 has no experts; the configuration says 128"
    assert made.whole_bytes(TensorClass.OTHER) == 128 * made.expert_bytes(4)


def test_a_checkpoint_of_no_known_family_is_all_other_and_says_what_is_missing() -> None:
    made = catalogue_of(replace(checkpoint("mixtral"), config={"model_type": "llama"}))

    assert (made.family, made.kv) == ("unknown", None)
    assert made.missing == "config.json: model_type llama is of no family that is known here"
    assert made.classes[TensorClass.OTHER] == (Part(checkpoint("mixtral").total_bytes, units=1),)
    assert made.rank_bytes(TensorClass.OTHER, 2) == checkpoint("mixtral").total_bytes
    assert made.named_classes["lm_head.weight"] is TensorClass.OTHER


def test_keys_that_the_configuration_lacks_are_named() -> None:
    config = {key: value for key, value in checkpoint("qwen3-moe").config.items() if key != "num_experts_per_tok"}

    made = catalogue_of(replace(checkpoint("qwen3-moe"), config={**config, "num_experts": "many"}))

    assert made.family == "unknown"
    assert made.missing == "config.json lacks num_experts, num_experts_per_tok"


def test_188_245_tensors_take_less_than_a_second_and_a_half() -> None:
    made = checkpoint("exl3-routed-only")

    started = time.process_time()
    catalogue_of(made)

    assert time.process_time() - started < 1.5


NAMES = st.one_of(
    st.text(max_size=60),
    st.from_regex(r"(layers|mtp|model\.layers|blk)\.\d{1,9}\.[a-z_.0-9]{0,40}", fullmatch=True),
    st.from_regex(r"(layers|mtp)\.\d{1,3}\.ffn\.experts\.\d{1,7}\.w[1-4]\.(weight|scale|suh)", fullmatch=True),
    st.from_regex(r"model\.layers\.\d{1,3}\.mlp\.experts\.(\d{1,3}\.)?(gate|down)_proj(\.weight)?", fullmatch=True),
)
TENSORS = st.builds(
    lambda name, shape, nbytes: Tensor(name, "U8", tuple(shape), "x", 0, nbytes),
    NAMES,
    st.lists(st.integers(0, 400), max_size=4),
    st.integers(0, 2**40),
)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 400), st.integers(), st.text(max_size=5), st.just([[1]]))
CONFIGS = st.builds(
    lambda base, changes: {**base, **changes},
    st.sampled_from([dict(checkpoint(name).config) for name in ("qwen3-moe", "glm-4.5", "gpt-oss", "gpt-oss.gguf")]),
    st.dictionaries(
        st.sampled_from(
            [
                *("model_type", "text_config", "architectures", "layer_types", "mlp_only_layers", "num_hidden_layers"),
                *("num_experts", "n_routed_experts", "num_local_experts", "num_experts_per_tok", "decoder_sparse_step"),
                *("num_nextn_predict_layers", "first_k_dense_replace"),
                *("general.architecture", "gpt-oss.expert_count", "gpt-oss.block_count"),
            ]
        ),
        VALUES,
        max_size=3,
    ),
)


@settings(deadline=None)
@given(st.lists(TENSORS, max_size=12), CONFIGS, st.sampled_from(Format))
def test_no_name_and_no_configuration_breaks_it(tensors: list[Tensor], config: dict[str, object], kind: Format) -> None:
    made = Checkpoint("memory", kind, (), tuple({tensor.name: tensor for tensor in tensors}.values()), config)

    found = catalogue_of(made)

    assert sum(found.whole_bytes(cls) for cls in TensorClass) == made.total_bytes
    assert found.missing
    assert found.missing.isprintable()
    assert all(found.rank_bytes(cls, 3) >= 0 for cls in TensorClass)


@settings(deadline=None)
@given(expert=st.integers(0, 7), layer=st.integers(0, 31), matrix=st.sampled_from(["", "w1.", "w2.weight"]))
def test_a_lost_expert_is_named_wherever_it_was(expert: int, layer: int, matrix: str) -> None:
    prefix = f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}"

    made = catalogue_of(without(checkpoint("mixtral"), lambda name: name.startswith(prefix)))

    assert made.missing.startswith(f"layer {layer}")
    assert f"expert {expert}" in made.missing


@pytest.mark.parametrize(("key", "said"), [("num_hidden_layers", "layers"), ("num_local_experts", "experts")])
def test_a_configuration_larger_than_any_model_is_not_gone_through(key: str, said: str) -> None:
    made = checkpoint("gpt-oss")

    found = catalogue_of(replace(made, config={**made.config, key: 1 << 20}))

    assert (found.family, found.experts) == ("unknown", {})
    assert f"1,048,576 {said}" in found.missing


@pytest.mark.parametrize(("tp", "width"), [(1, 2944), (2, 1536), (4, 768), (8, 384)])
def test_mxfp4_experts_are_counted_as_the_kernel_pads_them(tp: int, width: int) -> None:
    rows = {one.name: one for one in catalogue("gpt-oss").experts[0]}
    assert rows["w13_weight"].rank_row_bytes(tp) == 2 * width * 3072 // 2
    assert rows["w13_weight_scale"].rank_row_bytes(tp) == 2 * width * 3072 // 32
    assert rows["w2_weight"].rank_row_bytes(tp) == 3072 * width // 2
    assert rows["w13_bias"].rank_row_bytes(tp) == 2 * width * 2
    assert rows["w13_weight"].row_bytes == 2 * 2880 * 2880 // 2


@pytest.mark.parametrize(
    ("hidden", "inner", "tp", "width"),
    [(2048, 768, 2, 384), (2048, 1408, 4, 384), (2048, 1408, 8, 192), (2048, 1408, 1, 1408), (2752, 768, 4, 256)],
)
def test_nvfp4_experts_are_counted_as_marlin_pads_them(hidden: int, inner: int, tp: int, width: int) -> None:
    prefix = "model.layers.0.mlp.experts"
    specs = [spec for expert in range(2) for spec in mlp(f"{prefix}.{expert}", hidden, inner, nvfp4)]
    shape = {"num_hidden_layers": 1, "num_experts": 2, "hidden_size": hidden, "moe_intermediate_size": inner}
    made = catalogue_of(checkpoint_of({"model.safetensors": specs}, {**QWEN, **shape}))
    rows = {one.name: one.rank_row_bytes(tp) for one in made.experts[0]}
    assert rows == {
        "w13_weight": width * hidden,
        "w13_weight_scale": 2 * width * hidden // 16,
        "w13_weight_scale_2": 8,
        "w13_input_scale": 8,
        "w2_weight": hidden * width // 2,
        "w2_weight_scale": hidden * width // 16,
        "w2_weight_scale_2": 4,
        "w2_input_scale": 4,
    }


def test_fp8_says_how_much_of_an_expert_shares_a_scale() -> None:
    assert catalogue("qwen3-moe-fp8").geometry.block == 128
    small = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}
    made = checkpoint("qwen3-moe-fp8")
    assert catalogue_of(replace(made, config={**made.config, **small})).geometry.block == 64
    assert catalogue_of(replace(made, config=QWEN)).geometry.block == 128
    assert {catalogue(name).geometry.block for name in ("qwen3-moe", "gpt-oss", "study", "mixtral")} == {1}


def test_experts_of_other_models_are_not_padded() -> None:
    for name in ("qwen3-moe", "qwen3-moe-fp8", "study", "mixtral"):
        assert all(one.padding is None for bank in catalogue(name).experts.values() for one in bank)
