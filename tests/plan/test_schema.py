"""What a plan decides, and the digest that names it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from appliance.plan.pages import page, schema_json
from appliance.plan.schema import SCHEMA, UNDECIDED, HostEngram, Plan, PlanHost, Selection, Targets
from tests.plan.plans import plan, plans, words


def dumped(made: Plan) -> dict[str, Any]:
    return made.model_dump(mode="json", by_alias=True)


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same with the keys of every table in another order."""
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: shuffled(value[key], rng) for key in keys}
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


@given(plans(), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_change_the_digest(made: Plan, rng: random.Random) -> None:
    again = Plan.model_validate_json(json.dumps(shuffled(dumped(made), rng)))
    assert again.identity == made.identity


@given(plans(), words)
def test_what_decides_nothing_does_not_change_the_digest(made: Plan, text: str) -> None:
    told = {"created": text, "note": text, "tool_version": text, "budget": {"x": text}, "plan_id": ""}
    assert made.model_copy(update=told).identity == made.identity


@given(st.sets(st.integers(0, 7), min_size=1), st.randoms(use_true_random=False))
def test_the_spelling_of_ranges_does_not_change_the_digest(cold: set[int], rng: random.Random) -> None:
    loose = [
        f" {number}" if rng.random() < 0.5 else f"{number}-{number}" for number in rng.sample(sorted(cold), len(cold))
    ]
    spelled = plan({"2": ",".join(loose)})
    assert spelled.identity == plan({"2": ",".join(map(str, sorted(cold)))}).identity
    assert spelled.cold(2) == tuple(sorted(cold))


def test_a_layer_without_cold_experts_is_the_same_as_one_that_is_not_named() -> None:
    assert plan({"0": "", "1": "3", "2": " "}).identity == plan({"1": "3"}).identity


def test_expected_hits_and_where_it_was_validated_do_not_change_the_digest() -> None:
    chosen = Selection(method="manual", expected_cold_hits_per_token=1.5)
    assert plan(selection=chosen).identity == plan().identity


def test_an_explicit_default_does_not_change_the_digest() -> None:
    assert plan(targets=Targets(streams=4, context_tokens=131_072)).identity == plan().identity


@pytest.mark.parametrize(
    "other",
    [
        plan({"0": "1"}),
        plan(tensors=("embed.weight",)),
        plan(engram=HostEngram()),
        plan(top_k=3),
        plan(targets=Targets(streams=5)),
        plan(selection=Selection(method="uniform")),
    ],
)
def test_whatever_is_decided_changes_the_digest(other: Plan) -> None:
    assert other.identity != plan().identity


def test_the_digest_of_a_known_plan_stays_what_it_was() -> None:
    """A plan_id that changes with a version of the program would name nothing."""
    expected = "sha256:2d0c6d747cb65f73a4795eb6598b4b524262506061f35d253400a57b91dede9e"
    assert plan({"0": "0-3", "2": "7"}, tensors=("embed.weight",), engram=HostEngram(layers=(1,))).identity == expected


def test_a_plan_is_sealed_when_its_id_is_its_own() -> None:
    made = plan({"0": "1"})
    assert not made.sealed
    assert made.seal().sealed
    assert not made.seal().model_copy(update={"host": plan().host}).sealed


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("host.experts.9", {"experts": {"9": "0"}}),
        ("host.experts.1", {"experts": {"1": "7-8"}}),
        ("host.draft_experts.0", {"host": PlanHost(draft_experts={"0": "1"})}),
        ("geometry.moe_layers", {"moe_layers": "0-4"}),
    ],
)
def test_experts_and_layers_that_the_geometry_does_not_have_are_refused_by_key(
    key: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as caught:
        plan(**changes)
    (error,) = caught.value.errors()
    assert error["ctx"]["key"] == key


def keys(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Each key of a plan file, of all objects in it, and its sentence."""
    for name, field in model.model_fields.items():
        part = next((kind for kind in (field.annotation, *get_args(field.annotation)) if is_model(kind)), None)
        yield field.alias or name, field.description or (part.__doc__ if part else "") or ""
        if part is not None:
            yield from keys(part)


def is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def test_every_key_has_a_sentence_and_it_is_on_the_page() -> None:
    said = page()
    for key, sentence in keys(Plan):
        assert sentence.endswith("."), key
        assert f"- `{key}` (" in said
        assert " ".join(sentence.split()) in said


def test_the_pages_of_the_documentation_are_up_to_date() -> None:
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / "plans.md").read_text() == page()
    assert (docs / "plan.schema.json").read_text() == schema_json()


def test_cold_experts_are_counted_over_all_layers() -> None:
    assert plan({"0": "0-3", "3": "7"}).cold_count == 5
    assert plan({"0": "0-3"}).cold(1) == ()


@pytest.mark.parametrize("key", ["layers", "experts", "top_k", "draft_layers", "draft_experts", "draft_top_k"])
def test_a_geometry_that_no_model_has_is_refused_before_anything_is_counted(key: str) -> None:
    with pytest.raises(ValidationError):
        plan(**{key: 10**12})


def test_how_often_and_in_which_order_tensors_and_layers_are_named_does_not_change_the_digest() -> None:
    once = plan(tensors=("a", "b"), engram=HostEngram(layers=(1, 14)))
    twice = plan(tensors=("b", "a", "b"), engram=HostEngram(layers=(14, 1, 14)))

    assert once.identity == twice.identity


def test_the_digest_is_over_utf_8_and_not_over_escapes() -> None:
    made = plan(family="größe")
    decided = made.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=UNDECIDED) | {"schema": SCHEMA}
    text = json.dumps(decided, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    assert made.identity == "sha256:" + sha256(text.encode()).hexdigest()
