"""One range of addresses over two memories: pages in VRAM, behind them pages in host RAM.

Touches CUDA through the Driver that it is given. Rules:
- A range owns its address space and its pages until `free`; what it made before an error it gives back.
- `free` unmaps, and unmapping does not wait for kernels: the caller synchronises first, and never frees while serving.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from .driver import Driver, Place
from .layout import Pages


@dataclass(frozen=True, slots=True)
class MixedRange:
    """`address`: where it begins; `pages`: what is mapped from there on."""

    address: int
    pages: Pages
    _give_back: Callable[[], None]

    @property
    def size(self) -> int:
        """Bytes that may be read and written."""
        return self.pages.device_bytes + self.pages.host_bytes

    def free(self) -> None:
        """Give everything back. Raises ResidencyError; what could be given back then is."""
        self._give_back()


def mapped(driver: Driver, pages: Pages, card: int, node: int) -> MixedRange:
    """A new range for `card`, with host pages on NUMA node `node`. Raises ResidencyError."""
    size = pages.device_bytes + pages.host_bytes
    with ExitStack() as made:
        address = driver.reserve(size)
        made.callback(driver.free_address, address, size)
        at = address
        for count, place in ((pages.device_bytes, Place(False, card)), (pages.host_bytes, Place(True, node))):
            if count:
                handle = driver.create(count, place)
                made.callback(driver.release, handle)
                driver.map(at, count, handle)
                made.callback(driver.unmap, at, count)
                at += count
        driver.allow(address, size, card)
        return MixedRange(address, pages, made.pop_all().close)
