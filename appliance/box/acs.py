"""Reads which access controls of a PCI bridge are on, from its configuration space. Pure.

- Extended capabilities begin at 0x100; without root the kernel shows 64 bytes, and then nothing is known.
- A list that points at itself ends the walk.

Source: the layout of the PCI Express extended capability 0x000D (ACS): header, capability at +4, control at +6.
"""

from __future__ import annotations

_FIRST = 0x100
_ACS = 0x000D
_CONTROL = 6
_REDIRECTS = ((0, "SrcValid"), (2, "ReqRedir"), (3, "CmpltRedir"), (4, "UpstreamFwd"))
"""Bits of the control register that keep two cards from writing to each other directly, as lspci names them."""


def redirects(config: bytes) -> tuple[str, ...] | None:
    """The controls that are on, by lspci's names; () = none, or the bridge has no such capability; None = `config` ends
    before the extended capabilities."""
    if len(config) < _FIRST + 4:
        return None
    at, seen = _FIRST, set[int]()
    while at >= _FIRST and at + 4 <= len(config) and at not in seen:
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header in (0, 0xFFFF_FFFF):
            return ()
        if header & 0xFFFF == _ACS:
            control = config[at + _CONTROL : at + _CONTROL + 2]
            if len(control) < 2:
                return None
            bits = int.from_bytes(control, "little")
            return tuple(name for bit, name in _REDIRECTS if bits >> bit & 1)
        at = header >> 20 & 0xFFC
    return ()
