"""The stream that copies cold rows into staging, beside the model's, and what is about to be visited. Touches torch and
the card."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from .driver import Driver
from .staging import TILE_TOKENS, Copy


def readings_of(visited: torch.Tensor, cold: range) -> torch.Tensor:
    """How often a kernel reads the row of an expert of `cold` in place, all together, float32 []: one reading for each
    tile of its tokens. `visited`: ids, [tokens, top-k]. Does not wait for the card."""
    visits = torch.histc(visited.float(), len(cold), cold.start - 0.5, cold.stop - 0.5)
    return torch.ceil(visits / TILE_TOKENS).sum()


class CudaLane:
    """A staging.Lane: the copy engine works on it while kernels run on the current stream, the model's."""

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self._driver = driver
        self._stream = torch.cuda.Stream(device)
        self._readings = torch.zeros((), dtype=torch.float32, pin_memory=True)
        self._looked = torch.cuda.Event()

    def copy_behind_model(self, copies: Sequence[Copy]) -> torch.cuda.Event:
        """Raises ResidencyError."""
        self._stream.wait_stream(torch.cuda.current_stream())
        for copy in copies:
            self._driver.copy(copy.target, copy.source, copy.size, self._stream.cuda_stream)
        return self._stream.record_event()

    def hold_model(self, copied: object) -> None:
        torch.cuda.current_stream().wait_event(copied)

    def look(self, visited: torch.Tensor, cold: range) -> None:
        self._readings.copy_(readings_of(visited, cold), non_blocking=True)
        self._looked.record()

    def seen(self) -> tuple[int, float]:
        self._looked.synchronize()
        return int(self._readings), time.perf_counter()

    def bytes_per_s(self, copies: Sequence[Copy]) -> float:
        """At which so many are copied. Waits for the card; raises ResidencyError."""
        took = []
        for _ in range(2):  # the first one finds the link asleep
            torch.cuda.synchronize()
            began = time.perf_counter()
            self.copy_behind_model(copies).synchronize()
            took.append(time.perf_counter() - began)
        return sum(copy.size for copy in copies) / min(took)
