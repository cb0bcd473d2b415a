"""How sums are said: exact ones as they are, those with an estimate in them with a `~`, small ones in MiB."""

from __future__ import annotations

import re

import pytest

from appliance.plan.memory import BoxMemory, stated
from appliance.plan.schema import Limits, Targets
from appliance.units import GIB, MIB, size
from tests.plan import small
from tests.plan.test_check import ROOM, checked, made, only


def test_what_is_short_by_less_than_a_tenth_is_said_in_mib() -> None:
    found = small.catalogue()
    plan = made(found)
    needed = checked(found, plan).budget.needed_bytes

    result = checked(found, plan, stated(needed - 5 * small.MIB, 1))

    assert result.verdict.startswith("does not fit: 5 MiB over with the weights alone")
    assert only(result).title == "The cards are 5 MiB short"


def test_an_estimated_reserve_makes_an_estimate_of_every_sum_that_it_is_in() -> None:
    found = small.catalogue()
    counted, estimated = made(found), made(found, targets=Targets(kv_bytes=0))
    needed = checked(found, estimated).budget.needed_bytes

    assert re.fullmatch(r"fits: \d+\.\d GiB a card left for KV", checked(found, counted).verdict)
    short = checked(found, estimated, stated(needed - GIB, 1))
    assert short.verdict.startswith("does not fit: ~1.0 GiB short on a card (0.1 weights, ~")
    assert only(short).title == "The cards are ~1.0 GiB short"
    assert only(short).observed.startswith("~")


def test_a_peak_that_counts_the_page_cache_is_an_estimate() -> None:
    found = small.catalogue(engram=True)
    plan = made(found, limits=Limits(min_free_host_bytes=1))

    said = only(checked(found, plan, BoxMemory((ROOM,), (0,), {0: 90 * MIB})))

    assert said.id == "plan.host"
    assert said.observed == "~0.1 GiB then"


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [(0, "0.0 GiB"), (1, "1 MiB"), (5 * MIB, "5 MiB"), (51 * MIB, "51 MiB"), (52 * MIB, "0.1 GiB"), (GIB, "1.0 GiB")],
)
def test_a_size_is_never_nothing_when_it_is_something(size_bytes: int, said: str) -> None:
    assert size(size_bytes) == said
    assert size(size_bytes, exact=False) == f"~{said}"
