"""A plan as text: each layer's bar shows where its cold experts are."""

from __future__ import annotations

import unicodedata
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.plan.picture import ASCII, BLOCKS, WIDTH_MIN, bar, picture
from appliance.plan.schema import HostEngram, Plan, PlanModel, PlanTopology, Profile, Selection
from tests.plan.plans import plan, plans


def drawn(made: Plan, width: int = 80, plain: bool = False) -> str:
    return "\n".join(picture(made, width, plain))


@given(st.integers(1, 400), st.integers(1, 120), st.randoms(use_true_random=False))
def test_a_bar_fits_and_tells_all_some_and_none_apart(experts: int, width: int, rng: Random) -> None:
    cold = tuple(sorted(rng.sample(range(experts), rng.randint(0, experts))))
    shown = bar(cold, experts, width, ASCII)
    size = -(-experts // width)
    assert len(shown) == -(-experts // size) <= width
    for index, cell in enumerate(shown):
        inside = range(index * size, min((index + 1) * size, experts))
        held = len(set(cold).intersection(inside))
        assert (cell == ASCII[0]) == (held == 0)
        assert (cell == ASCII[-1]) == (held == len(inside))


def test_a_bar_shows_where_the_cold_experts_are() -> None:
    assert bar((0, 1, 6), 8, 8, BLOCKS) == "██····█·"
    assert bar((0, 1, 6), 8, 4, BLOCKS) == "█··▄"
    assert bar(tuple(range(192)), 384, 64, BLOCKS) == "█" * 32 + "·" * 32


def test_every_layer_has_a_line_with_its_count() -> None:
    lines = picture(plan({"0": "0-3", "2": "7"}), 80)
    assert [line for line in lines if line.startswith("layer")] == [
        "layer 0 4/8 ████····",
        "layer 1 0/8 ········",
        "layer 2 1/8 ·······█",
        "layer 3 0/8 ········",
    ]


def test_the_draft_has_lines_of_its_own() -> None:
    made = plan(host=plan().host.model_copy(update={"draft_experts": {"1": "0"}}), draft_layers=2, draft_experts=4)
    assert "draft 1 1/4 █···" in drawn(made)
    assert "draft: 1 of 8 experts" in drawn(made)


@given(plans(), st.integers(10, 200), st.booleans())
def test_lines_are_no_wider_than_asked_and_have_no_control_characters(made: Plan, width: int, plain: bool) -> None:
    for line in picture(made, width, plain):
        assert not {unicodedata.category(char) for char in line} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
        assert not plain or line.isascii()
        assert len(line) <= max(width, WIDTH_MIN) or max(map(len, line.split())) > WIDTH_MIN // 2


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (plan({"0": "0-3"}), "on the host: 4 of 32 experts (12.5%)"),
        (plan(), "tensors: none"),
        (plan(tensors=("embed.weight",)), "tensors: embed.weight"),
        (plan(engram=HostEngram(layers=(1, 14))), "Engram tables: pinned host RAM, layers 1,14"),
        (plan(), "expected cold hits: not known"),
        (plan(selection=Selection(method="uniform", expected_cold_hits_per_token=71.53)), "cold hits: 71.5 a token"),
        (plan(), "profile: none"),
        (plan(profile=Profile(name="team")), "validated: no"),
        (plan(profile=Profile(name="team", streams=1)), "profile team: at least 40 tok/s for each of 1 stream"),
        (plan(), "model lab/tiny, bound to no checkpoint's hashes"),
        (plan(model=PlanModel(name="m", header_sha256=("0" * 64,))), "model m, bound to the headers of 1 file"),
        (
            plan(model=PlanModel(name="m", revision="main", index_sha256="a" * 64)),
            "model m at main, index aaaaaaaaaaaa",
        ),
        (plan(model=PlanModel(name="m", total_bytes=2**31)), "0 tensors, 2.0 GiB (the file's own figures)"),
        (plan(topology=PlanTopology(tp=1, vram_bytes_each=2**30)), "for 1 card of 1.0 GiB each"),
        (plan(note="measured:\nnothing"), "note: measured:\nnothing"),
        (plan(), "the file has no plan_id"),
        (plan(), "ktransformers: impossible; no expert is on the host"),
    ],
)
def test_the_text_says_what_the_plan_is(made: Plan, said: str) -> None:
    assert said in drawn(made, 200)


def test_a_sealed_plan_is_named_by_its_id() -> None:
    made = plan({"0": "1"}).seal()
    assert drawn(made, 200).startswith(f"plan {made.plan_id}\n")
    assert "plan_id" not in drawn(made)
    edited = made.model_copy(update={"host": plan().host})
    assert f"edited since it was made; the file says\n     {made.plan_id}\n" in drawn(edited, 200)


def test_figures_of_the_file_are_shown_as_its_own_and_only_if_they_are_some() -> None:
    made = plan(budget={"weights_bytes": 2**30, "host_bytes": 3 * 2**29, "kv_bytes": "many", "reserves_bytes": True})
    said = "the file's own figures, from when it was made: weights on a card 1.0 GiB, pinned in host RAM 1.5 GiB\n"
    assert said in drawn(made, 200)


def test_without_figures_in_the_file_no_size_of_the_model_is_claimed() -> None:
    assert "tensors," not in drawn(plan({"0": "0-3"}))
