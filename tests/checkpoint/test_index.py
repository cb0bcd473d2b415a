"""The index, and where it and the headers disagree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.checkpoint.headers import Header
from appliance.checkpoint.index import Index, disagreements, is_inside, missing_shards, parse_index, size_note
from appliance.checkpoint.tensors import Shard, Tensor
from appliance.errors import CheckpointError

NAME = "model.safetensors.index.json"


def index(weight_map: dict[str, str], total_size: int | None = None) -> Index:
    return Index(NAME, "0" * 64, weight_map, total_size)


def header(file: str, *names: str) -> Header:
    tensors = tuple(Tensor(name, "U8", (1,), file, 8, 1) for name in names)
    return Header(Shard(file, 9, 8, "0" * 64, len(names)), tensors)


def told(found: Index | None, *headers: Header, missing: tuple[str, ...] = ()) -> list[str]:
    return [f"{fault.file}: {fault.text}" for fault in disagreements(found, headers, missing)]


def test_an_index_says_which_shard_holds_what() -> None:
    data = json.dumps({"metadata": {"total_size": 7}, "weight_map": {"b": "2.safetensors", "a": "1.safetensors"}})

    found = parse_index("here", NAME, data.encode())

    assert found.weight_map == {"a": "1.safetensors", "b": "2.safetensors"}
    assert found.shards == ("1.safetensors", "2.safetensors")
    assert found.total_size == 7
    assert len(found.sha256) == 64


@pytest.mark.parametrize(
    ("metadata", "size"),
    [({"total_size": 7.0}, 7), ({"total_size": "7"}, None), ({"total_size": True}, None), (None, None), ([], None)],
)
def test_an_odd_total_size_is_no_error(metadata: Any, size: int | None) -> None:
    data = json.dumps({"metadata": metadata, "weight_map": {"a": "1.safetensors"}}).encode()

    assert parse_index("here", NAME, data).total_size == size


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "no JSON"),
        (b"[]", "no weight_map"),
        (b'{"weight_map": {}}', "no weight_map"),
        (b'{"weight_map": []}', "no weight_map"),
        (b'{"weight_map": {"a": 1}}', "tensor a: its file is '1', no name"),
        (b"version https://git-lfs.example/spec/v1\n", "a Git LFS pointer"),
        (b"<!doctype html>", "an HTML or XML page in place of the index"),
    ],
)
def test_what_is_no_index_is_told(data: bytes, said: str) -> None:
    with pytest.raises(CheckpointError, match=NAME) as caught:
        parse_index("here", NAME, data)

    assert said in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    "shard",
    ["../x", "/etc/passwd", "a/../../x", "a\\b", "x\0", "", ".", "a//b", "a/", "C:\\x", "a\nb", "./x", "\u202ex"],
)
def test_a_shard_name_that_leaves_the_folder_is_refused(shard: str) -> None:
    assert not is_inside(shard)
    with pytest.raises(CheckpointError, match="leaves the folder") as caught:
        parse_index("here", NAME, json.dumps({"weight_map": {"a": shard}}).encode())

    assert caught.value.message.isprintable()


def test_a_shard_in_a_sub_folder_is_inside() -> None:
    assert is_inside("parts/model-00001-of-00002.safetensors")


def test_headers_that_agree_with_the_index_have_no_faults() -> None:
    assert told(index({"a": "1", "b": "2"}), header("1", "a"), header("2", "b")) == []


def test_each_way_of_disagreeing_is_told() -> None:
    found = index({"a": "1", "b": "1", "gone": "2"})

    said = told(found, header("1", "a"), header("2", "b", "extra"))

    assert said == [
        "2: tensor b: is in 1 by the index",
        "2: tensor extra: is not in the index",
        "2: tensor gone: in the index, not in the file",
    ]


def test_a_tensor_in_two_shards_is_told_with_and_without_an_index() -> None:
    headers = header("1", "a"), header("2", "a")

    assert told(None, *headers) == ["2: tensor a: also in 1"]
    assert "2: tensor a: also in 1" in told(index({"a": "1"}), *headers)


def test_tensors_of_a_missing_shard_are_not_told_one_by_one() -> None:
    found = index({"a": "1", "b": "2", "c": "2"})

    assert told(found, header("1", "a"), missing=("2",)) == []
    assert [fault.text for fault in missing_shards(found, ["2"])] == ["missing: the index puts 2 tensors there"]


def test_another_total_size_is_a_note() -> None:
    assert size_note(index({"a": "1"}, 7), 7) is None
    assert size_note(index({"a": "1"}), 7) is None
    assert size_note(None, 7) is None
    assert size_note(index({"a": "1"}, 1_000), 7) == f"{NAME}: total_size says 1,000 bytes, the tensors take 7"
