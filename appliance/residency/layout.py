"""Where each expert's row stands in a layer's tensors, and which pages are whose. Pure.

Rules:
1. Rows are permuted: hot experts first, cold ones behind them, each in ascending order. So the cold rows of a tensor
   are contiguous, and only one page is shared by hot and cold rows.
2. A page with a hot byte is in VRAM; all others are in host RAM.
3. A tensor whose cold rows would not fill a page stays in VRAM as it was.
A physical id is a row's number, a logical id what the router calls an expert.
Source: pages of both memories have 2 MiB, measured on H200 with CUDA 13.0 (docs/measurements.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

PAGE_BYTES = 2 << 20
CHUNK_BYTES = 8 * PAGE_BYTES
"""Of staging: an allocation that is mapped as a whole."""


@dataclass(frozen=True, slots=True)
class Pages:
    """How many pages of a tensor are in VRAM and, behind them, in host RAM."""

    device: int
    host: int

    @property
    def device_bytes(self) -> int:
        """In VRAM."""
        return self.device * PAGE_BYTES

    @property
    def host_bytes(self) -> int:
        """In host RAM."""
        return self.host * PAGE_BYTES


def rows_of(experts: int, cold: Collection[int]) -> tuple[int, ...]:
    """The logical id in each row.  (1)"""
    hot = (expert for expert in range(experts) if expert not in cold)
    return (*hot, *sorted(cold))


def places_of(rows: Sequence[int]) -> tuple[int, ...]:
    """The physical id of each logical one: `rows` the other way round."""
    places = [0] * len(rows)
    for place, expert in enumerate(rows):
        places[expert] = place
    return tuple(places)


def pages_of(row_bytes: int, rows: int, cold: int) -> Pages | None:
    """The pages of a tensor of `rows` rows, the last `cold` of which are cold; None = it stays as it is.  (2, 3)"""
    if cold * row_bytes < PAGE_BYTES:
        return None
    device = page_count((rows - cold) * row_bytes)
    return Pages(device, page_count(rows * row_bytes) - device)


def in_pages(count: int) -> int:
    """`count` bytes in whole pages, bytes."""
    return page_count(count) * PAGE_BYTES


def page_count(count: int) -> int:
    """Pages that `count` bytes take."""
    return -(-count // PAGE_BYTES)


def chunks_of(host_bytes: int) -> int:
    """Chunks of staging that hold a tensor's host pages."""
    return -(-host_bytes // CHUNK_BYTES)
