"""What stops an engine that cannot carry its plan out. Pure."""

from __future__ import annotations

SAYS = "moe-residency"
"""First word of every line that the supervisor looks for."""


REFUSED = f"{SAYS}: refused"


class ResidencyError(RuntimeError):
    """The plan cannot be carried out; `message` is one line for the operator, with the remedy at its end."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{REFUSED}: {message}")
