"""The commands that findings about a plan end with."""

from __future__ import annotations

import pytest

from appliance.plan.memory import stated
from appliance.plan.schema import HostEngram, Limits, PlanHost, Targets
from appliance.units import GIB
from tests.plan import small
from tests.plan.test_check import ROOM, checked, made


def test_the_remedy_says_what_the_plan_is_for_and_rounds_to_the_safe_side() -> None:
    found = small.catalogue(engram=True)
    plan = made(
        found,
        targets=Targets(kv_bytes=3 * GIB + 1, draft=False, vision=True),
        limits=Limits(whole_layers=True, max_host_bytes=5 * GIB),
        host=PlanHost(engram=HostEngram(mode="disk")),
    )

    remedy = checked(found, plan, stated(8 * GIB - 1, 1)).findings[-1].remedy

    assert remedy == (
        "moe-appliance plan make --checkpoint /models/small --gpus 1 --vram-gib 7.99 --kv-gib 3.01 --max-host-gib 5"
        " --engram disk --vision --no-draft --whole-layers --out plan.json"
    )


@pytest.mark.parametrize(("cards", "remedy"), [(0, "preflight"), (1, "--gpus 1 "), (2, "--gpus 2 "), (5, "--gpus 2 ")])
def test_the_remedy_for_another_number_of_cards_is_the_most_that_experts_can_be_cut_for(
    cards: int, remedy: str
) -> None:
    found = small.catalogue()
    plan = made(found)
    plan = plan.model_copy(update={"topology": plan.topology.model_copy(update={"tp": 3})}).seal()

    assert remedy in checked(found, plan, stated(ROOM, cards)).findings[0].remedy
