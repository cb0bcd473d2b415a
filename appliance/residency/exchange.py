"""Exchanges the rows of two experts of one layer while the engine serves. Touches torch and the card.

Rules:
- Everything is enqueued on the model's stream, at the top of a step: behind all kernels that read the rows as they
  were, before all that read them as they will be. Nothing is mapped or unmapped.
- Every per-expert parameter moves, scales too; then the ids and the counts of the two. Whoever looks between two steps
  sees both or neither.
- The staging row is made once, before memory is profiled. A row that it cannot hold is a mistake of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rows:
    """One layer: every per-expert parameter, each once; vLLM's map of logical to physical ids (int64 [experts, 1]), its
    counts by physical id (int32 [experts])."""

    parameters: tuple[torch.Tensor, ...]
    places: torch.Tensor
    loads: torch.Tensor

    @property
    def row_bytes(self) -> int:
        """All rows of one expert."""
        return sum(parameter[0].nbytes for parameter in self.parameters)


class Exchange:
    """The staging of one rank: as large as the largest row of `layers`."""

    def __init__(self, layers: Iterable[Rows], device: torch.device) -> None:
        largest = max((one[0].nbytes for rows in layers for one in rows.parameters), default=0)
        self._staging = torch.empty(largest, dtype=torch.uint8, device=device)

    def swap(self, rows: Rows, order: Sequence[int], here: int, there: int) -> tuple[int, ...]:
        """Exchange physical rows `here` and `there`; `order` is the logical id in each. Returns the order after."""
        for parameter in rows.parameters:
            one, other = _bytes(parameter[here]), _bytes(parameter[there])
            kept = self._staging[: one.numel()]
            kept.copy_(one)
            one.copy_(other)
            other.copy_(kept)
        count = rows.loads[here].clone()
        rows.loads[here].copy_(rows.loads[there])
        rows.loads[there].copy_(count)
        after = list(order)
        after[here], after[there] = order[there], order[here]
        rows.places[after[here]].fill_(here)
        rows.places[after[there]].fill_(there)
        return tuple(after)


def _bytes(row: torch.Tensor) -> torch.Tensor:
    """The row itself as bytes. Raises RuntimeError for a strided one: a copy of it would be exchanged instead."""
    return row.view(-1).view(torch.uint8)
