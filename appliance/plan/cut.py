"""For how many cards a model's experts can be cut: each card gets an equal share of an expert's width. Pure."""

from __future__ import annotations

from appliance.checkpoint.catalogue import Geometry

TILE = 16
"""EXL3 stores tiles of 16 x 16, so a rank's share is whole tiles."""


def step(shape: Geometry, cards: int) -> int:
    """What the width of an expert must be a multiple of, to be cut for so many cards."""
    return cards * (TILE if shape.codebook is not None else shape.block)


def can_be_cut(shape: Geometry, cards: int) -> bool:
    """Whether the width comes out even."""
    return shape.moe_intermediate % step(shape, cards) == 0


def most_cards(shape: Geometry, limit: int) -> int | None:
    """The largest number of cards up to `limit` that experts can be cut for; None when there is none."""
    return next((cards for cards in range(limit, 0, -1) if can_be_cut(shape, cards)), None)
