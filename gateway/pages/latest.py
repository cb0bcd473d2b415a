"""The status of the box, looked up once for all pages that ask in the same second. Pure: the clock is given.

Every open page asks once a second, and a look with its drawing takes the event loop some milliseconds in which no
stream moves: ten pages must cost what one does. What an action changed is seen at once: `look` after it.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.status.views import StatusView

KEPT_S = 1.0
"""How old a kept view may be: as long as a page waits between two questions."""


class Latest:
    """One per gateway. `make` looks; `monotonic` is the clock, seconds."""

    def __init__(self, make: Callable[[], StatusView], monotonic: Callable[[], float]) -> None:
        self._make = make
        self._monotonic = monotonic
        self._kept: tuple[float, StatusView] | None = None

    def look(self) -> StatusView:
        """How it is now; kept for those who come next."""
        view = self._make()
        self._kept = self._monotonic(), view
        return view

    def view(self) -> StatusView:
        """How it was KEPT_S ago at most: the same object for all who ask meanwhile."""
        if self._kept is not None and self._monotonic() - self._kept[0] < KEPT_S:
            return self._kept[1]
        return self.look()
