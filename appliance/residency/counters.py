"""How often each expert was visited, counted on the card by vLLM's own router kernel. Touches torch.

Rules:
- The tensors keep their addresses: captured graphs hold them. They are filled and zeroed in place, on the stream of
  the model.
- The padding of a graph is not counted: each step says how many of its tokens are real. Of draft layers nobody says.
- A step may be left out of the count.
- Counts are read without waiting: they are copied behind the step, and looked at some steps later.
"""

from __future__ import annotations

import torch


class Reading:
    """Visits since the one before. `tokens`: that were counted."""

    def __init__(self, tokens: int, loads: torch.Tensor, copied: torch.cuda.Event | None) -> None:
        self.tokens, self._loads, self._copied = tokens, loads, copied

    def visits(self) -> list[list[int]]:
        """By layer and physical row. Waits for the copy, if it is not long there."""
        if self._copied is not None:
            with torch.cuda.device(self._copied.device):  # in a thread of its own: else it would claim the first card
                self._copied.synchronize()
        found: list[list[int]] = self._loads.tolist()
        return found


class Counters:
    """`loads`: int32 [layers, experts], visits of each physical row; `experts`: of the layer that has most. `unpadded`:
    what a layer's state is given of the step's tokens; `unknown`: of a layer of which nobody says. `is_on`: bool [],
    whether the router counts."""

    def __init__(self, layers: int, experts: int, device: torch.device) -> None:
        self.loads = torch.zeros((layers, experts), dtype=torch.int32, device=device)
        self.is_on = torch.ones((), dtype=torch.bool, device=device)
        self._read = torch.zeros((layers, experts), dtype=torch.int32, pin_memory=device.type == "cuda")
        self._tokens = torch.zeros((), dtype=torch.int32, device=device)
        self._counted, self._counts = 0, True
        self.unpadded: list[torch.Tensor | None] = [self._tokens]
        self.unknown: list[torch.Tensor | None] = [None]

    def begin(self) -> None:
        """Forget what was counted while the engine warmed up."""
        self.loads.zero_()
        self._counted = 0

    def step(self, tokens: int, counts: bool = True) -> None:
        """A step of so many tokens comes, and whether it counts."""
        self._tokens.fill_(tokens)
        if counts != self._counts:
            self.is_on.fill_(counts)
            self._counts = counts
        self._counted += tokens * counts

    def read(self) -> Reading:
        """What was counted since the last call. The reading before this one is overwritten."""
        self._read.copy_(self.loads, non_blocking=True)
        self.loads.zero_()
        copied = torch.cuda.current_stream().record_event() if self.loads.is_cuda else None
        tokens, self._counted = self._counted, 0
        return Reading(tokens, self._read, copied)
