"""Carries a document out on one rank: layer by layer while the model is built, and again after each layer's weights
were re-laid.

Touches torch through tensors.py. A layer's life:
1. `built`: vLLM has made its parameters in VRAM. The weights with cold rows move over mixed ranges, with what they
   hold (padding and ones count), and the copies in VRAM are given back: one layer more at the peak.
2. Loading writes the rows where vLLM thinks they are, in logical order.
3. `loaded`: every per-expert parameter is permuted, once; then vLLM's own processing runs. Where it kept the storage
   nothing is left to do; where it made new tensors the ranges before them are given back, and they move, too. Their
   content is assigned to the Parameter that is there then: kernels hold on to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from .decided import Shape, host_pages, per_expert, per_expert_weights
from .document import Residency
from .errors import ResidencyError
from .layout import places_of, rows_of
from .tensors import Ranges, permute


@dataclass(slots=True)
class Placed:
    """One layer. `rows`: the logical id of each physical row."""

    number: int
    name: str
    rows: tuple[int, ...]
    ranges: set[int] = field(default_factory=set)
    is_loaded: bool = False

    @property
    def places(self) -> tuple[int, ...]:
        """The physical id of each logical one."""
        return places_of(self.rows)


class Placing:
    """The layers of one rank, by number."""

    def __init__(self, residency: Residency, ranges: Ranges) -> None:
        self.residency, self.ranges = residency, ranges
        self.layers: dict[int, Placed] = {}
        self.plain_bytes = 0

    def of(self, name: str) -> Placed:
        """The layer of that name. Raises ResidencyError: it was never built here, or its weights never came."""
        placed = next((placed for placed in self.layers.values() if placed.name == name), None)
        if placed is None or not placed.is_loaded:
            said = "another class makes its experts" if placed is None else "its weights are loaded another way"
            raise ResidencyError(f"{name}: {said}; this model cannot be placed: run without a plan")
        return placed

    def built(self, number: int, name: str, experts: int, parameters: _Parameters) -> Placed:
        """A layer's parameters exist and hold nothing yet. Raises ResidencyError."""
        if number in self.layers:
            raise ResidencyError(f"{name} and {self.layers[number].name} are both layer {number}; run without a plan")
        placed = Placed(number, name, rows_of(experts, self.residency.cold_of(number)))
        self.layers[number] = placed
        self._move(placed, parameters, self.residency.cold_of(number))
        return placed

    def loaded(self, placed: Placed, parameters: Callable[[], _Parameters], process: Callable[[], None]) -> None:
        """A layer's weights are there; `process` is what vLLM does with them. Raises ResidencyError."""
        if placed.is_loaded:
            raise ResidencyError(f"{placed.name}: weights came twice, and rows are permuted once; restart the engine")
        placed.is_loaded = True
        if placed.rows != tuple(range(len(placed.rows))):
            for shape in per_expert(shapes_of(parameters()), len(placed.rows)):
                permute(parameters()[shape.name], placed.rows)
        process()
        self._move(placed, parameters(), self.residency.cold_of(placed.number))
        self._count_plain(parameters())

    def _move(self, placed: Placed, parameters: _Parameters, cold: tuple[int, ...]) -> None:
        for address in placed.ranges - self._used(parameters):
            self.ranges.free(address)
        for name, pages in host_pages(shapes_of(parameters), len(placed.rows), len(cold)).items():
            if self.ranges.address_of(parameters[name]) is None:
                self.ranges.move(parameters[name], pages)
        placed.ranges = self._used(parameters)

    def _used(self, parameters: _Parameters) -> set[int]:
        found = (self.ranges.address_of(parameter) for parameter in parameters.values())
        return {address for address in found if address is not None}

    def _count_plain(self, parameters: _Parameters) -> None:
        weights = per_expert_weights(shapes_of(parameters))
        plain = (parameters[shape.name] for shape in weights)
        self.plain_bytes += sum(one.nbytes for one in plain if self.ranges.address_of(one) is None)


_Parameters = Mapping[str, torch.nn.Parameter]


def shapes_of(parameters: _Parameters) -> list[Shape]:
    """What decided.py needs to know of a layer's parameters."""
    return [
        Shape(name, len(parameter), parameter.nbytes // max(1, len(parameter)), parameter.is_contiguous())
        for name, parameter in parameters.items()
        if parameter.dim() > 0
    ]
