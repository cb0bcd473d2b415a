"""The document is what `plan export --to residency` writes, and what is not is refused with its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.plan import ranges
from appliance.residency.document import SCHEMA, Residency, load, parse
from appliance.residency.document import text as written
from appliance.residency.errors import ResidencyError

GOOD: dict[str, Any] = {
    "schema": SCHEMA,
    "plan_id": "sha256:" + "0" * 64,
    "model": "lab/small",
    "layers_total": 4,
    "experts_per_layer": 8,
    "top_k": 2,
    "tp": 2,
    "layers": {"0": "1,5-7", "3": "0"},
    "draft_layers": {"0": "2-3"},
    "tensors": ["model.embed_tokens.weight"],
}


def test_a_document_says_what_is_cold_of_layers_and_of_drafts_behind_them() -> None:
    read = parse(json.dumps(GOOD), "plan.json")
    assert [read.cold_of(layer) for layer in range(6)] == [(1, 5, 6, 7), (), (), (0,), (2, 3), ()]
    assert read.tensors == ("model.embed_tokens.weight",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "moe-appliance.residency/2"}, "schema is 'moe-appliance.residency/2'"),
        ({"top_k": None}, "top_k is None"),
        ({"tp": True}, "tp is True"),
        ({"tp": 0}, "tp is 0, not at least 1"),
        ({"more": 1}, "more is not a key"),
        ({"layers": {"4": "1"}}, "layers.4: the model has layers 0 to 3"),
        ({"layers": {"0": "8"}}, "layers.0: expert 8, and a layer has 8"),
        ({"layers": {"0": "3-1"}}, "layers.0: '3-1' is no range"),
        ({"layers": {"0": "1,1"}}, "names an expert twice"),
        ({"layers": {"x": "1"}}, "layers.x is not a layer"),
        ({"layers": {"0": "1", "00": "2"}}, "layers.00 is not a layer"),
        ({"layers": {"0": [1]}}, "layers.0 is not a layer and its experts"),
        ({"tensors": [1]}, "tensors holds what is no name"),
    ],
    ids=str,
)
def test_a_mistake_is_named_with_its_key_and_the_command(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ResidencyError) as refused:
        parse(json.dumps(GOOD | change), "plan.json")
    assert f"plan.json: {said}" in str(refused.value) or said in str(refused.value)
    assert "plan export PLAN --to residency" in str(refused.value)


@pytest.mark.parametrize("key", sorted(GOOD.keys() - {"schema"}))
def test_a_key_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(ResidencyError, match=f"{key} is missing"):
        parse(json.dumps({name: value for name, value in GOOD.items() if name != key}), "plan.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_what_is_no_document_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(ResidencyError, match=r"plan\.json: is not"):
        load(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResidencyError, match=r"gone\.json: cannot be read"):
        load(tmp_path / "gone.json")


@given(numbers=st.sets(st.integers(0, 63)))
def test_ranges_mean_what_the_plan_says(numbers: set[int]) -> None:
    text = json.dumps(GOOD | {"experts_per_layer": 64, "layers": {"0": ranges.spell(numbers)}})
    assert parse(text, "plan.json").cold[0] == tuple(sorted(numbers))


@given(
    cold=st.dictionaries(st.integers(0, 3), st.sets(st.integers(0, 63)), max_size=3),
    drafts=st.dictionaries(st.integers(0, 1), st.sets(st.integers(0, 99)), max_size=2),
)
def test_what_is_written_is_read_as_it_was(cold: dict[int, set[int]], drafts: dict[int, set[int]]) -> None:
    layers, more = ({n: tuple(sorted(one)) for n, one in table.items()} for table in (cold, drafts))
    residency = Residency("sha256:p", "m", 4, 64, 6, 2, layers, more, ("a.weight",))
    assert parse(written(residency), "learned.json") == residency
