"""The index: lengths, replies, what it learns of the cache, and what it keeps over a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.meter import Usage
from gateway.prefix.blocks import BLOCKS_MAX
from gateway.prefix.fingerprint import fingerprint
from gateway.prefix.index import GROW, PrefixIndex
from tests.fake_engine.cache import BLOCK_TOKENS, PrefixCache
from tests.gateway.prefix.chains import ask, chain, dumped

BIG = 20
"""Blocks of a prompt that is long enough to tell a loss from an error of estimates: 1,280 tokens."""


def own(number: int, blocks: int = BIG) -> list[int]:
    """A path that shares nothing with that of another number."""
    return [number] * blocks


def test_what_nobody_sent_is_not_cached_and_four_bytes_are_a_token() -> None:
    estimate = PrefixIndex(None).estimate(chain(own(1)), "ana")
    assert (estimate.prompt_tokens, estimate.cached_tokens, estimate.uncached_tokens) == (1280, 0, 1280)


def test_an_empty_prompt_has_a_token_and_goes_through() -> None:
    index = PrefixIndex(None)
    reading = index.begin(chain([]), "ana", 0)
    index.end(reading, Usage(1, 1, 0), read=True, now_s=1)
    assert (reading.expected.prompt_tokens, index.held_tokens) == (1, 0)


def test_the_same_prompt_again_is_cached_but_for_its_last_token() -> None:
    index = PrefixIndex(None)
    ask(index, chain(own(1)))
    assert ask(index, chain(own(1))) == BIG * BLOCK_TOKENS - 1


def test_a_length_that_an_engine_counted_is_exact_in_the_next_turn() -> None:
    index = PrefixIndex(None)
    reading = index.begin(chain(own(1)), "ana", 0)
    index.end(reading, Usage(3000, 0, 0), read=True, now_s=1)
    estimate = index.estimate(chain([*own(1), 2]), "ana")
    assert estimate.cached_tokens == 3000
    assert index.held_tokens == 3000


def test_seats_learn_their_own_ratio_and_a_new_one_begins_with_the_average() -> None:
    index = PrefixIndex(None)
    for number in range(1, 30):
        reading = index.begin(chain(own(number)), "ana" if number % 2 else "ben", 0)
        index.end(reading, Usage(2560 if number % 2 else 640, 0, 0), read=True, now_s=1)
    lengths = [index.estimate(chain(own(99)), seat).prompt_tokens for seat in ("ana", "ben", "eve")]
    assert lengths[0] == pytest.approx(2560, rel=0.1)
    assert lengths[1] == pytest.approx(640, rel=0.1)
    assert lengths[1] < lengths[2] < lengths[0]


def test_a_picture_teaches_nothing_about_text() -> None:
    index = PrefixIndex(None)
    part = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}}
    print_ = fingerprint({"messages": [{"role": "user", "content": [part]}]})
    before = index.estimate(chain(own(1)), "ana")
    index.end(index.begin(print_, "ana", 0), Usage(90_000, 0, 0), read=True, now_s=1)
    assert index.estimate(chain(own(1)), "ana") == before


def test_a_reply_that_comes_back_is_cached_up_to_its_tokens() -> None:
    index = PrefixIndex(None)
    ask(index, chain(own(1)), reply=100)
    back = chain([*own(1), 2, 3, 4], written=[BIG, BIG + 1])
    assert index.estimate(back, "ana").cached_tokens == 1280 + 100
    short = chain([*own(1), 2, 4], written=[BIG])
    assert index.estimate(short, "ana").cached_tokens == 1280 + BLOCK_TOKENS
    assert index.estimate(chain([*own(1), 4]), "ana").cached_tokens == 1280


def test_a_request_that_the_engine_never_read_leaves_nothing() -> None:
    index = PrefixIndex(None)
    ask(index, chain(own(1)))
    reading = index.begin(chain([*own(1), *own(2)]), "ana", 0)
    index.end(reading, None, read=False, now_s=1)
    assert index.held_tokens == BIG * BLOCK_TOKENS
    assert index.estimate(chain([*own(1), *own(2)]), "ana").cached_tokens == BIG * BLOCK_TOKENS


def test_what_two_read_at_once_stays_when_one_of_them_gives_up() -> None:
    index = PrefixIndex(None)
    first = index.begin(chain(own(1)), "ana", 0)
    second = index.begin(chain([*own(1), 2]), "ben", 0)
    index.end(second, None, read=True, now_s=1)
    index.end(first, None, read=False, now_s=2)
    assert index.estimate(chain([*own(1), 2, 3]), "ana").cached_tokens == (BIG + 1) * BLOCK_TOKENS


def test_a_cleared_index_knows_nothing_and_readings_of_before_end_without_effect() -> None:
    index = PrefixIndex(None)
    reading = index.begin(chain(own(1)), "ana", 0)
    index.clear()
    index.end(reading, Usage(1280, 5, 0), read=True, now_s=1)
    assert (index.held_tokens, index.estimate(chain(own(1)), "ana").cached_tokens) == (0, 0)


def test_a_reading_ends_without_effect_on_an_index_that_took_the_place_of_its_own() -> None:
    former = PrefixIndex()
    reading = former.begin(chain(own(1)), "ana", 0)
    index = PrefixIndex.load(dumped(former))
    index.end(reading, Usage(BIG * BLOCK_TOKENS, 0, 0), read=True, now_s=1)
    assert index.held_tokens == 0


def test_the_oldest_goes_first_and_a_running_prompt_never() -> None:
    index = PrefixIndex(3 * BIG * BLOCK_TOKENS)
    running = index.begin(chain(own(1)), "ana", 0)
    for number in (2, 3, 4):
        ask(index, chain(own(number)))
    held = [index.estimate(chain([*own(number), 99]), "ana").cached_tokens for number in (1, 2, 3, 4)]
    assert held == [1280, 0, 1280, 1280]
    index.end(running, Usage(1280, 0, 0), read=True, now_s=1)


def test_of_a_prompt_that_half_fits_the_beginning_stays() -> None:
    index = PrefixIndex(BIG // 2 * BLOCK_TOKENS)
    ask(index, chain(own(1)))
    assert index.estimate(chain(own(1)), "ana").cached_tokens == BIG // 2 * BLOCK_TOKENS


@pytest.mark.parametrize("believed", [None, 1_000_000])
def test_losses_that_age_explains_tell_how_large_the_cache_is(believed: int | None) -> None:
    index, engine = PrefixIndex(believed), PrefixCache(10 * BIG * BLOCK_TOKENS)
    for at in range(60):
        print_ = chain(own(at % 12))
        cached = engine.hit_tokens(print_.names)
        engine.insert(print_.names)
        ask(index, print_, cached=cached, at=at)
    assert index.losses >= 2
    assert index.losses_lately(60) == index.losses
    assert index.losses_lately(1000) == 0
    assert index.capacity_tokens is not None
    assert 0.8 < index.capacity_tokens / (10 * BIG * BLOCK_TOKENS) < 1.25


def test_a_loss_of_something_young_is_not_the_size_of_the_cache() -> None:
    index = PrefixIndex(1_000_000)
    for number in range(20):
        ask(index, chain(own(number)), cached=0)
    for _ in range(9):
        ask(index, chain([*own(19), 99]), cached=0)
    assert index.losses >= 1
    assert index.capacity_tokens == 1_000_000


def test_what_was_believed_to_be_gone_and_is_there_makes_the_cache_larger() -> None:
    index = PrefixIndex(2 * BIG * BLOCK_TOKENS)
    for number in (1, 2, 3):
        ask(index, chain(own(number)), cached=0)
    assert ask(index, chain(own(1)), cached=1279) == 0
    assert index.capacity_tokens == round(2 * BIG * BLOCK_TOKENS * GROW)


def test_where_prompts_part_the_engine_says_how_much_they_share() -> None:
    index = PrefixIndex(None)
    ask(index, chain([*own(1), 2]), cached=0)
    assert ask(index, chain([*own(1), 3]), cached=64) == 1280
    assert ask(index, chain([*own(1), 4]), cached=64) == 64
    assert index.losses == 1


def test_expected_and_real_are_summed_by_seat_where_the_engine_tells() -> None:
    index = PrefixIndex(None)
    ask(index, chain(own(1)), cached=0)
    ask(index, chain(own(1)), cached=1279)
    ask(index, chain(own(1)), cached=None, seat="ben")
    hits = index.hits["ana"]
    assert (hits.requests, hits.prompt_tokens, hits.expected_tokens, hits.cached_tokens) == (2, 2560, 1279, 1279)
    assert set(index.hits) == {"ana"}


@pytest.mark.parametrize(
    "usage", [Usage(-5, 1, 0), Usage(2**80, 1, 0), Usage(10, -1, 0), Usage(10, 2**80, 9), Usage(0, 0, 0)]
)
def test_counts_that_cannot_be_true_teach_nothing(usage: Usage) -> None:
    index = PrefixIndex(None)
    before = index.estimate(chain(own(2)), "ana")
    index.end(index.begin(chain(own(1)), "ana", 0), usage, read=True, now_s=1)
    assert index.estimate(chain(own(2)), "ana") == before
    assert index.estimate(chain(own(1)), "ana").cached_tokens == 1279
    assert PrefixIndex.load(dumped(index)).held_tokens == index.held_tokens


def test_a_cached_count_beyond_the_prompt_is_the_prompt() -> None:
    index = PrefixIndex(None)
    ask(index, chain(own(1)), cached=10**9)
    ask(index, chain(own(1)), cached=-5)
    assert (index.hits["ana"].cached_tokens, index.hits["ana"].requests) == (1280, 2)


def test_blocks_are_bounded_without_a_capacity_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.prefix.blocks.BLOCKS_MAX", 5 * BIG)
    index = PrefixIndex(None)
    for number in range(50):
        ask(index, chain(own(number)))
    assert index.held_tokens <= 5 * BIG * BLOCK_TOKENS
    assert index.estimate(chain(own(49)), "ana").cached_tokens == 1279
    assert BLOCKS_MAX == 100_000


PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(PATHS, max_size=40), st.integers(8, 20))
def test_one_after_another_it_holds_exactly_what_a_cache_of_that_size_holds(asked: list[list[int]], size: int) -> None:
    index, engine = PrefixIndex(size * BLOCK_TOKENS), PrefixCache(size * BLOCK_TOKENS)
    for path in asked:
        print_ = chain(path)
        cached = engine.hit_tokens(print_.names)
        engine.insert(print_.names)
        assert ask(index, print_, cached=cached) == min(cached, len(path) * BLOCK_TOKENS - 1)
        assert index.held_tokens == engine.tokens
    assert (index.losses, index.capacity_tokens) == (0, size * BLOCK_TOKENS)


@given(st.lists(st.tuples(PATHS, st.integers(0, 200)), max_size=30), PATHS)
def test_an_index_that_was_dumped_and_loaded_estimates_the_same(
    asked: list[tuple[list[int], int]], then: list[int]
) -> None:
    index = PrefixIndex(20 * BLOCK_TOKENS)
    for path, reply in asked:
        ask(index, chain(path), reply=reply, cached=0)
    again = PrefixIndex.load(dumped(index))
    assert (again.held_tokens, again.capacity_tokens) == (index.held_tokens, index.capacity_tokens)
    for path in [then, *(path for path, _ in asked)]:
        print_ = chain([*path, 2, 1], written=[len(path)])
        there, here = again.estimate(print_, "ana"), index.estimate(print_, "ana")
        assert there.cached_tokens == here.cached_tokens
    assert dumped(again) == dumped(index)


def test_what_runs_is_kept_as_far_as_it_was_read() -> None:
    index = PrefixIndex(None)
    ask(index, chain(own(1)))
    index.begin(chain([*own(1), *own(2)]), "ana", 0)
    again = PrefixIndex.load(dumped(index))
    assert again.estimate(chain([*own(1), *own(2)]), "ana").cached_tokens == BIG * BLOCK_TOKENS


DUMP = PrefixIndex(5000)
for _number in range(3):
    ask(DUMP, chain(own(_number)), reply=7, cached=0)
RAW = dumped(DUMP)


@given(st.binary(max_size=200) | st.integers(0, len(RAW)).map(lambda cut: RAW[:cut]))
def test_garbage_is_a_value_error(raw: bytes) -> None:
    if raw != RAW:
        with pytest.raises(ValueError, match=r"\w"):
            PrefixIndex.load(raw)


@given(st.lists(st.tuples(st.integers(0, len(RAW) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_dump_is_a_value_error_or_an_index_that_works(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(RAW)
    for at, value in changes:
        raw[at] = value
    try:
        index = PrefixIndex.load(bytes(raw))
    except ValueError:
        return
    for number in range(4):
        ask(index, chain([*own(number), 1]), cached=0, reply=3)
    dumped(index)


@pytest.mark.parametrize("head", [b"[1]", b"{}", b'{"version":1}', b"[" * 5000, b'{"version":1,"blocks":-1}', b"\xff"])
def test_a_head_of_another_form_is_a_value_error(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        PrefixIndex.load(head + b"\n")
