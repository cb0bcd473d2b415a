"""For how many cards experts can be cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.checkpoint.catalogue import Geometry
from appliance.plan import cut


def shape(width: int, codebook: str | None = None, block: int = 1) -> Geometry:
    return Geometry(1, (0,), 8, 2, 64, width, codebook=codebook, block=block)


def test_exl3_is_cut_by_whole_tiles() -> None:
    assert cut.can_be_cut(shape(32), 4)
    assert not cut.can_be_cut(shape(32, "mcg"), 4)
    assert cut.can_be_cut(shape(32, "mcg"), 2)


def test_fp8_is_cut_by_whole_blocks() -> None:
    assert not cut.can_be_cut(shape(768, block=128), 4)
    assert cut.most_cards(shape(768, block=128), 8) == 6


@given(st.integers(1, 5000), st.integers(1, 64), st.sampled_from([None, "mcg"]))
def test_the_most_cards_can_be_cut_for_and_no_larger_number_can(width: int, limit: int, codebook: str | None) -> None:
    found = cut.most_cards(shape(width, codebook), limit)

    fitting = [cards for cards in range(1, limit + 1) if cut.can_be_cut(shape(width, codebook), cards)]
    assert found == (fitting[-1] if fitting else None)
