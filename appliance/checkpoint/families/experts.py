"""Gathers the tensors of routed experts by layer and by the engine's tensors; they are nearly all there are. Pure.

One regular expression and three look-ups a tensor; what a layer's name and a matrix's name mean is asked of the family
once. 184,320 tensors of 15,360 experts take about 0.3 s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.checkpoint.families.base import EXPERT, Block, Family
from appliance.checkpoint.families.kinds import Load, TensorClass
from appliance.checkpoint.tensors import Tensor


@dataclass(slots=True)
class Rows:
    """One tensor of the engine: bytes by expert. `units`: 1 when each rank holds all of a row, 0 when rows are cut."""

    units: int
    sizes: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    @property
    def total_bytes(self) -> int:
        """All rows."""
        return sum(self.sizes.values())


Bank = Mapping[str, Rows]
"""The experts of one layer: the engine's name of a tensor -> its rows."""


class Banks:
    """All experts of a checkpoint. `take` each tensor, then look."""

    def __init__(self, family: Family) -> None:
        self.uneven: list[str] = []
        """Names of tensors that hold all experts of a layer and cannot be divided by their number."""
        self._family = family
        self._blocks: dict[str, Block | None] = {}
        self._parameters: dict[str, tuple[str, int] | None] = {}
        self._banks: dict[tuple[bool, int], dict[str, Rows]] = defaultdict(dict)

    def take(self, tensor: Tensor) -> bool:
        """Counts a tensor in if it is experts', and says whether it was."""
        match = EXPERT.fullmatch(tensor.name)
        if match is None:
            return bool(self._family.fused) and self._take_fused(tensor)
        prefix, expert, tail = match.groups()
        if prefix not in self._blocks:
            self._blocks[prefix] = self._family.bank_of(prefix)
        if tail not in self._parameters:
            self._parameters[tail] = self._family.parameter(tail)
        block, parameter = self._blocks[prefix], self._parameters[tail]
        if block is None or parameter is None:
            return False
        self._rows(block.draft, block.layer, *parameter).sizes[int(expert)] += tensor.nbytes
        return True

    def _take_fused(self, tensor: Tensor) -> bool:
        place = self._family.place(tensor.name, tensor.shape)
        if place is None or not place.fused or place.layer is None:
            return False
        rows = self._rows(place.cls is TensorClass.DRAFT, place.layer, place.parameter, place.units)
        row_bytes, rest = divmod(tensor.nbytes, place.fused)
        for expert in range(place.fused):
            rows.sizes[expert] += row_bytes
        if rest:
            rows.sizes[place.fused - 1] += rest
            self.uneven.append(tensor.name)
        return True

    def _rows(self, draft: bool, layer: int, parameter: str, units: int) -> Rows:
        bank = self._banks[draft, layer]
        if parameter not in bank:
            bank[parameter] = Rows(units)
        return bank[parameter]

    def of(self, *, draft: bool) -> dict[int, Bank]:
        """Layer -> its bank, ascending, of the draft or of the backbone."""
        return {layer: bank for (drafted, layer), bank in sorted(self._banks.items()) if drafted == draft}

    def sums(self) -> dict[tuple[TensorClass, int, Load], int]:
        """All bytes by class, cut and load."""
        sums: dict[tuple[TensorClass, int, Load], int] = defaultdict(int)
        for (draft, _), bank in self._banks.items():
            cls, load = (TensorClass.DRAFT, Load.DRAFT) if draft else (TensorClass.ROUTED, Load.ALWAYS)
            for rows in bank.values():
                sums[cls, rows.units, load] += rows.total_bytes
        return sums
