"""What a log line may show of an exception."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import structlog

from gateway import logs


class _Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_traceback_shows_no_local_variables(terminal: bool) -> None:
    stream = _Stream(terminal)
    log = logs.configure("gateway", stream)
    secret = "moe-" + "x" * 43
    try:
        raise ValueError("broken")
    except ValueError as error:
        log.error("request.failed", request_id="r1", exc_info=error)
    assert "broken" in stream.getvalue()
    assert "request.failed" in stream.getvalue()
    assert secret not in stream.getvalue()
