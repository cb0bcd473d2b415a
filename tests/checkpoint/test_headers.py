"""The header of one safetensors file: what it holds, and everything that can be wrong with it."""

from __future__ import annotations

import json
import time
from hashlib import sha256
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.checkpoint.faults import Fault
from appliance.checkpoint.headers import BITS, LIMIT_BYTES, Header, header_length, parse_header

FILE = "model-00001-of-00002.safetensors"


def entry(dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def parsed(entries: Any, data_bytes: int = 24) -> Header:
    data = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return parse_header(FILE, data, 8 + len(data) + data_bytes)


def fault(entries: Any, data_bytes: int = 24) -> str:
    """The one thing that is wrong."""
    (only,) = parsed(entries, data_bytes).faults
    assert only.file == FILE
    assert only.remedy
    return only.text


def test_a_header_becomes_a_shard_and_its_tensors() -> None:
    data = json.dumps({"__metadata__": {"format": "pt"}, "a": entry(), "b": entry("I8", (), (24, 25))}).encode()

    header = parse_header(FILE, data + b"  ", 8 + len(data) + 2 + 25)

    assert header.faults == ()
    assert header.shard.header_bytes == 8 + len(data) + 2
    assert header.shard.header_sha256 == sha256(data + b"  ").hexdigest()
    first, second = header.tensors
    assert (first.name, first.dtype, first.shape, first.nbytes) == ("a", "F32", (2, 3), 24)
    assert first.begin == header.shard.header_bytes
    assert (second.shape, second.nbytes, second.begin - first.begin) == ((), 1, 24)


specs = st.lists(
    st.tuples(st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 5), max_size=3).map(lambda dims: [*dims, 8])),
    min_size=1,
    max_size=8,
)


@given(specs, st.randoms(use_true_random=False))
def test_any_order_of_names_and_of_data_is_read(found: list[tuple[str, list[int]]], random: Any) -> None:
    names = [f"t{number}" for number in range(len(found))]
    laid_out, end = {}, 0
    for name, (dtype, shape) in random.sample(list(zip(names, found, strict=True)), len(found)):
        begin, end = end, end + prod(shape) * BITS[dtype] // 8
        laid_out[name] = entry(dtype, shape, (begin, end))
    named = {name: laid_out[name] for name in random.sample(names, len(names))}

    header = parsed(named, end)

    assert header.faults == ()
    assert {tensor.name: list(tensor.shape) for tensor in header.tensors} == {
        name: shape for name, (_, shape) in zip(names, found, strict=True)
    }
    assert sum(tensor.nbytes for tensor in header.tensors) == end


@given(specs, st.data())
def test_no_change_of_one_offset_goes_unseen(found: list[tuple[str, list[int]]], draw: Any) -> None:
    entries, end = {}, 0
    for number, (dtype, shape) in enumerate(found):
        begin, end = end, end + prod(shape) * BITS[dtype] // 8
        entries[f"t{number}"] = entry(dtype, shape, [begin, end])
    victim = draw.draw(st.sampled_from(sorted(entries)))
    side = draw.draw(st.sampled_from([0, 1]))
    entries[victim]["data_offsets"][side] += draw.draw(st.integers(-9, 9).filter(bool))

    assert parsed(entries, end).faults


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [("F4", (3, 2), 3), ("F6_E2M3", (4,), 3), ("F6_E3M2", (2, 4), 6), ("F8_E8M0", (5,), 5), ("C64", (2,), 16)],
)
def test_sub_byte_and_odd_dtypes_have_their_sizes(dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    header = parsed({"a": entry(dtype, shape, (0, nbytes))}, nbytes)

    assert header.faults == ()
    assert header.tensors[0].nbytes == nbytes


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (entry("F33"), "tensor a: unknown dtype 'F33'"),
        (entry(None), "unknown dtype None"),
        (entry(["F32"]), "unknown dtype"),
        (entry(shape=(2, -3)), "shape [2, -3] is no list of whole numbers"),
        (entry(shape=(True, 6)), "shape [True, 6] is no list of whole numbers"),
        (entry(shape=(2.0, 3)), "shape [2.0, 3] is no list of whole numbers"),
        (entry(shape="23"), "shape 23 is no list"),
        (entry(shape=(2, 3, 10**30)), "is no list of whole numbers"),
        (entry(shape=[2**63] * 60), "more than any file can hold"),
        (entry(shape=[1] * 65), "65 dimensions, 64 is the most"),
        (entry(offsets=(0,)), "data_offsets [0] are no begin and end"),
        (entry(offsets=(24, 0)), "data_offsets [24, 0] are no begin and end"),
        (entry(offsets=(False, 24)), "data_offsets [False, 24] are no begin and end"),
        (entry(offsets=(-24, 0)), "data_offsets [-24, 0] are no begin and end"),
        (entry(offsets=(0, 23)), "F32 x [2, 3] is 24 bytes, its offsets hold 23"),
        (entry("F4", (3,), (0, 2)), "12 bits, which fill no whole number of bytes"),
        ({"dtype": "F32", "shape": [2, 3]}, "not an object with dtype, shape and data_offsets"),
        (7, "not an object with dtype, shape and data_offsets"),
    ],
)
def test_a_wrong_entry_is_named_with_what_is_wrong(wrong: Any, said: str) -> None:
    assert said in fault({"a": wrong})


