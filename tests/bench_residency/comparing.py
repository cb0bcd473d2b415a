"""Whether two engines said the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def agreement(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How many tokens of both answers are equal at the same place, short and long prompts apart."""
    said = []
    for key in ("tokens", "long_tokens"):
        if key not in one or key not in other:
            return "not compared: one of them has no tokens"
        pairs = [
            (left, right)
            for answer, same in zip(one[key], other[key], strict=True)
            for left, right in zip(answer, same, strict=True)
        ]
        said.append(f"{sum(left == right for left, right in pairs)} of {len(pairs)}")
    return ", long prompts ".join(said)
