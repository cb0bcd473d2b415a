"""A CUDA driver that keeps books instead of memory: what is reserved, made, mapped and allowed."""

from __future__ import annotations

from appliance.residency.driver import Place
from appliance.residency.errors import ResidencyError
from appliance.residency.layout import PAGE_BYTES


class BookDriver:
    """`fails`: the name of the call that says no, and at which of its calls, counted from 1."""

    def __init__(self, fails: tuple[str, int] | None = None) -> None:
        self._fails = fails
        self._calls: dict[str, int] = {}
        self._next = PAGE_BYTES
        self.spaces: dict[int, int] = {}
        self.made: dict[int, tuple[int, Place]] = {}
        self.mapped: dict[int, tuple[int, int]] = {}
        self.allowed: list[tuple[int, int, int]] = []

    @property
    def is_empty(self) -> bool:
        """Whether everything was given back."""
        return not (self.spaces or self.made or self.mapped)

    def _call(self, name: str) -> None:
        self._calls[name] = self._calls.get(name, 0) + 1
        if self._fails == (name, self._calls[name]):
            raise ResidencyError(f"{name}: no")

    def reserve(self, size: int) -> int:
        self._call("reserve")
        assert size % PAGE_BYTES == 0
        address, self._next = self._next, self._next + size + PAGE_BYTES
        self.spaces[address] = size
        return address

    def free_address(self, address: int, size: int) -> None:
        assert not any(address <= at < address + size for at in self.mapped), "still mapped"
        assert self.spaces.pop(address) == size

    def create(self, size: int, place: Place) -> int:
        self._call("create")
        handle = 1 + len(self.made) + self._calls["create"] * 100
        self.made[handle] = (size, place)
        return handle

    def release(self, handle: int) -> None:
        assert not any(handle == held for _, held in self.mapped.values()), "still mapped"
        del self.made[handle]

    def map(self, address: int, size: int, handle: int) -> None:
        self._call("map")
        assert self.made[handle][0] == size
        assert any(start <= address and address + size <= start + count for start, count in self.spaces.items())
        assert not any(at < address + size and address < at + held for at, (held, _) in self.mapped.items())
        self.mapped[address] = (size, handle)

    def unmap(self, address: int, size: int) -> None:
        assert self.mapped.pop(address)[0] == size

    def allow(self, address: int, size: int, card: int) -> None:
        self._call("allow")
        assert sum(held for at, (held, _) in self.mapped.items() if address <= at < address + size) == size
        self.allowed.append((address, size, card))
