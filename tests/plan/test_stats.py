"""Files of routing statistics: what is read, what is refused and in which words."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.checkpoint.catalogue import Geometry
from appliance.errors import PlanError
from appliance.plan.pages import STATS_EXAMPLE, page
from appliance.plan.stats import SCHEMA, load, parse
from tests.plan import small

GOOD: dict[str, Any] = {"schema": SCHEMA, "model": "lab/small", "tokens": 10, "counts": {"0": [1, 2], "1": [3, 0]}}


def test_a_file_of_counts_is_read_with_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(GOOD))

    found = load(path)

    assert (found.model, found.tokens, found.counts) == ("lab/small", 10, {0: (1, 2), 1: (3, 0)})
    assert found.sha256 == sha256(path.read_bytes()).hexdigest()


def test_the_example_of_the_page_is_such_a_file() -> None:
    found = parse(STATS_EXAMPLE.encode(), "docs/plans.md")

    found.require_shape(Geometry(layers=2, moe_layers=(0, 1), experts=4, top_k=2, hidden=1, moe_intermediate=1))
    assert STATS_EXAMPLE in page()


def test_hits_per_token_are_the_cold_experts_visits_over_all_tokens() -> None:
    found = parse(json.dumps(GOOD).encode(), "f")

    assert found.hits_per_token({0: [1], 1: [0, 1]}) == 0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other/1"}, "schema"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": True}, "tokens"),
        ({"tokens": 2**60}, "tokens"),
        ({"model": 3}, "model"),
        ({"counts": []}, "counts"),
        ({"counts": {"0": [1, 2], "1": [0, 0]}}, "counts.1: nobody visited"),
        ({"counts": {"01": [1]}}, "counts.01"),
        ({"counts": {"-1": [1]}}, "counts.-1"),
        ({"counts": {"٣": [1]}}, "counts.٣"),
        ({"counts": {"3": {}}}, "counts.3"),
        ({"counts": {"3": [1, -1]}}, "counts.3[1]"),
        ({"counts": {"3": [1, 2.5]}}, "counts.3[1]"),
        ({"more": 1}, "more"),
    ],
)
def test_a_wrong_value_is_refused_with_file_and_key(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as refused:
        parse(json.dumps(GOOD | change).encode(), "counts.json")

    assert refused.value.message.startswith(f"counts.json: {said}")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(PlanError, match=r"f: tokens: is missing"):
        parse(json.dumps({key: value for key, value in GOOD.items() if key != "tokens"}).encode(), "f")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.json: there is no such file"):
        load(tmp_path / "none.json")


@given(st.binary(max_size=60) | st.text('[{"0,:1]}', max_size=200).map(str.encode))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    with pytest.raises(PlanError):
        parse(data, "f")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(PlanError, match="more than 64 tables or lists"):
        parse(b"[" * 100_000, "f")


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({0: (1,) * 8, 1: (1,) * 8}, r"layer 2 is missing"),
        ({layer: (1,) * 8 for layer in range(4)}, r"layer 3 has no routed experts"),
        ({0: (1,) * 8, 1: (1,) * 7, 2: (1,) * 8}, r"counts\.1 has 7 experts, the model has 8"),
        ({0: (1,) * 8, 1: (1,) * 9, 2: (1,) * 8}, r"counts\.1 has 9 experts, the model has 8"),
        ({0: (1,) * 8, 1: (1,) * 8, 2: (1000, 1000, 1) + (0,) * 5}, r"counts\.2 sums to 2,001 visits"),
        ({0: (1,) * 8, 1: (1,) * 8, 2: (0, 1001) + (0,) * 6}, r"counts\.2\[1\] is 1,001, and 1,000 tokens"),
    ],
)
def test_counts_of_another_model_are_refused(counts: dict[int, tuple[int, ...]], said: str) -> None:
    found = small.catalogue()

    with pytest.raises(PlanError, match=said):
        small.stats(found, counts).require_shape(found.geometry)


def test_a_layer_that_is_there_twice_is_refused() -> None:
    text = b'{"schema": "%s", "model": "a", "tokens": 9,\n"counts": {"0": [1], "0": [2]}}' % SCHEMA.encode()

    with pytest.raises(PlanError, match=r"f:2: counts\.0 is there twice"):
        parse(text, "f")
