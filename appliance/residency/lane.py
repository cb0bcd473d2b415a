"""The stream that copies cold rows into staging, beside the model's, and what is about to be visited. Touches torch and
the card."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from .driver import Driver
from .staging import Copy


def readings_of(visited: torch.Tensor, cold: range, tile: int) -> torch.Tensor:
    """How often a kernel reads the row of an expert of `cold` in place, all together, float32 []: one reading for each
    `tile` of its tokens. `visited`: ids, [tokens, top-k]. Does not wait for the card."""
    visits = torch.histc(visited.float(), len(cold), cold.start - 0.5, cold.stop - 0.5)
    return torch.ceil(visits / tile).sum()


class _Look:
    """Of one layer: the count, and when it was there and the kernel could begin."""

    def __init__(self) -> None:
        self.readings = torch.zeros((), dtype=torch.float32, pin_memory=True)
        self.counted = torch.cuda.Event(enable_timing=True, blocking=True)  # who waits for it does not spin
        self.begun = torch.cuda.Event(enable_timing=True)


class CudaLane:
    """A staging.Lane: the copy engine works on it while kernels run on the current stream, the model's."""

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self._driver = driver
        self._stream = torch.cuda.Stream(device)
        self._unused: list[_Look] = []
        self._before: _Look | None = None

    def copy_behind_model(self, copies: Sequence[Copy]) -> torch.cuda.Event:
        """Raises ResidencyError."""
        self._stream.wait_stream(torch.cuda.current_stream())
        for copy in copies:
            self._driver.copy(copy.target, copy.source, copy.size, self._stream.cuda_stream)
        return self._stream.record_event()

    def hold_model(self, copied: object) -> None:
        torch.cuda.current_stream().wait_event(copied)

    def look(self, visited: torch.Tensor, cold: range, tile: int) -> _Look:
        look = self._unused.pop() if self._unused else _Look()
        look.readings.copy_(readings_of(visited, cold, tile), non_blocking=True)
        look.counted.record()
        return look

    def begin(self, look: Any) -> None:
        look.begun.record()

    def found(self, look: Any, *, is_awaited: bool) -> tuple[int, float] | None:
        if is_awaited:
            look.counted.synchronize()
        elif not look.counted.query():
            return None
        before, self._before = self._before, look
        if before is None:
            return int(look.readings), 0.0
        self._unused.append(before)
        return int(look.readings), before.begun.elapsed_time(look.counted) / 1e3

    def bytes_per_s(self, copies: Sequence[Copy]) -> float:
        """At which so many are copied. Waits for the card; raises ResidencyError."""
        took = []
        for _ in range(2):  # the first one finds the link asleep
            torch.cuda.synchronize()
            began = time.perf_counter()
            self.copy_behind_model(copies).synchronize()
            took.append(time.perf_counter() - began)
        return sum(copy.size for copy in copies) / min(took)
