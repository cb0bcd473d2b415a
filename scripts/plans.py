"""Makes the plans in plans/ through the planner, from the shape packs that the tests use.

`--check` writes nothing and ends with 1 when a file differs from what would be made.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a file, from anywhere

from appliance.plan.export.targets import verdicts
from appliance.plan.planfile import dumps
from appliance.plan.planner import plan_for
from appliance.plan.request import Request
from appliance.plan.schema import Plan, PlanModel, Profile, Targets
from tests.checkpoint.packs.fixtures import catalogue

PLANS = Path(__file__).parents[1] / "plans"
MIB, GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Shipped:
    """A ready plan: its file, the pack that stands in for its checkpoint, what is asked for, what people must know."""

    file: str
    pack: str
    model: str
    request: Request
    note: str


SHIPPED = (
    Shipped(
        file="deepseek-v4.1-flash-2x-rtx-pro-6000.json",
        pack="study",
        model="DeepSeek-V4.1-Flash, EXL3, routed experts 3 bits",
        request=Request(
            vram_bytes=97_887 * MIB,
            experts=4608,
            targets=Targets(kv_bytes=8 * GIB),
            profile=Profile(
                name="DeepSeek-V4.1-Flash on two RTX PRO 6000",
                streams=4,
                validated="a published study, on two RTX PRO 6000: at four streams every regime that was run held a "
                "median of 40 tok/s; with other experts in host RAM than these",
            ),
        ),
        note="Measured, by a published study and not by us: 4,608 of the 15,360 routed experts, both Engram tables and "
        "the token embedding in host RAM; boots with 72.4 GiB a card where 102.1 GiB did not; the cap of four streams. "
        "Reconstructed: which experts (not public; here 115 or 116 of each layer, those with the lowest numbers, so "
        "that the pace will differ) and the checkpoint's layout (not public; the stand-in gives 102.1 GiB a card "
        "without the plan and 72.9 with it). With routing statistics of your own: moe-appliance plan make --stats.",
    ),
    Shipped(
        file="qwen3-30b-a3b-2x-32gb.json",
        pack="qwen3-moe",
        model="Qwen3-30B-A3B, bf16",
        request=Request(vram_bytes=32_607 * MIB, targets=Targets(context_tokens=32_768)),
        note="An example; nothing was measured. Two cards of 32 GB hold the bf16 weights, but not four contexts of "
        "32,768 tokens beside them: the least that has to move, as many experts in each layer. Reconstructed: tensor "
        "shapes, from the public configuration.",
    ),
    Shipped(
        file="gpt-oss-120b-1x-48gb.json",
        pack="gpt-oss",
        model="gpt-oss-120b, MXFP4",
        request=Request(vram_bytes=49_140 * MIB, tp=1, targets=Targets(context_tokens=32_768)),
        note="An example; nothing was measured. One card of 48 GB does not hold the weights: the least that has to "
        "move for four contexts of 32,768 tokens, as many experts in each layer. Reconstructed: tensor shapes, from "
        "the public configuration. Experts are counted as vLLM's Marlin backend pads them, up to 14 % more bytes than "
        "in the file.",
    ),
)


def made(shipped: Shipped) -> Plan:
    """The plan, bound to no checkpoint's hashes: the pack is none that anybody has."""
    plan = plan_for(catalogue(shipped.pack), PlanModel(name=shipped.model), shipped.request)
    if shipped.pack == "study":  # its codebook is not public either, and another one changes no byte
        plan = plan.model_copy(update={"geometry": plan.geometry.model_copy(update={"codebook": None})})
    return plan.model_copy(update={"note": shipped.note, "exports": verdicts(plan)}).seal()


def main(argv: list[str]) -> int:
    """Write or check the files; returns the exit code."""
    stale = 0
    for shipped in SHIPPED:
        path, text = PLANS / shipped.file, dumps(made(shipped))
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in argv:
            print(f"error: plans/{shipped.file} is not what the planner makes\nremedy: scripts/plans", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text)
            print(f"plans/{shipped.file} written")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
