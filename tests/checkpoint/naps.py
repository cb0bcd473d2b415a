"""Sleeping that takes no time, for tests of what is tried again. Pure."""

from __future__ import annotations


class Naps:
    """Stands for sleeping; says how long it would have been."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
