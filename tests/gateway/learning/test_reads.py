"""gateway.learning.reads: a reading that shared the engine is no measurement."""

from __future__ import annotations

from gateway.learning.reads import Reads


def test_a_prompt_that_is_read_alone_is_a_measurement() -> None:
    reads = Reads()
    reads.sent(1, 10.0)
    assert reads.read(1, 12.5) == 2.5
    assert reads.read(1, 13.0) is None


def test_neither_of_two_that_are_read_at_once_is_one() -> None:
    reads = Reads()
    reads.sent(1, 10.0)
    reads.sent(2, 11.0)
    assert reads.read(1, 12.0) is None
    assert reads.read(2, 13.0) is None
    reads.sent(3, 14.0)
    assert reads.read(3, 15.0) == 1.0


def test_one_that_was_given_up_is_in_nobodys_way_afterwards() -> None:
    reads = Reads()
    reads.sent(1, 10.0)
    reads.gone(1)
    reads.gone(1)
    reads.sent(2, 11.0)
    assert reads.read(2, 12.0) == 1.0
    assert reads.read(7, 12.0) is None
