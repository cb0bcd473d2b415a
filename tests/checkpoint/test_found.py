"""What was read becomes a checkpoint, or everything that is wrong with it."""

from __future__ import annotations

import pytest

from appliance.checkpoint.faults import Fault, complaint, plain, shown_url
from appliance.checkpoint.found import Found, checkpoint_of
from appliance.checkpoint.headers import Header
from appliance.checkpoint.tensors import Shard, Tensor
from appliance.errors import CheckpointError
from appliance.printable import escaped


def header(file: str, *names: str) -> Header:
    tensors = tuple(Tensor(name, "U8", (1,), file, 8 + at, 1) for at, name in enumerate(names))
    return Header(Shard(file, 8 + len(names), 8, "0" * 64, len(names)), tensors)


def test_shards_come_in_order_of_their_names_whatever_came_first() -> None:
    found = checkpoint_of(Found("here", headers=[header("2", "c"), header("1", "b", "a")], notes=["odd"]))

    assert [shard.name for shard in found.shards] == ["1", "2"]
    assert [tensor.name for tensor in found.tensors] == ["b", "a", "c"]
    assert (found.total_bytes, found.notes) == (3, ("odd",))


def test_missing_files_come_first_among_what_is_wrong() -> None:
    found = Found(
        "here", headers=[header("3", "a"), header("4", "a")], missing=["2"], faults=[Fault("1", "bad", "mend")]
    )

    with pytest.raises(CheckpointError) as caught:
        checkpoint_of(found)

    assert caught.value.message == "here: 3 faults\n  2: missing\n  1: bad\n  4: tensor a: also in 3"


def test_what_was_found_has_a_short_text() -> None:
    assert len(repr(Found("here", headers=[header("1", *map(str, range(1000)))]))) < 200


def test_ten_faults_are_named_and_the_rest_counted() -> None:
    error = complaint("here", [Fault(f"f{number}", "bad", "mend it") for number in range(1500)])

    assert error.message.splitlines()[0] == "here: 1,500 faults"
    assert error.message.splitlines()[-1] == "  and 1,490 more"
    assert error.remedy == "mend it"


def test_one_fault_is_one_line() -> None:
    assert complaint("here", [Fault("f", "bad", "mend it")]).message == "here: f: bad"


def test_what_is_shown_has_no_control_characters_and_no_secrets() -> None:
    assert escaped("a\x1b\n\u202eb") == "a\\x1b\\n\\u202eb"
    assert len(plain("x" * 10_000)) == 163
    assert shown_url("http://user:word@host:1/a/b?sig=1#x") == "http://host:1/a/b"
