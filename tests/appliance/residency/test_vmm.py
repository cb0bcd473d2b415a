"""A range owns what it made, in both memories, and gives it back, also when something in the middle fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.residency.driver import Place
from appliance.residency.errors import ResidencyError
from appliance.residency.layout import CHUNK_BYTES, PAGE_BYTES, Pages, chunks_of
from appliance.residency.vmm import aliased, chunk, mapped
from tests.appliance.residency.books import BookDriver

PAGES = st.builds(Pages, st.integers(0, 5), st.integers(0, 5)).filter(lambda pages: pages.device + pages.host > 0)


@given(pages=PAGES)
def test_pages_in_vram_come_first_and_those_on_the_host_follow_without_a_gap(pages: Pages) -> None:
    driver = BookDriver()
    found = mapped(driver, pages, card=3, node=1)
    parts = [(at - found.address, size, driver.made[handle][1]) for at, (size, handle) in sorted(driver.mapped.items())]
    wanted = [(0, pages.device_bytes, Place(False, 3)), (pages.device_bytes, pages.host_bytes, Place(True, 1))]
    assert parts == [part for part in wanted if part[1]]
    assert driver.allowed == [(found.address, (pages.device + pages.host) * PAGE_BYTES, 3)]
    found.free()
    assert driver.is_empty


@pytest.mark.parametrize(
    "fails", [("reserve", 1), ("create", 1), ("map", 1), ("create", 2), ("map", 2), ("allow", 1)], ids=str
)
def test_what_was_made_before_an_error_is_given_back(fails: tuple[str, int]) -> None:
    driver = BookDriver(fails)
    with pytest.raises(ResidencyError, match=r"refused: \w+: no"):
        mapped(driver, Pages(2, 2), card=0, node=0)
    assert driver.is_empty


@given(pages=PAGES)
def test_an_alias_shows_the_same_vram_and_staging_where_the_host_was(pages: Pages) -> None:
    driver = BookDriver()
    found = mapped(driver, pages, card=3, node=1)
    chunks = [chunk(driver, card=3) for _ in range(chunks_of(pages.host_bytes))]
    alias = aliased(driver, found, [handle for handle, _ in chunks], card=3)
    at = {place - alias.address: held for place, held in driver.mapped.items() if place >= alias.address}
    staging = {pages.device_bytes + turn * CHUNK_BYTES: (CHUNK_BYTES, one) for turn, (one, _) in enumerate(chunks)}
    hot = {0: (pages.device_bytes, found.vram)} if pages.device else {}
    assert at == hot | staging
    assert alias.host_address - alias.address == found.host_address - found.address == pages.device_bytes
    assert len(chunks) * CHUNK_BYTES >= pages.host_bytes
    alias.free()
    for _, give_back in chunks:
        give_back()
    found.free()
    assert driver.is_empty


@pytest.mark.parametrize("fails", [("reserve", 2), ("map", 4), ("allow", 2)], ids=str)
def test_of_an_alias_that_fails_nothing_stays_and_what_it_shows_does(fails: tuple[str, int]) -> None:
    driver = BookDriver(fails)
    found = mapped(driver, Pages(2, 2), card=0, node=0)
    staging, give_back = chunk(driver, card=0)
    with pytest.raises(ResidencyError, match=r"\w+: no"):
        aliased(driver, found, [staging], card=0)
    assert len(driver.spaces) == 1
    found.free()
    give_back()
    assert driver.is_empty
