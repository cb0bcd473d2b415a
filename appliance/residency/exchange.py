"""Exchanges the rows of two experts of one layer while the engine serves. Touches torch and the card.

Rules:
- Everything is enqueued on the model's stream, at the top of a step: behind all kernels that read the rows as they
  were, before all that read them as they will be. Nothing is mapped or unmapped.
- Every per-expert parameter moves, scales too; then the ids and the counts of the two. Whoever looks between two steps
  sees both or neither.
- The staging row is made once, before memory is profiled: torch is asked for nothing while the engine serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rows:
    """One layer: every per-expert parameter, each once, as bytes [experts, row]; vLLM's map of logical to physical ids
    (int64 [experts, 1]), its counts by physical id (int32 [experts])."""

    parameters: tuple[torch.Tensor, ...]
    places: torch.Tensor
    loads: torch.Tensor

    @property
    def row_bytes(self) -> int:
        """All rows of one expert."""
        return sum(parameter.shape[1] for parameter in self.parameters)

    @property
    def largest_row_bytes(self) -> int:
        """What `Exchange` must hold for this layer."""
        return max((parameter.shape[1] for parameter in self.parameters), default=0)


def as_rows(parameter: torch.Tensor) -> torch.Tensor:
    """A per-expert parameter as bytes [experts, row]. Raises RuntimeError for a strided one: a copy of it would be
    exchanged instead."""
    return parameter.view(len(parameter), -1).view(torch.uint8)


class Exchange:
    """`staging`: uint8, in VRAM, as large as the largest row of all layers, and never less than a count."""

    def __init__(self, staging: torch.Tensor) -> None:
        self._staging = staging

    def swap(self, rows: Rows, order: Sequence[int], here: int, there: int) -> tuple[int, ...]:
        """Exchange physical rows `here` and `there`; `order` is the logical id in each. Returns the order after."""
        for parameter in (*rows.parameters, rows.loads[:, None].view(torch.uint8)):
            kept = self._staging[: parameter.shape[1]]
            kept.copy_(parameter[here])
            parameter[here].copy_(parameter[there])
            parameter[there].copy_(kept)
        after = list(order)
        after[here], after[there] = order[there], order[here]
        rows.places[after[here]].fill_(here)
        rows.places[after[there]].fill_(there)
        return tuple(after)
