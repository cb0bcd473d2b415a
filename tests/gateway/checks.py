"""For tests: a box that is full, and what is checked of every answer that says no. Touches a running gateway."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.gateway import forms
from tests.gateway.forms import CHAT, COMPLETIONS
from tests.gateway.running import Running
from tests.gateway.wire import Answer, call

EARLY = {"early_response_s": 0.03, "heartbeat_s": 0.05}
"""Limits with which a stream that waits hears of it soon."""


async def busy(gateway: Running, group: asyncio.TaskGroup, streams: int = 1) -> None:
    """Occupy every ticket."""
    for _ in range(streams):
        group.create_task(call(gateway, CHAT, "busy", seat="e", stream=True))
    await gateway.until(lambda: gateway.engine.stats.running == streams)


async def line_of(gateway: Running, answer: Answer) -> dict[str, Any]:
    """The log line of the request that got `answer`; it comes right behind the answer's last byte."""
    id = answer.headers["x-request-id"]
    await gateway.until(lambda: any(line["request_id"] == id for line in gateway.done()))
    return next(line for line in gateway.done() if line["request_id"] == id)


async def refused(path: str, answer: Answer, gateway: Running, status: int, code: str) -> forms.Said:
    """Check a response that says no: its shape, its status and code, and that the log has them."""
    said = forms.error(path, answer)
    line = await line_of(gateway, answer)
    assert (answer.status, line["status"], line["code"]) == (status, status, code)
    assert said.code in (code, None)
    if status in (429, 503):
        assert 10 <= int(answer.headers["retry-after"]) <= 59
    return said


async def ended(path: str, answer: Answer, gateway: Running, code: str, *, heals: bool = True) -> forms.Said:
    """Check a stream that ends with an error: its shape, whether agents try again, and that the log has it."""
    said = forms.stream_error(path, answer)
    line = await line_of(gateway, answer)
    assert (line["status"], line["code"]) == (200, code)
    if path in (CHAT, COMPLETIONS):
        assert said.code == code
    else:
        assert said.heals is heals
    return said
