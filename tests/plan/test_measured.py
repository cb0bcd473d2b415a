"""What a plan promises of a rank is what the residency plugin said it had placed, to the byte.

Source: the plugin's lines "placed: ..." on one H200, vLLM 0.26.0, one rank (docs/measurements.md). They count weights
alone; of scales it is only known that they stay in VRAM.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import pytest

from appliance.plan.budget import Budget, budget
from appliance.plan.memory import stated
from appliance.plan.planner import plan_for
from appliance.plan.request import Request
from appliance.plan.schema import PlanHost
from appliance.residency.layout import PAGE_BYTES
from tests.plan import small

ROOM = 1 << 40
EMBEDDING = 7 * PAGE_BYTES
"""In host RAM besides, in the runs of six layers."""


class Shape(NamedTuple):
    """Layers, experts of each and how many of them are cold; widths of model and expert; bytes of a weight."""

    layers: int
    experts: int
    cold: int
    hidden: int
    inner: int
    weight_bytes: Fraction = Fraction(2)

    @property
    def rows(self) -> tuple[int, int, int]:
        """w13, w2, and one of scales."""
        matrix = int(self.hidden * self.inner * self.weight_bytes)
        return 2 * matrix, matrix, 2 * self.hidden * self.inner // 16


def planned(shape: Shape) -> Budget:
    found = small.catalogue(shape.layers, shape.experts, rows=shape.rows)
    made = plan_for(found, small.MODEL, Request(ROOM, tp=1, targets=small.NO_RESERVES))
    cold = dict.fromkeys(map(str, range(shape.layers)), f"0-{shape.cold - 1}")
    return budget(found, made.model_copy(update={"host": PlanHost(experts=cold)}), stated(ROOM, 1))


def of(made: Budget, name: str) -> int:
    return next(line.bytes for bar in (*made.gpus, *made.nodes) for line in bar.lines if line.id == name)


SMALL = Shape(6, 64, 19, 1024, 512)
MIDDLE = Shape(12, 128, 42, 2048, 768)
HUGE = Shape(36, 128, 38, 4096, 1536)
FP8, FOUR_BITS = (SMALL._replace(weight_bytes=Fraction(1, parts)) for parts in (1, 2))
PLACED = {
    "bf16": (SMALL, 855_638_016, 367_001_600 - EMBEDDING),
    "fp8": (FP8, 440_401_920, 178_257_920 - EMBEDDING),
    "mxfp4, nvfp4, awq": (FOUR_BITS, 226_492_416, 90_177_536 - EMBEDDING),
    "bf16, 12 layers": (MIDDLE, 9_739_173_888, 4_756_340_736),
    "bf16, more than the card holds": (HUGE, 122_305_904_640, 51_640_270_848),
}


@pytest.mark.parametrize("name", PLACED)
def test_weights_in_vram_and_in_host_ram_are_those_that_were_measured(name: str) -> None:
    shape, in_vram, in_host_ram = PLACED[name]

    made = planned(shape)

    scales = shape.layers * shape.experts * shape.rows[2]
    assert of(made, "weights.routed_experts") + of(made, "boundary") - scales == in_vram
    assert of(made, "host.experts") == in_host_ram


@pytest.mark.parametrize(
    ("shape", "staging"),
    [(SMALL, 169_869_312), (FP8, 102_760_448), (FOUR_BITS, 69_206_016), (MIDDLE, 811_597_824)],
)
def test_staging_is_what_was_measured(shape: Shape, staging: int) -> None:
    assert of(planned(shape), "staging") == staging
