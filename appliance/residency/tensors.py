"""Torch tensors over mixed ranges, and moving what parameters hold. Touches torch and the card.

Rules:
- A tensor over a range owns nothing: the range is kept here, by its first address, until `free_all` or until what it
  held was moved elsewhere.
- Memory that torch has cached is invisible to cuMemCreate, so it is given back before pages are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

import torch

from .driver import Driver
from .errors import ResidencyError
from .layout import PAGE_BYTES, Pages
from .vmm import MixedRange, mapped


class Ranges:
    """All ranges of one rank on card `card`, with host pages on NUMA node `node`."""

    def __init__(self, driver: Driver, card: int, node: int) -> None:
        self._driver, self._card, self._node = driver, card, node
        self._owned: dict[int, MixedRange] = {}

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
        address = tensor.untyped_storage().data_ptr()
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
        after = _tensor_at(owned, before.shape, before.dtype, before.device)
        after.copy_(before)
        parameter.data = after

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


def whole(parameter: torch.Tensor) -> Pages:
    """All of it in host RAM."""
    return Pages(0, -(-parameter.nbytes // PAGE_BYTES))


def permute(parameter: torch.nn.Parameter, rows: Sequence[int]) -> None:
    """Put row `rows[i]` at i, in place. One tensor more in VRAM meanwhile."""
    order = torch.tensor(rows, device=parameter.device)
    parameter.data.copy_(parameter.data[order])


def _tensor_at(owned: MixedRange, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    count = math.prod(shape) * dtype.itemsize
    storage = torch._C._construct_storage_from_data_pointer(owned.address, device, count)
    tensor = torch.empty(0, dtype=dtype, device=device)
    return tensor.set_(storage, 0, tuple(shape), _strides(shape))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
