"""Which parameters move, which layer a name means, and what a model that does not match is told."""

from __future__ import annotations

import json

import pytest

from appliance.residency.decided import (
    Shape,
    check_layer,
    check_model,
    check_seen,
    check_versions,
    host_pages,
    layer_of,
    per_expert,
)
from appliance.residency.document import Residency, parse
from appliance.residency.errors import ResidencyError
from appliance.residency.layout import Pages
from tests.appliance.residency.test_document import GOOD

MIB = 1 << 20


def residency(**change: object) -> Residency:
    return parse(json.dumps(GOOD | change), "plan.json")


def test_every_parameter_with_a_row_for_each_expert_is_permuted_and_the_routers_own_is_not() -> None:
    named = ["w13_weight", "w13_weight_scale_inv", "w2_bias", "e_score_correction_bias", "w2_qzeros"]
    shapes = [Shape(name, 8, MIB) for name in named]
    others = [Shape("w13_input_scale", 1, 4), Shape("w2_g_idx_sort_indices", 8, 0)]
    assert [shape.name for shape in per_expert([*shapes, *others], 8)] == [*named[:3], "w2_qzeros"]


def test_a_parameter_with_another_number_of_rows_is_refused_instead_of_left_in_the_old_order() -> None:
    with pytest.raises(ResidencyError, match="w13_weight_scale has 16 rows for 8 experts"):
        per_expert([Shape("w13_weight", 8, MIB), Shape("w13_weight_scale", 16, 4)], 8)


def test_rows_are_permuted_whether_or_not_they_follow_each_other_in_memory() -> None:
    strided = Shape("w2_weight_scale", 8, MIB, is_contiguous=False)
    assert per_expert([strided], 8) == (strided,)


def test_only_weights_get_host_pages_and_only_if_their_cold_rows_fill_one() -> None:
    shapes = [Shape("w13_weight", 8, MIB), Shape("w2_weight", 8, MIB // 8), Shape("w13_weight_scale", 8, 4 * MIB)]
    assert host_pages(shapes, 8, cold=4) == {"w13_weight": Pages(2, 2)}
    assert host_pages(shapes, 8, cold=0) == {}
    assert host_pages([Shape("w2_qweight", 8, MIB)], 8, cold=8) == {"w2_qweight": Pages(0, 4)}


@pytest.mark.parametrize(
    "shape",
    [Shape("w13_weight", 8, MIB, is_contiguous=False), Shape("w13_weight", 4, MIB), Shape("w13_trellis", 8, MIB)],
    ids=str,
)
def test_weights_that_cannot_go_to_the_host_are_refused_and_only_if_they_should(shape: Shape) -> None:
    assert host_pages([shape], 8, cold=0) == {}
    with pytest.raises(ResidencyError, match="cannot be placed"):
        host_pages([shape], 8, cold=4)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("model.layers.3.mlp.experts", 3),
        ("language_model.model.layers.11.ffn.experts.routed_experts", 11),
        ("mtp.layers.0.mlp.experts", 40),
        ("model.layers.40.mlp.experts", 40),
    ],
)
def test_a_layers_number_is_in_its_name_and_drafts_follow_the_backbone(name: str, number: int) -> None:
    assert layer_of(name, 40) == number


def test_a_draft_that_is_a_model_of_its_own_is_refused_its_layers_have_the_backbones_numbers() -> None:
    with pytest.raises(ResidencyError, match="a draft with a model of its own"):
        layer_of("draft_model.model.layers.0.mlp.experts", 40)


def test_a_name_without_a_number_is_refused() -> None:
    with pytest.raises(ResidencyError, match="no layer's number"):
        layer_of("model.experts", 40)


@pytest.mark.parametrize(
    ("model", "said"), [((16, 2, 2), "16 experts"), ((8, 4, 2), "4 experts a token"), ((8, 2, 1), "1 ranks")]
)
def test_another_model_or_another_number_of_cards_is_refused(model: tuple[int, int, int], said: str) -> None:
    check_layer(residency(), 0, "model.layers.0", 8, 2, 2)
    with pytest.raises(ResidencyError, match=f"has {said}, the plan is for"):
        check_layer(residency(), 0, "model.layers.0", *model)


def test_a_draft_may_have_other_experts_than_the_backbone_but_those_that_are_cold() -> None:
    check_layer(residency(), 4, "mtp.layers.0", 4, 1, 2)
    with pytest.raises(ResidencyError, match="has 3 experts, and expert 3 is cold"):
        check_layer(residency(), 4, "mtp.layers.0", 3, 1, 2)
    with pytest.raises(ResidencyError, match="has 1 ranks"):
        check_layer(residency(), 4, "mtp.layers.0", 4, 1, 1)


@pytest.mark.parametrize(("layers", "tp", "said"), [(5, 2, "5 layers"), (4, 1, "1 ranks")])
def test_another_number_of_layers_or_ranks_is_refused_before_anything_is_built(layers: int, tp: int, said: str) -> None:
    check_model(residency(), 4, 2)
    with pytest.raises(ResidencyError, match=f"the model has {said}, the plan is for"):
        check_model(residency(), layers, tp)


@pytest.mark.parametrize(("vllm", "torch"), [("0.26.1", "2.11.0"), ("0.26.0", "2.12.0"), ("0.26.0rc1", "2.11.0")])
def test_another_version_is_refused_with_both_and_the_command(vllm: str, torch: str) -> None:
    check_versions("0.26.0+cu129", "2.11.0+cu129")
    with pytest.raises(ResidencyError, match=f"vLLM {vllm} with torch {torch}.*engine install vllm"):
        check_versions(vllm, torch)


def test_a_layer_that_is_cold_in_the_plan_and_not_in_the_model_is_refused() -> None:
    check_seen(residency(), {0, 1, 2, 3, 4})
    with pytest.raises(ResidencyError, match="layer 3 has cold experts"):
        check_seen(residency(), {0, 1, 2, 4})
    with pytest.raises(ResidencyError, match="layer 0 of the draft "):
        check_seen(residency(), {0, 1, 2, 3})
