"""Torch tensors over mixed ranges, and moving what parameters hold. Touches torch and the card.

Rules:
- A tensor over a range owns nothing: the range is kept here, by its first address, until `free_all` or until what it
  held was moved elsewhere.
- Memory that torch has cached is invisible to cuMemCreate, so it is given back before pages are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice

import torch

from .driver import Driver
from .errors import ResidencyError
from .layout import CHUNK_BYTES, Pages, chunks_of, page_count
from .staging import PARTS, Copy
from .vmm import MixedRange, aliased, chunk, mapped


class Ranges:
    """All ranges of one rank on card `card`, with host pages on NUMA node `node`."""

    def __init__(self, driver: Driver, card: int, node: int) -> None:
        self._driver, self._card, self._node = driver, card, node
        self._owned: dict[int, MixedRange] = {}
        self._chunks: list[int] = []
        self._scratch_bytes = 0
        self._staging: list[Callable[[], None]] = []

    @property
    def staging_bytes(self) -> int:
        """In VRAM beside all else, for `staged` and `scratch`."""
        return len(self._chunks) * CHUNK_BYTES + self._scratch_bytes

    @property
    def device_bytes(self) -> int:
        """In VRAM, whole pages."""
        return sum(owned.pages.device_bytes for owned in self._owned.values())

    @property
    def host_bytes(self) -> int:
        """In host RAM, whole pages."""
        return sum(owned.pages.host_bytes for owned in self._owned.values())

    def address_of(self, tensor: torch.Tensor) -> int | None:
        """The range that holds its storage, by its first address; None = none of these."""
        address = _address(tensor)
        return address if address in self._owned else None

    def move(self, parameter: torch.nn.Parameter, pages: Pages) -> None:
        """Give `parameter` the same content over a new range of `pages`. Raises ResidencyError."""
        before = parameter.data
        if not before.is_contiguous():
            raise ResidencyError(
                f"a tensor of {tuple(before.shape)} with strides {before.stride()} would be laid out anew; "
                "take it out of the plan"
            )
        torch.cuda.empty_cache()
        owned = mapped(self._driver, pages, self._card, self._node)
        self._owned[owned.address] = owned
        after = tensor_at(owned.address, before.shape, before.dtype, before.device)
        after.copy_(before)
        parameter.data = after

    def staged(self, layers: Mapping[int, Sequence[torch.Tensor]]) -> dict[int, list[tuple[torch.Tensor, Copy]]]:
        """A second tensor for each of a layer's, with staging behind its VRAM, and what must be copied there before it
        is read. `layers`: tensors over ranges of ours, in the order in which the layers run; they take turns at
        `PARTS` parts, each as large as the largest layer asks. Raises ResidencyError."""
        torch.cuda.empty_cache()
        originals = {layer: [self._owned[_address(one)] for one in tensors] for layer, tensors in layers.items()}
        most = max((sum(_chunks(one) for one in owned) for owned in originals.values()), default=0)
        while len(self._chunks) < PARTS * most:
            handle, give_back = chunk(self._driver, self._card)
            self._chunks.append(handle)
            self._staging.append(give_back)
        found: dict[int, list[tuple[torch.Tensor, Copy]]] = {}
        for turn, (layer, tensors) in enumerate(layers.items()):
            part = iter(self._chunks[turn % PARTS * most :])
            found[layer] = [self._alias(*one, part) for one in zip(tensors, originals[layer], strict=True)]
        return found

    def scratch(self, count: int, device: torch.device) -> torch.Tensor:
        """`count` bytes of VRAM that the engine's own account sees: what torch allocates once the weights were measured
        stands in nobody's. Raises ResidencyError."""
        torch.cuda.empty_cache()
        pages = Pages(page_count(count), 0)
        made = mapped(self._driver, pages, self._card, self._node)
        self._staging.append(made.free)
        self._scratch_bytes += pages.device_bytes
        return tensor_at(made.address, (count,), torch.uint8, device)

    def _alias(self, tensor: torch.Tensor, owned: MixedRange, part: Iterator[int]) -> tuple[torch.Tensor, Copy]:
        alias = aliased(self._driver, owned, list(islice(part, _chunks(owned))), self._card)
        self._staging.append(alias.free)
        second = tensor_at(alias.address, tensor.shape, tensor.dtype, tensor.device)
        return second, Copy(alias.host_address, owned.host_address, owned.pages.host_bytes)

    def free(self, address: int) -> None:
        """Give a range back that no tensor uses any more."""
        torch.cuda.synchronize()
        self._owned.pop(address).free()

    def free_all(self) -> None:
        """Give everything back; nothing may use it any more. Raises ResidencyError; what could be given back is."""
        torch.cuda.synchronize()
        with ExitStack() as all_of_them:
            while self._owned:
                all_of_them.callback(self._owned.popitem()[1].free)
            for give_back in self._staging:
                all_of_them.callback(give_back)
            self._staging.clear()


def whole(parameter: torch.Tensor) -> Pages:
    """All of it in host RAM."""
    return Pages(0, page_count(parameter.nbytes))


def permute(parameter: torch.nn.Parameter, rows: Sequence[int]) -> None:
    """Put row `rows[i]` at i, in place. One tensor more in VRAM meanwhile."""
    order = torch.tensor(rows, device=parameter.device)
    parameter.data.copy_(parameter.data[order])


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _chunks(owned: MixedRange) -> int:
    return chunks_of(owned.pages.host_bytes)


def tensor_at(address: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor over what is mapped from `address` on; it owns nothing."""
    count = math.prod(shape) * dtype.itemsize
    storage = torch._C._construct_storage_from_data_pointer(address, device, count)
    tensor = torch.empty(0, dtype=dtype, device=device)
    return tensor.set_(storage, 0, tuple(shape), _strides(shape))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
