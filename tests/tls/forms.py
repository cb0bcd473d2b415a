"""What differs between the routes that stream. Pure. A new route is one line in FORMS."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.routes import DIALECTS

TEXT = "tell me something long"


@dataclass(frozen=True, slots=True)
class Form:
    """`fields` ask for an answer; `limit` is the field that bounds it; `is_text` says whether an event's data
    carries text of it."""

    path: str
    fields: Mapping[str, object]
    limit: str
    is_text: Callable[[Any], bool]

    def body(self, tokens: int = 64, **more: object) -> dict[str, object]:
        """A request for a stream of so many tokens; `more` fields win."""
        return {"model": "fake-model", "stream": True, self.limit: tokens, **self.fields, **more}

    def texts(self, data: bytes) -> int:
        """How many whole events in `data` carry text of the answer."""
        return sum(self._has_text(event) for event in data.split(b"\n\n")[:-1])

    def _has_text(self, event: bytes) -> bool:
        lines = [line[5:] for line in event.split(b"\n") if line.startswith(b"data:")]
        try:
            return any(self.is_text(json.loads(line)) for line in lines)
        except ValueError:  # data: [DONE]
            return False


def without_chance(body: bytes) -> bytes:
    """A stream without the ids that engines make at random."""
    return re.sub(rb"\b(msg|fc|call|toolu|rs|resp)_[0-9a-f]{32}\b", rb"\1_", body)


def _choice(event: Any) -> Any:
    return (event.get("choices") or [{}])[0]


def _delta(event: Any) -> Any:
    return _choice(event).get("delta", {})


def _is(kind: str) -> Callable[[Any], bool]:
    return lambda event: event.get("type") == kind


_MESSAGES = [{"role": "user", "content": TEXT}]
FORMS = (
    Form("/v1/chat/completions", {"messages": _MESSAGES}, "max_tokens", lambda e: bool(_delta(e).get("content"))),
    Form("/v1/completions", {"prompt": TEXT}, "max_tokens", lambda e: bool(_choice(e).get("text"))),
    Form("/v1/messages", {"messages": _MESSAGES}, "max_tokens", _is("content_block_delta")),
    Form("/v1/responses", {"input": TEXT}, "max_output_tokens", _is("response.output_text.delta")),
)
SERVED = tuple(form for form in FORMS if form.path in DIALECTS)
EVERY_FORM = pytest.mark.parametrize("form", SERVED, ids=[form.path for form in SERVED])
"""For a test that must hold on all routes that this gateway has."""
