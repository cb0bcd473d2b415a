"""How a layer's experts are split between a card and its host: the arithmetic of pages and pinned blocks. Pure.

An engine keeps the rows of all experts of a layer in a few tensors, and its cold rows are contiguous (the rows are
permuted). So of each tensor and rank there is one cold slab.

Rules:
1. A slab under one page stays on the card: there is no page that it fills.
2. A tensor that is partly cold has one page where the two meet; it is in VRAM and counted besides all hot rows.
3. A tensor that is wholly cold has none.
4. Memory that is pinned in powers of two takes each slab rounded up to the next.
Source: the granularity of cuMemCreate is 2 MiB for device and host memory, measured on H200 with CUDA 13.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.checkpoint.catalogue import ExpertParameter
from appliance.residency.layout import PAGE_BYTES


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """One rank's share of a layer's experts. `card_bytes`: rows in VRAM; `boundary_bytes`: of pages where hot and cold
    rows meet; `slabs`: the cold rows of each tensor that has some on the host, bytes."""

    card_bytes: int
    boundary_bytes: int
    slabs: tuple[int, ...]

    @property
    def host_bytes(self) -> int:
        """All cold rows on the host, as they are."""
        return sum(self.slabs)


def split(parameters: Sequence[ExpertParameter], cold: int, tp: int) -> LayerSplit:
    """What one of `tp` ranks holds where when `cold` of a layer's experts are cold."""
    card, boundary, slabs = 0, 0, []
    for parameter in parameters:
        row = parameter.rank_row_bytes(tp)
        slab = min(cold, parameter.rows) * row
        if slab < PAGE_BYTES:  # 1
            card += parameter.rows * row
            continue
        slabs.append(slab)
        card += parameter.rows * row - slab
        if cold < parameter.rows:  # 2, 3
            boundary += PAGE_BYTES
    return LayerSplit(card, boundary, tuple(slabs))


def rounded(count: int) -> int:
    """The next power of two, `count` itself when it is one; 0 for 0.  (4)"""
    return 1 << (count - 1).bit_length() if count > 0 else 0
