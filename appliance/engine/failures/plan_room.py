"""The figures of a checked plan that a failure for want of GPU memory is told with. Pure."""

from __future__ import annotations

from appliance.checkpoint.catalogue import TensorClass
from appliance.engine.failures.context import PlanFigures
from appliance.plan.cards import WEIGHTS
from gateway.state import PlanState


def figures(plan: PlanState) -> PlanFigures | None:
    """Of the plan's fullest card; None when it has no card whose memory is known. An expert's bytes are the mean of
    those on the cards: rows that fill no page of 2 MiB, scales and biases stay there, and staging grows, so more
    experts may have to go."""
    cards = [bar for bar in plan.bars if bar.id.startswith("gpu") and bar.capacity_bytes is not None]
    if not cards:
        return None
    fullest = max(cards, key=lambda bar: bar.total_bytes())
    routed = sum(line.bytes for line in fullest.lines if line.id == WEIGHTS + TensorClass.ROUTED)
    hot = plan.experts - plan.cold_experts
    return PlanFigures(
        needed_bytes=fullest.total_bytes(),
        card_bytes=min(bar.capacity_bytes or 0 for bar in cards),
        cold_experts=plan.cold_experts,
        experts=plan.experts,
        expert_bytes=routed // hot if hot > 0 else 0,
        remake=plan.remake,
    )
