"""The stream that copies cold rows into staging, beside the model's. Touches torch and the card."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .driver import Driver
from .staging import Copy


class CudaLane:
    """A staging.Lane: the copy engine works on it while kernels run on the current stream, the model's."""

    def __init__(self, driver: Driver, device: torch.device) -> None:
        self._driver = driver
        self._stream = torch.cuda.Stream(device)

    def copy_behind_model(self, copies: Sequence[Copy]) -> torch.cuda.Event:
        """Raises ResidencyError."""
        self._stream.wait_stream(torch.cuda.current_stream())
        for copy in copies:
            self._driver.copy(copy.target, copy.source, copy.size, self._stream.cuda_stream)
        return self._stream.record_event()

    def hold_model(self, copied: object) -> None:
        torch.cuda.current_stream().wait_event(copied)
