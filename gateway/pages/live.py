"""The live part of the operator's page, drawn once for each view and given to every session with its own form values.

Touches the system's random numbers, once. Sessions see the same but for the value of each form. The drawing has a mark
in its place: a random word of this process, so that no name, log line or finding can hold one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from jinja2 import Environment
from markupsafe import Markup

from gateway.status.views import StatusView

FormValue = Callable[[str, str], str]
"""(action, target) -> the value of that form in one session."""


class LivePart:
    """One per gateway."""

    def __init__(self, templates: Environment) -> None:
        self._template = templates.get_template("fragment.html")
        self._mark = secrets.token_hex(16)
        self._drawn_of: StatusView | None = None
        self._pieces: list[str] = []
        self._forms: list[tuple[str, str]] = []

    def html(self, view: StatusView, value: FormValue) -> Markup:
        """The live part at `view`, with the form values of one session."""
        if view is not self._drawn_of:
            self._draw(view)
        text = [self._pieces[0]]
        for form, piece in zip(self._forms, self._pieces[1:], strict=True):
            text += (value(*form), piece)
        return Markup("".join(text))  # noqa: S704 - the template has escaped all of it, and values are base64url

    def _draw(self, view: StatusView) -> None:
        forms: list[tuple[str, str]] = []

        def mark(action: str, target: str = "") -> str:
            forms.append((action, target))
            return self._mark

        self._pieces = self._template.render(view=view, csrf=mark).split(self._mark)
        self._drawn_of, self._forms = view, forms
