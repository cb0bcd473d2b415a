"""How a layer's experts are split between a card and its host: the arithmetic of pages and pinned blocks. Pure.

An engine keeps the rows of all experts of a layer in a few tensors, and its cold rows are contiguous (the rows are
permuted). So of each tensor and rank there is one cold slab.

Rules:
1. Of tensors that stock vLLM names, only weights have slabs, as the residency plugin has it (decided.py); where no
   tensor of a layer is one, as with EXL3 and GGUF, another engine reads them, and all may.
2. A slab is whole pages of host RAM, those without a hot byte; a tensor whose cold rows would not fill a page has none
   (layout.py). Cold rows in the page that the last hot row ends in are in VRAM, and counted besides all hot rows.
3. Long steps read cold rows from staging in VRAM: parts that layers take in turns, each as many chunks as the layer
   with most cold rows asks; and rows are exchanged through a scratch of the largest row. Another engine is taken to
   stage one layer.
4. Memory that is pinned in powers of two takes each slab rounded up to the next.
Source: the granularity of cuMemCreate is 2 MiB for device and host memory, measured on H200 with CUDA 13.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from appliance.checkpoint.catalogue import ExpertParameter
from appliance.residency.decided import is_weight
from appliance.residency.layout import CHUNK_BYTES, chunks_of, in_pages, pages_of
from appliance.residency.staging import PARTS


@dataclass(frozen=True, slots=True)
class Staging:
    """What is reserved in VRAM for cold rows that are read by long steps, and for one that is exchanged, bytes.  (3)"""

    parts_bytes: int = 0
    scratch_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.parts_bytes + self.scratch_bytes

    def shared_with(self, other: Staging) -> Staging:
        """What serves both."""
        return Staging(max(self.parts_bytes, other.parts_bytes), max(self.scratch_bytes, other.scratch_bytes))


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """One rank's share of a layer's experts. `card_bytes`: rows that are in VRAM because they are hot, or because
    their tensor has no slab; `cold_bytes`: all other rows; `boundary_bytes`: those of them that are in VRAM all the
    same, beside hot ones; `slabs`: host pages of each tensor that has some, bytes; `staging`: what the layer asks."""

    card_bytes: int
    cold_bytes: int
    boundary_bytes: int
    slabs: tuple[int, ...]
    staging: Staging

    @property
    def vram_bytes(self) -> int:
        """On the card, staging aside."""
        return self.card_bytes + self.boundary_bytes

    @property
    def host_bytes(self) -> int:
        """In host RAM: cold rows, and what is left of each tensor's last page."""
        return sum(self.slabs)


def split(parameters: Sequence[ExpertParameter], cold: int, tp: int) -> LayerSplit:
    """What one of `tp` ranks holds where when `cold` of a layer's experts are cold."""
    card, gone, boundary, largest = 0, 0, 0, 0
    slabs = []
    weights = {one.name for one in parameters if is_weight(one.name)}
    for parameter in parameters:
        row, going = parameter.rank_row_bytes(tp), min(cold, parameter.rows)
        hot = (parameter.rows - going) * row
        pages = pages_of(row, parameter.rows, going) if parameter.name in weights or not weights else None  # 1
        if pages is None:
            card += parameter.rows * row
            continue
        slabs.append(pages.host_bytes)
        card += hot
        gone += going * row
        boundary += pages.device_bytes - hot  # 2
        largest = max(largest, row)
    return LayerSplit(card, gone, boundary, tuple(slabs), _staging(slabs, largest) if weights else Staging(sum(slabs)))


def _staging(slabs: Sequence[int], row_bytes: int) -> Staging:  # 3
    return Staging(PARTS * sum(map(chunks_of, slabs)) * CHUNK_BYTES, in_pages(row_bytes))


def staging_of(splits: Iterable[LayerSplit]) -> Staging:
    """What all layers share.  (3)"""
    return reduce(Staging.shared_with, (part.staging for part in splits), Staging())


def rounded(count: int) -> int:
    """The next power of two, `count` itself when it is one; 0 for 0.  (4)"""
    return 1 << (count - 1).bit_length() if count > 0 else 0
