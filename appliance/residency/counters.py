"""How often each expert was visited, counted on the card by vLLM's own router kernel. Touches torch.

Rules:
- The tensors keep their addresses: captured graphs hold them. They are filled and zeroed in place, on the stream of
  the model.
- The padding of a graph is not counted: each step says how many of its tokens are real. Of draft layers nobody says.
"""

from __future__ import annotations

import torch


class Counters:
    """`loads`: int32 [layers, experts], visits of each physical row; `experts`: of the layer that has most. `unpadded`:
    what a layer's state is given of the step's tokens; `unknown`: of a layer of which nobody says."""

    def __init__(self, layers: int, experts: int, device: torch.device) -> None:
        self.loads = torch.zeros((layers, experts), dtype=torch.int32, device=device)
        self._tokens = torch.zeros((), dtype=torch.int32, device=device)
        self.unpadded: list[torch.Tensor | None] = [self._tokens]
        self.unknown: list[torch.Tensor | None] = [None]

    def begin(self) -> None:
        """Forget what was counted while the engine warmed up."""
        self.loads.zero_()

    def step(self, tokens: int) -> None:
        """A step of so many tokens comes."""
        self._tokens.fill_(tokens)
