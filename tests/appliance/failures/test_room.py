"""How many experts must go, by the plan's figures or by what the engine says is missing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from appliance.checkpoint.catalogue import TensorClass
from appliance.engine.failures import Context, Exit, PlanFigures, VramHolder, diagnose
from appliance.engine.failures.plan_room import figures
from appliance.plan.cards import WEIGHTS
from appliance.units import GIB
from gateway.state import BudgetBar, BudgetLine, Moment, PlanState
from tests.appliance.failures.test_vllm_logs import lines

REMAKE = "moe-appliance plan make --checkpoint /m --gpus 2 --out p.json --overwrite"
PLAN = PlanFigures(90 * GIB, 95 * GIB, 100, 1_000, GIB // 2, REMAKE)
OOM = (
    "(EngineCore pid=7) ERROR 11-30 10:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
    "2.00 GiB. GPU 1 has a total capacity of 95.00 GiB of which 512.00 MiB is free."
)


def test_a_plan_that_fits_is_told_beside_what_is_missing() -> None:
    cause = diagnose(Exit(1, None), [OOM], Context(plan=PLAN))
    assert "2.00 GiB more were wanted, 512.00 MiB of 95.00 GiB are free on card 1" in cause.title
    assert "(the plan counts 90.0 GiB of 95.0 GiB)." in cause.title
    assert f"move 3 more experts: {REMAKE} --experts 103" in cause.remedy
    assert cause.retry


def test_a_plan_that_leaves_too_much_on_the_cards_is_made_anew_by_a_whole_command() -> None:
    cause = diagnose(Exit(1, None), [OOM], Context(plan=replace(PLAN, needed_bytes=96 * GIB)))
    assert cause.remedy == f"move 2 more experts: {REMAKE} --experts 102"


def test_a_plan_that_has_no_more_experts_to_move_is_made_anew() -> None:
    cause = diagnose(Exit(1, None), [OOM], Context(plan=replace(PLAN, needed_bytes=900 * GIB)))
    assert cause.remedy == f"make the plan anew for what the cards have: {REMAKE}"


def test_a_cache_that_is_small_by_a_little_needs_an_expert_moved() -> None:
    cause = diagnose(Exit(1, None), lines("kv-small"), Context(plan=PLAN))
    assert cause.remedy.startswith("set [engine] context_tokens = 1216; or more [engine] kv_cache_gib")
    assert "move 1 more expert:" in cause.remedy


def test_without_a_length_that_fits_none_is_offered() -> None:
    line = next(line for line in lines("kv-small") if "ValueError: To" in line)
    cause = diagnose(Exit(1, None), [line.replace("the estimated maximum model length is 1216", "")], Context())
    assert cause.id == "engine.kv_small"
    assert "context_tokens" not in cause.remedy


def test_who_holds_the_memory_is_named_where_it_is_known() -> None:
    holders = (VramHolder(77, "VLLM::\x1b[2J", 3 * GIB), VramHolder(78, "x", GIB))
    cause = diagnose(Exit(1, None), lines("gpu-taken"), Context(holders=holders))
    assert "1.08 GiB are missing; process 77 (VLLM::\\x1b[2J) 3.0 GiB, process 78 (x) 1.0 GiB." in cause.title
    assert cause.remedy.startswith("ps -o pid,args -p 77,78 ")
    assert diagnose(Exit(1, None), lines("gpu-taken"), Context()).remedy.startswith("nvidia-smi ")


def test_no_room_for_a_cache_by_a_plan_that_does_not_fit_is_the_plans() -> None:
    none = ["(EngineCore pid=7) ValueError: No available memory for the cache blocks. Try"]
    assert (
        "move 2 more experts"
        in diagnose(Exit(1, None), none, Context(plan=replace(PLAN, needed_bytes=96 * GIB))).remedy
    )
    all_hot = diagnose(Exit(1, None), none, Context(plan=replace(PLAN, cold_experts=0)))
    assert all_hot.title == "The weights leave no room for KV cache on the cards."


@given(st.integers(1, 1 << 45), st.integers(1, 1 << 34))
def test_so_many_experts_make_the_room_and_one_fewer_do_not(short: int, expert: int) -> None:
    more = replace(PLAN, experts=1 << 62, expert_bytes=expert).experts_for(short)
    assert more * expert >= short > (more - 1) * expert


def test_a_plan_without_figures_of_an_expert_offers_no_number() -> None:
    assert replace(PLAN, expert_bytes=0).experts_for(GIB) == 0


def bar(id_: str, capacity: int | None, routed: int) -> BudgetBar:
    line = {"label": "", "exact": True, "formula": "", "source": ""}
    return BudgetBar(
        id=id_,
        label=id_,
        capacity_bytes=capacity,
        lines=(
            BudgetLine(id=WEIGHTS + TensorClass.ROUTED, bytes=routed, **line),
            BudgetLine(id="kv", bytes=5, **line),
            BudgetLine(id="load", bytes=70, moment=Moment.LOAD, **line),
        ),
    )


def test_the_figures_of_a_checked_plan_are_of_its_fullest_card() -> None:
    plan = PlanState(
        plan_id="i",
        file="/p.json",
        name="n",
        cold_experts=4,
        experts=14,
        fits=False,
        verdict="",
        bars=(bar("gpu0", 90, 80), bar("gpu1", 95, 100), bar("node0", 1, 900)),
        remake="make",
    )
    assert figures(plan) == PlanFigures(105, 90, 4, 14, 10, "make")
    assert figures(plan.model_copy(update={"cold_experts": 14})) == PlanFigures(105, 90, 14, 14, 0, "make")
    assert figures(plan.model_copy(update={"bars": (bar("gpu0", None, 80),)})) is None


def test_memory_that_is_there_in_pieces_only_still_needs_an_expert_moved() -> None:
    cause = diagnose(Exit(1, None), [OOM.replace("2.00 GiB", "256.00 MiB", 1)], Context(plan=PLAN))
    assert "move 1 more expert:" in cause.remedy


def test_the_share_that_is_offered_is_never_more_than_there_is() -> None:
    log = [line.replace("138.58/", "139.35/") for line in lines("gpu-taken")]
    assert "gpu_memory_utilization = 0.99" in diagnose(Exit(1, None), log, Context()).remedy
