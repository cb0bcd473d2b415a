"""Plan files: what is written is read back, and whatever else is in a file is refused by file, line and key."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.errors import PlanError
from appliance.plan.jsonfile import MAX_BYTES
from appliance.plan.planfile import dumps, load, parse, save
from appliance.plan.schema import Plan
from tests.plan.plans import plan, plans

FILE = Path("plan.json")


def text_of(made: Plan | None = None) -> str:
    return dumps(made or plan({"0": "0-3", "2": "7"}))


def refused(text: str | bytes) -> PlanError:
    with pytest.raises(PlanError) as caught:
        parse(FILE, text if isinstance(text, bytes) else text.encode())
    assert caught.value.remedy
    return caught.value


def outcome(raw: bytes) -> Plan | PlanError:
    """The plan, or why there is none."""
    try:
        return parse(FILE, raw)
    except PlanError as error:
        return error


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


@given(plans())
def test_a_plan_that_is_written_is_read_as_it_was(made: Plan) -> None:
    again = parse(FILE, dumps(made).encode())
    assert again == made.seal()
    assert again.sealed
    assert dumps(again) == dumps(made)


def test_keys_are_in_order_and_layers_by_their_number() -> None:
    text = text_of(plan({str(layer): "0" for layer in (11, 2, 10)}, layers=12, moe_layers="0-11"))
    tables = json.loads(text)
    assert list(tables) == sorted(tables)
    assert list(tables["host"]["experts"]) == ["2", "10", "11"]
    assert text.startswith('{\n  "')
    assert text.endswith("}\n")


def test_a_saved_file_is_whole_and_carries_its_own_id(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(plan({"1": "3"}), path)
    assert load(path).sealed
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_file_that_is_there_stays_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(plan(), path)
    with pytest.raises(PlanError, match="exists already"):
        save(plan({"1": "3"}), path)
    assert load(path).cold_count == 0
    save(plan({"1": "3"}), path, overwrite=True)
    assert load(path).cold_count == 1


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(PlanError, match="not a regular file"):
            save(plan(), path, overwrite=True)
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    save(plan(), tmp_path / "real.json")
    (tmp_path / "link.json").symlink_to("real.json")
    save(plan({"1": "3"}), tmp_path / "link.json", overwrite=True)
    assert (tmp_path / "link.json").is_symlink()
    assert load(tmp_path / "real.json").cold_count == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"missing/plan\.json cannot be written: No such file"):
        save(plan(), tmp_path / "missing" / "plan.json")


def test_an_id_that_does_not_belong_to_the_plan_is_kept_and_told() -> None:
    values = json.loads(text_of())
    values["plan_id"] = "sha256:" + "0" * 64
    found = parse(FILE, json.dumps(values).encode())
    assert found.plan_id == values["plan_id"]
    assert not found.sealed


# ------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "said"), [("none.json", "there is no such file"), (".", "is a folder"), ("pipe", "not a regular file")]
)
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, name: str, said: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanError, match=said):
        load(tmp_path / name)


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        load(Path("a\0b"))


def test_a_file_that_is_much_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(PlanError, match="more than 16 MiB"):
        load(path)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (text_of().encode("utf-16"), "plan.json:1: is UTF-16 text"),
        (b"\xef\xbb\xbf" + text_of().encode(), "plan.json:1: begins with a byte order mark"),
        (b'{\n  "note": "\xff"\n}', "plan.json:2: is not UTF-8 text"),
    ],
)
def test_a_file_in_another_encoding_is_refused_by_its_name(raw: bytes, said: str) -> None:
    assert refused(raw).message.startswith(said)


# -------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "plan.json:1:1: not JSON: expecting value"),
        ('{\n  "a": 1,\n}', "plan.json:3:1: not JSON"),
        ("[]", "plan.json:1: a plan file is a JSON object"),
        ("3", "plan.json:1: a plan file is a JSON object"),
        ('{\n "a": 1,\n "b": {"c": 1,\n "c": 2}}', "plan.json:4: b.c is there twice, first in line 3"),
        ('{"a": [1,\n NaN]}', "plan.json:2: a[1] is NaN"),
        ('{"a":\n -Infinity}', "plan.json:2: a is -Infinity"),
        ('{"a":\n 1e999}', "plan.json:2: a is 1e999, which is too large"),
        ('{"a":\n ' + "1" * 5000 + "}", "plan.json:2: a is a number of 5000 characters"),
        ('{"a":\n "\\ud800"}', "plan.json:2: a holds half of a surrogate pair"),
        ('{\n"\\udc00x": 1}', 'plan.json:2: "\\udc00x" holds half of a surrogate pair'),
        ("[" * 70 + "]" * 70, "plan.json:1: [0][0][0] more than 64 tables or lists"),
        ("[0" + ",\n0" * 500_000 + "]", "plan.json:500000: more than 500,000 keys and values"),
        ("[" * 100_000, "plan.json:1: [0][0][0] more than 64 tables or lists"),
    ],
)
def test_what_is_no_json_that_every_program_reads_is_refused_with_its_line(text: str, said: str) -> None:
    assert refused(text).message.startswith(said)


def test_a_whole_pair_of_surrogates_is_a_character() -> None:
    text = text_of(plan(note="x")).replace('"note": "x"', '"note": "\\ud83d\\ude00"')
    assert parse(FILE, text.encode()).note == "\U0001f600"


# ------------------------------------------------------------------------------------------ schema


def test_a_plan_of_a_newer_schema_says_so() -> None:
    error = refused(text_of().replace("moe-appliance.plan/1", "moe-appliance.plan/2"))
    assert "schema is moe-appliance.plan/2; this version of moe-appliance reads moe-appliance.plan/1" in error.message
    assert "newer moe-appliance" in error.remedy


@pytest.mark.parametrize("schema", ["other/1", "moe-appliance.plan/0", "moe-appliance.plan/x", 3, {}, "/1"])
def test_a_file_of_another_kind_is_no_plan(schema: object) -> None:
    assert "this is no plan file" in refused(json.dumps({"schema": schema})).message


def test_a_file_without_a_schema_is_no_plan() -> None:
    assert refused("{}").message == "plan.json:1: schema is missing; a plan file says moe-appliance.plan/1"


def test_an_unknown_key_is_named_with_its_line_and_the_one_that_was_meant() -> None:
    text = text_of().replace('"top_k"', '"topk"')
    said = refused(text).message
    assert f"plan.json:{line_of(text, 'topk')}: geometry.topk is not a known key; did you mean top_k?" in said
    assert "geometry.top_k is missing" in said


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('"top_k": 2', '"top_k": "2"', "geometry.top_k must be a whole number, is text"),
        ('"top_k": 2', '"top_k": true', "geometry.top_k must be a whole number, is true"),
        ('"top_k": 2', '"top_k": 2.5', "geometry.top_k must be a whole number, is 2.5"),
        ('"top_k": 2', '"top_k": 0', "geometry.top_k must be at least 1, is 0"),
        ('"tp": 2', '"tp": 65', "topology.tp must be at most 64, is 65"),
        ('"method": "manual"', '"method": "magic"', "selection.method must be 'routing-stats'"),
        ('"vision": false', '"vision": null', "targets.vision must be true or false, is null"),
        ('"tensors": []', '"tensors": {}', "host.tensors must be a list, is an object"),
        ('"tensors": []', '"tensors": [1]', "host.tensors[0] must be text, is 1"),
        ('"0": "0-3"', '"0": "3-0"', "host.experts.0 '3-0' runs backwards"),
        ('"0": "0-3"', '"0": "0-8"', "host.experts.0 8 is out of range"),
        ('"0": "0-3"', '"00": "0-3"', "host.experts.00 '00' is not a layer's number"),
        ('"0": "0-3"', '"9": "0-3"', "host.experts.9 there is no such layer"),
        ('"plan_id": "sha256:', '"plan_id": "md5:', "plan_id must match"),
        ('"schema": ', '"schema_": "moe-appliance.plan/1", "schema": ', "schema_ is not a known key"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_key(before: str, after: str, said: str) -> None:
    text = text_of().replace(before, after, 1)
    message = refused(text).message
    assert f"plan.json:{line_of(text, after.partition(',')[0])}: {said}" in message


def test_all_that_is_wrong_is_listed_and_the_rest_counted() -> None:
    values = json.loads(text_of()) | {f"x{number:02}": 1 for number in range(30)}
    said = refused(json.dumps(values)).message.splitlines()
    assert len(said) == 21
    assert said[-1] == "plan.json: and 10 more"


def test_text_that_moves_the_cursor_is_shown_as_an_escape() -> None:
    text = text_of().replace('"note": ""', '"note": "", "\\u001b[31m": 1')
    message = refused(text).message
    assert "\x1b" not in message


# ---------------------------------------------------------------------------------------- mutations

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("0-3,2"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A plan's values with one of them replaced, left out, or with a key more."""
    values = json.loads(text_of(plan({"0": "0-3"}, tensors=("embed.weight",))))
    place: Any = values
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
            place = place[key]
            continue
        if draw(st.booleans()):
            place[key] = draw(JSON)
        elif isinstance(place, dict):
            new = draw(st.text(max_size=6) | st.sampled_from(["schema_", "budget", "00", "3"]))
            place[new] = place.pop(key) if draw(st.booleans()) else draw(JSON)
        else:
            del place[key]
        break
    return json.dumps(values)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_any_change_of_a_plan_is_read_or_refused_with_a_key(text: str) -> None:
    found = outcome(text.encode())
    if isinstance(found, PlanError):
        assert all(re.match(r"plan\.json:\d+: \S+ \S", line) for line in found.message.splitlines())
    else:
        assert parse(FILE, dumps(found).encode()) == found.seal()


@settings(max_examples=300)
@given(st.integers(0, len(text_of()) - 1), st.binary(max_size=4), st.integers(0, 4))
def test_any_change_of_the_bytes_is_read_or_refused(at: int, new: bytes, gone: int) -> None:
    raw = text_of().encode()
    found = outcome(raw[:at] + new + raw[at + gone :])
    assert isinstance(found, Plan) or found.message.startswith("plan.json:")
