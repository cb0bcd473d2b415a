"""gateway/prewarm/books.py on the gateway's own index: what is believed to be there, and what is told to it."""

from __future__ import annotations

import json

import pytest

from gateway.meter import Usage
from gateway.prefix.fingerprint import Fingerprint
from gateway.prefix.index import PrefixIndex
from gateway.prewarm.books import IndexBooks, print_of


def prompt(*texts: str) -> Fingerprint:
    return print_of(json.dumps({"messages": [{"role": "user", "content": text} for text in texts]}).encode())


SYSTEM, MORE = "tree " * 8_000, "bush " * 8_000


@pytest.fixture
def books() -> IndexBooks:
    index = PrefixIndex()
    return IndexBooks(lambda: index, lambda: 1000.0)


def test_what_was_read_whole_is_there_and_what_was_cut_is_not(books: IndexBooks) -> None:
    books.begins("ana", prompt(SYSTEM))(None)
    assert not books.is_cached("ana", prompt(SYSTEM))
    books.begins("ana", prompt(SYSTEM))(Usage(10_000, 1, 0))
    assert books.is_cached("ana", prompt(SYSTEM))


def test_what_is_there_by_half_is_not_there(books: IndexBooks) -> None:
    books.begins("ana", prompt(SYSTEM))(Usage(10_000, 1, 0))
    assert not books.is_cached("ana", prompt(SYSTEM, MORE))
    assert books.is_cached("ana", prompt(SYSTEM, "go")), "a few words are what the estimate may be off"
