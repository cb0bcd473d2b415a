"""Which parameters move, which layer a name means, and what a model that does not match is told."""

from __future__ import annotations

import json

import pytest

from appliance.residency.decided import Shape, check_layer, check_seen, host_pages, layer_of, per_expert
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


def test_only_weights_get_host_pages_and_only_if_their_cold_rows_fill_one() -> None:
    shapes = [Shape("w13_weight", 8, MIB), Shape("w2_weight", 8, MIB // 8), Shape("w13_weight_scale", 8, 4 * MIB)]
    assert host_pages(shapes, cold=4) == {"w13_weight": Pages(2, 2)}
    assert host_pages(shapes, cold=0) == {}
    assert host_pages([Shape("w2_qweight", 8, MIB)], cold=8) == {"w2_qweight": Pages(0, 4)}


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


def test_a_name_without_a_number_is_refused() -> None:
    with pytest.raises(ResidencyError, match="no layer's number"):
        layer_of("model.experts", 40)


@pytest.mark.parametrize(
    ("model", "said"), [((16, 2, 2), "16 experts"), ((8, 4, 2), "4 experts a token"), ((8, 2, 1), "1 ranks")]
)
def test_another_model_or_another_number_of_cards_is_refused(model: tuple[int, int, int], said: str) -> None:
    check_layer(residency(), "model.layers.0", 8, 2, 2)
    with pytest.raises(ResidencyError, match=f"has {said}, the plan is for"):
        check_layer(residency(), "model.layers.0", *model)


def test_a_layer_that_is_cold_in_the_plan_and_not_in_the_model_is_refused() -> None:
    check_seen(residency(), {0, 1, 2, 3, 4})
    with pytest.raises(ResidencyError, match="layer 3 has cold experts"):
        check_seen(residency(), {0, 1, 2, 4})
    with pytest.raises(ResidencyError, match="layer 4 has cold experts"):
        check_seen(residency(), {0, 1, 2, 3})
