"""How much of a shard is asked for first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint.first_span import BLIND_BYTES, FIXED_BYTES, FirstSpan
from appliance.checkpoint.headers import LENGTH_BYTES, LIMIT_BYTES
from tests.checkpoint.packs.deepseek_v41 import released
from tests.checkpoint.packs.writer import header


def test_an_unknown_shard_is_asked_for_blindly() -> None:
    first = FirstSpan({})
    first.learn("a", 10**6)

    assert first.bytes_for("a") == BLIND_BYTES


def test_one_request_is_enough_for_the_released_checkpoint_and_wastes_little() -> None:
    shards, _ = released()
    first = FirstSpan({spec.name: shard for shard, specs in shards.items() for spec in specs})
    asked = real = again = 0

    for shard, specs in shards.items():
        length = len(header(specs)[0])
        estimate = first.bytes_for(shard)
        asked, real, again = asked + max(estimate, length), real + length, again + (estimate < length)
        first.learn(shard, length)

    assert again <= 1
    assert asked <= 1.02 * real


@settings(deadline=None)
@given(st.integers(40, 200), st.lists(st.integers(1, 5000), min_size=2, max_size=20))
def test_it_learns_from_one_shard_what_the_others_need(each: int, counts: list[int]) -> None:
    weight_map = {f"{shard}.{tensor:05d}": str(shard) for shard, count in enumerate(counts) for tensor in range(count)}
    first = FirstSpan(weight_map)
    names = {str(shard): count * (len(str(shard)) + 6) for shard, count in enumerate(counts)}
    first.learn("0", names["0"] + counts[0] * each)

    for shard, count in enumerate(counts):
        need = names[str(shard)] + count * each
        assert need <= first.bytes_for(str(shard)) <= 1.01 * need + FIXED_BYTES + 1


def test_a_shard_with_a_header_full_of_metadata_does_not_make_the_next_request_read_weights() -> None:
    first = FirstSpan({"a": "one"} | {f"tensor.{number}": "two" for number in range(10_000)})
    first.learn("one", LIMIT_BYTES)

    assert first.bytes_for("two") < 5_000_000


def test_no_more_is_asked_for_than_a_header_may_have() -> None:
    names = {"x" * 1000 + str(number): "one" for number in range(100_000)}

    assert FirstSpan(names).bytes_for("one") == LENGTH_BYTES + LIMIT_BYTES
