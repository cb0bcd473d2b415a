"""How many tokens a byte of a prompt is, seat by seat, learned from what engines counted. Pure.

Rules: a long prompt teaches more than a short one, a late one more than an early one. A seat that never sent anything
is taken for the average one.
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST_TOK_PER_BYTE = 1 / 4
"""Source: facts/admission-and-bench.md section 4."""
FIRST_WEIGHT_BYTES = 4096.0
"""What the first guess weighs: a prompt of 40 KB leaves a tenth of it."""
KEEP = 0.9
"""Of the weight of what was before, with each prompt."""
DENSEST_TOK_PER_BYTE = 1.0
THINNEST_TOK_PER_BYTE = 1 / 16
SEATS_MAX = 10_000


class Ratios:
    """Tokens per canonical byte."""

    def __init__(self) -> None:
        self._all = (FIRST_WEIGHT_BYTES * FIRST_TOK_PER_BYTE, FIRST_WEIGHT_BYTES)
        self._seats: dict[str, tuple[float, float]] = {}

    def tok_per_byte(self, seat: str) -> float:
        """Of what a seat sends."""
        tokens, size = self._seats.get(seat, self._all)
        return tokens / size

    def learn(self, seat: str, tokens: int, size: int) -> None:
        """A part of a prompt of `size` bytes, not read before, had `tokens`."""
        if size <= 0:
            return
        tokens_within = min(max(tokens, size * THINNEST_TOK_PER_BYTE), size * DENSEST_TOK_PER_BYTE)
        for_seat = self._seats.get(seat)
        if for_seat is None:
            share = FIRST_WEIGHT_BYTES / self._all[1]
            for_seat = (self._all[0] * share, FIRST_WEIGHT_BYTES)
            while len(self._seats) >= SEATS_MAX:
                del self._seats[next(iter(self._seats))]
        self._seats[seat] = _added(for_seat, tokens_within, size)
        self._all = _added(self._all, tokens_within, size)

    def as_dict(self) -> dict[str, list[float]]:
        """Plain values; "" is the average."""
        return {"": list(self._all), **{seat: list(sums) for seat, sums in self._seats.items()}}

    @classmethod
    def from_dict(cls, values: object) -> Ratios:
        """Of what `as_dict` gave. Raises ValueError for anything else."""
        ratios = cls()
        if not isinstance(values, Mapping) or len(values) > SEATS_MAX + 1:
            raise ValueError("no ratios")
        for seat, sums in values.items():
            pair = _pair(sums)
            if seat == "":
                ratios._all = pair
            else:
                ratios._seats[str(seat)] = pair
        return ratios


def _added(sums: tuple[float, float], tokens: float, size: float) -> tuple[float, float]:
    return sums[0] * KEEP + tokens, sums[1] * KEEP + size


def _pair(sums: object) -> tuple[float, float]:
    if not isinstance(sums, list) or len(sums) != 2 or not all(type(value) in (int, float) for value in sums):
        raise ValueError("no ratio")
    tokens, size = float(sums[0]), float(sums[1])
    if not (0 < size < 1e15 and THINNEST_TOK_PER_BYTE / 2 <= tokens / size <= DENSEST_TOK_PER_BYTE * 2):
        raise ValueError("a ratio out of range")
    return tokens, size
