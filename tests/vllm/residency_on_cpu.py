"""Run by an engine's Python: placing and exchanging with the real torch, on memory of the host instead of CUDA's.

Prints one line for each check; an AssertionError ends it.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from appliance.residency.document import Residency
from appliance.residency.driver import Place
from appliance.residency.exchange import Exchange, Rows
from appliance.residency.placing import Placing
from appliance.residency.tensors import Ranges

EXPERTS = 64
COLD = (1, 2, 3, 5, 9, 40, 41, 42, 50, 63)


class HostDriver:
    """Anonymous memory in the place of CUDA's; what is made of which kind is told by `made`."""

    def __init__(self) -> None:
        self.spaces: dict[int, mmap.mmap] = {}
        self.made: list[tuple[int, bool]] = []

    def reserve(self, size: int) -> int:
        space = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(space))
        self.spaces[address] = space
        return address

    def free_address(self, address: int, size: int) -> None:
        assert len(self.spaces.pop(address)) == size

    def create(self, size: int, place: Place) -> int:
        self.made.append((size, place.host))
        return len(self.made)

    def release(self, handle: int) -> None:
        pass

    def map(self, address: int, size: int, handle: int) -> None:
        pass

    def unmap(self, address: int, size: int) -> None:
        pass

    def allow(self, address: int, size: int, card: int) -> None:
        pass


def frozen(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)


def a_layer_keeps_every_row_through_loading_and_relaying() -> None:
    driver = HostDriver()
    ranges = Ranges(driver, 0, 0)
    placing = Placing(Residency("", "", 2, EXPERTS, 6, 1, {0: COLD}, {}, ()), ranges, 1)
    layer = {
        "w13_weight": frozen(torch.zeros(EXPERTS, 256, 512)),
        "w13_weight_scale": frozen(torch.ones(EXPERTS, 4)),
        "w2_weight": frozen(torch.zeros(EXPERTS, 512, 128)),
        "e_score_correction_bias": frozen(torch.arange(EXPERTS).float()),
    }
    placed = placing.built(0, "model.layers.0.experts", EXPERTS, 6, layer)
    assert (layer["w13_weight"] == 0).all(), "what a parameter holds at first counts"
    for expert in range(EXPERTS):
        layer["w13_weight"].data[expert] = expert
        layer["w13_weight_scale"].data[expert] = expert
        layer["w2_weight"].data[expert] = -expert

    def process() -> None:
        layer["w2_weight"] = frozen(layer["w2_weight"].data.clone() * 2)

    placing.loaded(placed, lambda: layer, process)
    for expert, place in enumerate(placed.places):
        assert (layer["w13_weight"][place] == expert).all()
        assert (layer["w13_weight_scale"][place] == expert).all()
        assert (layer["w2_weight"][place] == -2 * expert).all()
    assert (layer["e_score_correction_bias"] == torch.arange(EXPERTS)).all(), "the router's own is left alone"
    assert len(driver.spaces) == 2, "the range that was replaced was given back"
    assert ranges.host_bytes == (2 + 1) << 21
    ranges.free_all()
    assert not driver.spaces
    print("placing")


def two_hundred_exchanges_lose_no_row() -> None:
    rows = Rows(
        (
            torch.randn(EXPERTS, 6, 8).to(torch.bfloat16),
            torch.randn(EXPERTS, 5),
            torch.randint(0, 9, (EXPERTS, 3, 2), dtype=torch.int32),
            torch.randn(EXPERTS),
        ),
        torch.arange(EXPERTS)[:, None].clone(),
        torch.arange(EXPERTS, dtype=torch.int32),
    )
    before, loads = [one.clone() for one in rows.parameters], rows.loads.clone()
    exchange, order, chance = Exchange([rows], torch.device("cpu")), tuple(range(EXPERTS)), random.Random(1)
    for _ in range(200):
        order = exchange.swap(rows, order, *chance.sample(range(EXPERTS), 2))
        places = rows.places[:, 0]
        assert all((now[places] == was).all() for now, was in zip(rows.parameters, before, strict=True))
        assert (rows.loads[places] == loads).all()
        assert [order[place] for place in places.tolist()] == list(range(EXPERTS))
    print("exchange")


if __name__ == "__main__":
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda: None
    a_layer_keeps_every_row_through_loading_and_relaying()
    two_hundred_exchanges_lose_no_row()
