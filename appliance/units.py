"""Numbers for people: bytes in GiB, rates, things with their noun. Pure."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30
_LEAST_GIB = GIB // 20
"""Below it tenths of a GiB say nothing."""


def gib(size_bytes: float) -> str:
    """`95.6 GiB`."""
    return f"{size_bytes / GIB:.1f} GiB"


def size(size_bytes: int, *, exact: bool = True) -> str:
    """`95.6 GiB`; `12 MiB`, rounded up, for what would be `0.0 GiB`; `~` before what is not exact."""
    said = f"{-(-size_bytes // MIB)} MiB" if 0 < size_bytes < _LEAST_GIB else gib(size_bytes)
    return said if exact else f"~{said}"


def rate(per_s: float) -> str:
    """`39.6`, `254`, `2,574`: a rate in three digits or whole."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 expert`, `4,608 experts`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
