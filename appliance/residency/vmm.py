"""Ranges of addresses over two memories: pages in VRAM, behind them pages in host RAM, or in staging.

Touches CUDA through the Driver that it is given. Rules:
- A range owns its address space and the pages made for it until `free`; what it made before an error it gives back.
- An alias shows the VRAM of another range a second time, and behind it staging instead of the host: it owns only its
  addresses, and goes before both.
- Staging is made in chunks, each its own allocation, because only a whole allocation may be mapped. The end of an alias
  may lie behind the end of what it stands for.
- `free` unmaps, and unmapping does not wait for kernels: the caller synchronises first, and never frees while serving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from .driver import Driver, Place
from .layout import CHUNK_BYTES, Pages


@dataclass(frozen=True, slots=True)
class MixedRange:
    """`address`: where it begins; `pages`: what is mapped from there on; `vram`: the allocation of its first pages,
    none when all are the host's."""

    address: int
    pages: Pages
    vram: int | None
    _give_back: Callable[[], None]

    @property
    def host_address(self) -> int:
        """Where the host's pages begin."""
        return self.address + self.pages.device_bytes

    def free(self) -> None:
        """Give everything back. Raises ResidencyError; what could be given back then is."""
        self._give_back()


def mapped(driver: Driver, pages: Pages, card: int, node: int) -> MixedRange:
    """A new range for `card`, with host pages on NUMA node `node`. Raises ResidencyError."""
    with ExitStack() as made:
        parts = [
            (count, _created(driver, made, count, place))
            for count, place in ((pages.device_bytes, Place(False, card)), (pages.host_bytes, Place(True, node)))
            if count
        ]
        address = _joined(driver, made, card, parts)
        return MixedRange(address, pages, parts[0][1] if pages.device else None, made.pop_all().close)


def chunk(driver: Driver, card: int) -> tuple[int, Callable[[], None]]:
    """A piece of staging in VRAM, and how it is given back. Raises ResidencyError."""
    with ExitStack() as made:
        return _created(driver, made, CHUNK_BYTES, Place(False, card)), made.pop_all().close


def aliased(driver: Driver, of: MixedRange, chunks: Sequence[int], card: int) -> MixedRange:
    """A second range over `of`'s VRAM, then `chunks`, which hold at least its host pages. Raises ResidencyError."""
    with ExitStack() as made:
        parts = [] if of.vram is None else [(of.pages.device_bytes, of.vram)]
        address = _joined(driver, made, card, [*parts, *((CHUNK_BYTES, one) for one in chunks)])
        return MixedRange(address, of.pages, of.vram, made.pop_all().close)


def _created(driver: Driver, made: ExitStack, count: int, place: Place) -> int:
    handle = driver.create(count, place)
    made.callback(driver.release, handle)
    return handle


def _joined(driver: Driver, made: ExitStack, card: int, parts: Sequence[tuple[int, int]]) -> int:
    """Allocations one behind the other, as (bytes, handle)."""
    size = sum(count for count, _ in parts)
    address = driver.reserve(size)
    made.callback(driver.free_address, address, size)
    at = address
    for count, handle in parts:
        driver.map(at, count, handle)
        made.callback(driver.unmap, at, count)
        at += count
    driver.allow(address, size, card)
    return address