def test_every_wrong_entry_is_told() -> None:
    header = parsed({"a": entry("X"), "b": entry(), "c": entry("Y")})

    assert [fault.text.split(":")[0] for fault in header.faults] == ["tensor a", "tensor c"]
    assert [tensor.name for tensor in header.tensors] == ["b"]


@pytest.mark.parametrize(
    ("second", "data_bytes", "said"),
    [
        ((20, 44), 44, "tensors a and b: their data overlap by 4 bytes"),
        ((30, 54), 54, "a gap of 6 bytes between a and b"),
        ((24, 48), 40, "of 141 bytes, tensor b is the first that is cut"),
        ((24, 48), 50, "2 bytes longer than its tensors"),
    ],
)
def test_overlaps_gaps_cut_and_long_files_are_told(second: Any, data_bytes: int, said: str) -> None:
    text = json.dumps({"a": entry(), "b": entry(offsets=second)}).encode()
    end = f"{8 + len(text) + 48:,}"

    assert said.replace("141", end) in fault(text, data_bytes)


def test_a_gap_before_the_first_tensor_is_told() -> None:
    assert "tensor a: a gap of 8 bytes before it" in fault({"a": entry(offsets=(8, 32))}, 32)


def test_a_name_that_occurs_twice_is_told() -> None:
    one = json.dumps(entry())
    data = f'{{"a": {one}, "\\u0061": {one}}}'.encode()

    assert fault(data) == "tensor a: twice in the header"


def test_a_name_that_speaks_of_offsets_is_no_duplicate() -> None:
    assert parsed({"__metadata__": {"x": "data_offsets"}, '"data_offsets"': entry()}).faults == ()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"a": NaN}', "the header is no JSON"),
        (b'{"a": ', "the header is no JSON"),
        (b"[]", "the header is no JSON object"),
        (b' {"a": {}}', "the header is no JSON object"),
        (b'{"__metadata__": {"a": 1}}', "__metadata__ does not map texts to texts"),
        (b'{"__metadata__": 1}', "__metadata__ does not map texts to texts"),
        (b'{"a": "\xff"}', "the header is no JSON"),
    ],
)
def test_what_is_no_header_is_told(data: bytes, said: str) -> None:
    assert said in fault(data, 0)


def test_a_file_without_tensors_is_whole() -> None:
    assert parsed({}, 0) == Header(parsed({}, 0).shard, ())


def test_names_cannot_write_to_the_terminal() -> None:
    text = fault({"a\x1b[31m\n": entry("X")})

    assert text.isprintable()
    assert r"a\x1b[31m\n" in text


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"", "the file is empty"),
        (b"\x05", "truncated: 1 bytes, not even the length of a header"),
        (b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 5\n", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "an HTML or XML page in place of data"),
        (b"\n  <html>", "an HTML or XML page in place of data"),
        (b'{"error": "Not Found"}', "JSON text in place of data"),
        (b"GGUF\x03\x00\x00\x00\x10\x00\x00\x00", "a GGUF file with another ending"),
        (b"PK\x03\x04\x00\x00\x08\x08", "a zip archive"),
        (
            (LIMIT_BYTES + 1).to_bytes(8, "little"),
            "the header would be 100,000,001 bytes, the format allows 100,000,000",
        ),
        (b"\xff" * 8, "the header would be 18,446,744,073,709,551,615 bytes"),
        ((0).to_bytes(8, "little"), "a header of 0 bytes"),
        ((500).to_bytes(8, "little"), "truncated in its header: 8 bytes, the header alone ends at 508"),
    ],
)
def test_what_is_no_safetensors_file_is_told_by_its_beginning(start: bytes, said: str) -> None:
    found = header_length(FILE, start, len(start))

    assert isinstance(found, Fault)
    assert said in found.text
    assert found.remedy


def test_the_longest_header_is_read() -> None:
    assert header_length(FILE, LIMIT_BYTES.to_bytes(8, "little"), LIMIT_BYTES + 8) == LIMIT_BYTES


@given(st.binary(max_size=64), st.integers(0, 64))
def test_no_bytes_crash_the_reader(start: bytes, more: int) -> None:
    header_length(FILE, start, len(start) + more)
    parse_header(FILE, start, len(start) + more)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), json_values | st.builds(entry, json_values, json_values, json_values)))
def test_no_json_crashes_the_reader(entries: dict[str, Any]) -> None:
    for found in parsed(entries).faults:
        assert found.text.isprintable()


def test_a_text_full_of_quotes_costs_no_more_than_its_length() -> None:
    entries = {"__metadata__": {"data_offsets": '"' * 1_000_000}, "a": entry()}
    began_s = time.process_time()

    assert parsed(entries).faults == ()
    assert time.process_time() - began_s < 5


def test_a_name_that_fills_the_header_is_cut_before_it_is_looked_at() -> None:
    began_s = time.process_time()

    assert len(fault({"x" * 80_000_000: entry("F32", (2, 3), (0, 25))}, 25)) < 1000
    assert time.process_time() - began_s < 1
