"""Checks of body fields that all dialects share. Pure.

Rules:
- A ticket is one sequence: whatever would start more than one, or outlive the request, is refused by name.
- Only what the gateway itself reads is checked; the rest is the engine's to validate.
"""

from __future__ import annotations

from typing import Any

from gateway.problem import Problem, bad_request

_ONE_AT_MOST = ("n", "best_of", "n_cmpl")
_MUST_BE_OFF = ("use_beam_search", "background")
_COUNTS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


def check(body: dict[str, Any]) -> Problem | None:
    """What is wrong with the fields of any dialect; None = nothing."""
    for field in _ONE_AT_MOST:
        value = body.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            return bad_request(f"{field!r} must be a whole number.", field)
        if value != 1:
            return several(field, f"{field}={value}")
    for field in _MUST_BE_OFF:
        if body.get(field) not in (None, False):
            return several(field, field)
    return _wrong_type(body)


def check_list(body: dict[str, Any], field: str) -> Problem | None:
    """`field` must be a list of at least one item."""
    value = body.get(field)
    if value is None:
        return bad_request(f"{field!r} is missing.", field)
    if not isinstance(value, list) or not value:
        return bad_request(f"{field!r} must be a list with at least one item.", field)
    return None


def max_tokens(body: dict[str, Any]) -> tuple[str, int] | None:
    """The field that bounds the answer, and its value; None = there is none."""
    return next(((field, body[field]) for field in reversed(_COUNTS) if body.get(field)), None)


def several(field: str, what: str) -> Problem:
    """The refusal of more than one sequence."""
    message = f"{what} would run more than one sequence, or outlive the request; this box runs one per request. "
    return bad_request(message + f"Leave {field!r} out.", field, code="one_sequence_only")


def _wrong_type(body: dict[str, Any]) -> Problem | None:
    """The fields that the gateway itself reads must have the type that it reads."""
    if not isinstance(body.get("stream"), bool | None):
        return bad_request("'stream' must be true or false.", "stream")
    if not isinstance(body.get("model"), str | None):
        return bad_request("'model' must be a string.", "model")
    for field in _COUNTS:
        value = body.get(field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            return bad_request(f"{field!r} must be a whole number, 0 or more.", field)
    return None
