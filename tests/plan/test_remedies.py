"""The commands that findings about a plan end with."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.plan.budget import budget
from appliance.plan.memory import stated
from appliance.plan.remedies import Remake
from appliance.plan.schema import HostEngram, Limits, Plan, PlanHost, PlanModel, Profile, Selection, Targets
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
        " --engram disk --vision --no-draft --whole-layers --name lab/small --out plan.json"
    )


@pytest.mark.parametrize(("cards", "remedy"), [(0, "preflight"), (1, "--gpus 1 "), (2, "--gpus 2 "), (5, "--gpus 2 ")])
def test_the_remedy_for_another_number_of_cards_is_the_most_that_experts_can_be_cut_for(
    cards: int, remedy: str
) -> None:
    found = small.catalogue()
    plan = made(found)
    plan = plan.model_copy(update={"topology": plan.topology.model_copy(update={"tp": 3})}).seal()

    assert remedy in checked(found, plan, stated(ROOM, cards)).findings[0].remedy


def remake(plan: Plan, file: str | None = None, *, other: bool = False, engram: bool = False) -> Remake:
    found = small.catalogue(engram=engram)
    made_of = budget(found, plan, stated(ROOM, plan.topology.tp))
    return Remake(plan, small.checkpoint(found), made_of, file, other)


def planned(**more: Any) -> Plan:
    return made(small.catalogue(), **more)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("routing-stats", "--select routing-stats --stats FILE"),
        ("layers", "--layers LAYERS"),
        ("manual", "--list FILE"),
    ],
)
def test_how_experts_were_chosen_is_kept_with_a_placeholder_for_what_the_plan_does_not_say(
    method: Any, options: str
) -> None:
    assert f" --kv-gib 0 {options} " in remake(planned(selection=Selection(method=method))).command()


def test_a_plan_without_a_size_of_kv_keeps_its_streams_and_context() -> None:
    command = remake(planned(targets=Targets(streams=3, context_tokens=4096))).command()

    assert " --streams 3 --context 4096 " in command
    assert "--kv-gib" not in command


def test_a_number_of_experts_is_kept_where_it_is_meant_and_the_cards_hold_the_rest() -> None:
    plan = planned(host=PlanHost(experts={"0": "0-2"}, tensors=("embed.weight",)))
    short = small.catalogue()
    no_room = budget(short, plan, stated(1, 1))

    assert " --experts 3 " in remake(plan).command(keep_experts=True)
    assert "--experts" not in remake(plan).command()
    assert "--experts" not in remake(plan, other=True).command(keep_experts=True)
    assert "--experts" not in Remake(plan, small.checkpoint(short), no_room).command(keep_experts=True)


def test_an_embedding_that_stayed_when_experts_went_stays() -> None:
    kept = planned(host=PlanHost(experts={"0": "0-2"}))
    moved = planned(host=PlanHost(experts={"0": "0-2"}, tensors=("embed.weight",)))

    assert "--keep-embedding" in remake(kept).command()
    assert "--keep-embedding" not in remake(moved).command()
    assert "--keep-embedding" not in remake(planned()).command()


def test_the_cap_and_the_name_are_kept_for_the_same_model_on_as_many_cards() -> None:
    profile = Profile(name="lab/small", streams=6, validated="a day's test")
    plan = planned(profile=profile)

    assert """ --cap 6 --validated 'a day'"'"'s test' --name lab/small """ in remake(plan).command()
    assert " --name lab/small " in remake(plan).command(gpus=2)
    assert "--cap" not in remake(plan).command(gpus=2)
    other = remake(plan, other=True).command()
    assert not any(option in other for option in ("--cap", "--validated", "--name"))


def test_the_name_that_it_would_have_anyway_is_not_said() -> None:
    assert "--name" not in remake(planned(model=PlanModel(name="small"))).command()


def test_the_plans_own_file_is_replaced_and_without_one_a_new_one_is_written() -> None:
    assert remake(planned(), "/etc/my plan.json").command().endswith(" --out '/etc/my plan.json' --overwrite")
    assert remake(planned()).command().endswith(" --out plan.json")


def test_tables_that_the_model_does_not_have_are_placed_nowhere() -> None:
    plan = planned(host=PlanHost(engram=HostEngram(mode="disk")))

    assert "--engram disk" in remake(plan, engram=True).command()
    assert "--engram" not in remake(plan).command()
