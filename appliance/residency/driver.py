"""The calls of CUDA's virtual memory that a range needs, with errors in words.

Touches the CUDA driver through cuda-bindings, which torch itself requires. Needs a current context: after torch was
initialised on the device, in the thread that did it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .errors import ResidencyError

_MEANS = {
    "CUDA_ERROR_OUT_OF_MEMORY": "there is not enough free memory of that kind; put more experts on the other side",
    "CUDA_ERROR_NOT_PERMITTED": "the driver may not pin host memory here (container limits, lockdown); allow it",
    "CUDA_ERROR_NOT_SUPPORTED": "this card or driver has no virtual memory with host pages; run without a plan",
    "CUDA_ERROR_INVALID_DEVICE": "no such card or NUMA node; run without a plan",
}
_UNKNOWN = "the driver's own words: journalctl -k --grep NVRM; or run without a plan"


@dataclass(frozen=True, slots=True)
class Place:
    """A kind of memory: a card by its ordinal, or a NUMA node of the host."""

    host: bool
    number: int

    def __str__(self) -> str:
        return f"host memory of node {self.number}" if self.host else f"VRAM of card {self.number}"


class Driver(Protocol):
    """What a range asks of CUDA. Every call raises ResidencyError with the call, what it was for, and CUDA's word."""

    def reserve(self, size: int) -> int:
        """Address space of `size` bytes; its first address."""

    def free_address(self, address: int, size: int) -> None:
        """Give it back."""

    def create(self, size: int, place: Place) -> int:
        """Physical pages; their handle."""

    def release(self, handle: int) -> None:
        """Give them back once nothing maps them."""

    def map(self, address: int, size: int, handle: int) -> None:
        """Put pages at an address."""

    def unmap(self, address: int, size: int) -> None:
        """Take them away. Does not wait for kernels."""

    def allow(self, address: int, size: int, card: int) -> None:
        """Let a card read and write there."""

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Have the copy engine move bytes once what stands before it on a stream is done."""


class CudaDriver:
    """The real one."""

    def __init__(self) -> None:
        from cuda.bindings import driver as cuda

        self._cuda = cuda

    def node_of(self, card: int) -> int:
        """The NUMA node that a card hangs on; 0 when the driver does not say."""
        attribute = self._cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
        return max(0, int(self._call("cuDeviceGetAttribute", f"the node of card {card}", attribute, card)))

    def reserve(self, size: int) -> int:
        return int(self._call("cuMemAddressReserve", f"{size:,} bytes", size, 0, 0, 0))

    def free_address(self, address: int, size: int) -> None:
        self._call("cuMemAddressFree", f"{size:,} bytes", address, size)

    def create(self, size: int, place: Place) -> int:
        kinds, cuda = self._cuda.CUmemLocationType, self._cuda
        wanted = cuda.CUmemAllocationProp()
        wanted.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = kinds.CU_MEM_LOCATION_TYPE_HOST_NUMA if place.host else kinds.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = place.number
        return int(self._call("cuMemCreate", f"{size:,} bytes, {place}", size, wanted, 0))

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", "pages", handle)

    def map(self, address: int, size: int, handle: int) -> None:
        self._call("cuMemMap", f"{size:,} bytes", address, size, 0, handle, 0)

    def unmap(self, address: int, size: int) -> None:
        self._call("cuMemUnmap", f"{size:,} bytes", address, size)

    def allow(self, address: int, size: int, card: int) -> None:
        cuda = self._cuda
        access = cuda.CUmemAccessDesc()
        access.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = card
        access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._call("cuMemSetAccess", f"{size:,} bytes, card {card}", address, size, [access], 1)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        self._call("cuMemcpyAsync", f"{size:,} bytes", target, source, size, stream)

    def _call(self, name: str, what: str, *arguments: Any) -> Any:
        code, *found = getattr(self._cuda, name)(*arguments)
        if code != self._cuda.CUresult.CUDA_SUCCESS:
            raise ResidencyError(f"{name} ({what}): {code.name}: {_MEANS.get(code.name, _UNKNOWN)}")
        return found[0] if found else None
