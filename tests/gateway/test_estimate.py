"""The estimate: too high costs milliseconds, too low lets through what does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.estimate import (
    COUNT_FROM_SHARE,
    DENSEST_TOK_PER_BYTE,
    FIRST_TOK_PER_BYTE,
    LEARN_FROM_BYTES,
    THINNEST_TOK_PER_BYTE,
    TokenEstimate,
)

WINDOW = 100_000


def worth(estimate: TokenEstimate, body_bytes: int, max_tokens: int = 0, *, surely: bool = False) -> bool:
    return estimate.worth_counting(body_bytes, max_tokens, WINDOW, surely=surely)


def test_a_short_prompt_is_not_counted_and_a_long_one_is() -> None:
    limit = int(COUNT_FROM_SHARE * WINDOW / FIRST_TOK_PER_BYTE)
    assert not worth(TokenEstimate(), limit - 5)
    assert worth(TokenEstimate(), limit + 5)


def test_an_answer_that_may_not_fit_is_a_reason_to_count() -> None:
    assert not worth(TokenEstimate(), 3000, WINDOW - 1001)
    assert worth(TokenEstimate(), 3000, WINDOW - 999)
    assert not worth(TokenEstimate(), 3000, 32_000), "a title call asks for 32000 and is not counted"


def test_when_an_answer_is_begun_before_the_engine_sees_the_prompt_no_text_is_trusted() -> None:
    dense = int(COUNT_FROM_SHARE * WINDOW / DENSEST_TOK_PER_BYTE)
    assert not worth(TokenEstimate(), dense - 5, surely=True)
    assert worth(TokenEstimate(), dense + 5, surely=True)
    assert not worth(TokenEstimate(), dense + 5)
    assert worth(TokenEstimate(), 10_000, WINDOW - 9_999, surely=True)
    assert not worth(TokenEstimate(), 10_000, WINDOW - 10_001, surely=True)
    assert not worth(TokenEstimate(), 10_000, WINDOW - 9_999)


def test_a_higher_share_is_taken_at_once_and_a_lower_one_slowly() -> None:
    estimate = TokenEstimate()
    estimate.learn(5000, 10_000)
    assert estimate.tok_per_byte == 0.5
    estimate.learn(1000, 10_000)
    assert 0.48 < estimate.tok_per_byte < 0.5
    for _ in range(1000):
        estimate.learn(1000, 10_000)
    assert estimate.tok_per_byte == pytest.approx(THINNEST_TOK_PER_BYTE), "bodies full of what is no prompt"


def test_small_bodies_teach_nothing() -> None:
    estimate = TokenEstimate()
    estimate.learn(LEARN_FROM_BYTES, LEARN_FROM_BYTES - 1)
    assert estimate.tok_per_byte == FIRST_TOK_PER_BYTE


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**8)), max_size=30))
def test_whatever_is_learned_it_stays_a_share(seen: list[tuple[int, int]]) -> None:
    estimate = TokenEstimate()
    for tokens, size in seen:
        estimate.learn(tokens, size)
        assert 0 <= estimate.tok_per_byte <= DENSEST_TOK_PER_BYTE
