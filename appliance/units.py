"""Numbers for people: bytes in GiB, things with their noun. Pure."""

from __future__ import annotations

GIB = 1 << 30


def gib(size_bytes: float) -> str:
    """`95.6 GiB`."""
    return f"{size_bytes / GIB:.1f} GiB"


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 expert`, `4,608 experts`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
