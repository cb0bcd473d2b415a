"""Asks NVIDIA's driver every PERIOD seconds what the cards do and prints a line of JSON; run by gauges.py.

`python -I -m appliance.box.gauges_child PERIOD_S` prints a list, one object a card with the fields of
gateway.state.GpuGauge, until its stdin closes. Touches the driver and its own pipes. Exit code NO_DRIVER: there is
none, or it is not loaded; 1: it takes no calls, or stopped answering.

Rules:
- The end of stdin ends it: it must not outlive a daemon that was killed.
- What one call does not give is None; a card that the driver has lost stays in the list, without figures.
- nvmlShutdown is never called; see nvml_child.py.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator, Sequence
from typing import Any

NO_DRIVER = 3
_TX, _RX, _CHIP = 0, 1, 0
"""NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES, NVML_TEMPERATURE_GPU. Source: pynvml's constants."""
_ABSENT = frozenset({9, 12})
"""NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND: a box without cards. Source: pynvml's constants."""
_KILOBYTE = 1000
_SLOWED = {
    4: "power cap",
    8: "hardware slowdown",
    32: "heat (software)",
    64: "heat (hardware)",
    128: "power brake",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that take speed away; idle and chosen clocks do not."""


class _Cards:
    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._memory = nvml.nvmlMemory_v2

    def look(self) -> Iterator[dict[str, Any]]:
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            except self._nvml.NVMLError:
                yield {"index": index, "name": ""}
            else:
                yield self._card(index, handle)

    def _card(self, index: int, handle: Any) -> dict[str, Any]:
        used = self._ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle, self._memory)
        memory = memory or self._ask("nvmlDeviceGetMemoryInfo", handle)
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle) or 0
        return {
            "index": index,
            "name": self._ask("nvmlDeviceGetName", handle) or "",
            "busy_share": None if used is None else used.gpu / 100,
            "memory_used_bytes": None if memory is None else memory.used,
            "memory_total_bytes": None if memory is None else memory.total,
            "temperature_c": self._ask("nvmlDeviceGetTemperature", handle, _CHIP),
            "power_w": _times(self._ask("nvmlDeviceGetPowerUsage", handle), 0.001),
            "power_limit_w": _times(self._ask("nvmlDeviceGetEnforcedPowerLimit", handle), 0.001),
            "pcie_rx_bytes_per_s": _times(self._ask("nvmlDeviceGetPcieThroughput", handle, _RX), _KILOBYTE),
            "pcie_tx_bytes_per_s": _times(self._ask("nvmlDeviceGetPcieThroughput", handle, _TX), _KILOBYTE),
            "link_gen": self._ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            "link_width": self._ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            "slowed_by": [name for bit, name in _SLOWED.items() if reasons & bit],
        }

    def _ask(self, call: str, *args: Any) -> Any:
        try:
            return getattr(self._nvml, call)(*args)
        except (self._nvml.NVMLError, self._nvml.NVMLLibraryMismatchError, UnicodeDecodeError):
            return None


def _times(value: int | None, factor: float) -> float | None:
    return None if value is None else value * factor


def main(argv: Sequence[str]) -> int:
    """`argv`: PERIOD_S. Returns the exit code."""
    period_s = float(argv[0])
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what the library itself prints is no part of the answer
        try:
            import pynvml

            pynvml.nvmlInit()
        except ImportError:
            return NO_DRIVER
        except pynvml.NVMLError as error:
            sys.stderr.write(f"{error}\n")
            return NO_DRIVER if error.value in _ABSENT else 1
        cards = _Cards(pynvml)
        while True:
            try:
                print(json.dumps(list(cards.look())), file=out, flush=True)
            except pynvml.NVMLError as error:
                sys.stderr.write(f"{error}\n")
                return 1
            except BrokenPipeError:
                return 0
            if select.select([0], [], [], period_s)[0]:
                return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # not sys.exit: a driver can also hang in its destructors
