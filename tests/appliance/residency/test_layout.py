"""Cold rows are contiguous at the end, each expert has one row, and a page is on the host only if all of it is cold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.residency.layout import PAGE_BYTES, in_pages, pages_of, places_of, rows_of

CHOICES = st.integers(1, 64).flatmap(lambda experts: st.tuples(st.just(experts), st.sets(st.integers(0, experts - 1))))


@given(choice=CHOICES)
def test_rows_are_a_permutation_with_the_cold_ones_last(choice: tuple[int, set[int]]) -> None:
    experts, cold = choice
    rows = rows_of(experts, cold)
    assert sorted(rows) == list(range(experts))
    assert set(rows[experts - len(cold) :]) == cold
    assert [rows[place] for place in places_of(rows)] == list(range(experts))


@given(row_bytes=st.integers(1, 3 * PAGE_BYTES), rows=st.integers(1, 40), data=st.data())
def test_no_hot_byte_is_on_the_host_and_no_whole_cold_page_in_vram(
    row_bytes: int, rows: int, data: st.DataObject
) -> None:
    cold = data.draw(st.integers(0, rows))
    pages = pages_of(row_bytes, rows, cold)
    if pages is None:
        assert cold * row_bytes < PAGE_BYTES, "it stays as it was only if the cold rows fill no page"
        return
    hot_bytes, all_bytes = (rows - cold) * row_bytes, rows * row_bytes
    assert pages.device_bytes - PAGE_BYTES < hot_bytes <= pages.device_bytes
    assert pages.device_bytes + pages.host_bytes - PAGE_BYTES < all_bytes <= pages.device_bytes + pages.host_bytes


@given(st.integers(0, 9 * PAGE_BYTES))
def test_whole_pages_are_the_fewest_that_hold_it(count: int) -> None:
    assert in_pages(count) % PAGE_BYTES == 0
    assert 0 <= in_pages(count) - count < PAGE_BYTES
