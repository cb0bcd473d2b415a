"""Bodies made to keep the loop busy: each is read, or refused, in a time that streams survive."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import pytest

from gateway.bodies import LINE_PER_SEAT
from gateway.dialects import Dialect, Prepared
from gateway.dialects.messages import MESSAGES
from gateway.dialects.openai import CHAT, COMPLETIONS
from gateway.dialects.responses import RESPONSES
from gateway.dialects.rewrite import BILLING, ENGINE_CONTROL
from gateway.intake import checked
from gateway.parsing import takes_long
from gateway.problem import Problem
from tests.gateway import forms
from tests.gateway.checks import refused
from tests.gateway.forms import STREAM_OR_NOT, together
from tests.gateway.running import Running, running
from tests.gateway.wire import Answer, ask, exchange, post

MIB = 1024 * 1024
CPU_S = 3.0
"""Twice what the rule says (1.5 s): this box may be slow, an attack on it takes eight and more."""
PROMPT = b'"messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x"'
CONTROL = ",".join(f'"{field}":1' for field in ENGINE_CONTROL).encode()
BILLED = json.dumps({"type": "text", "text": BILLING + " a"}).encode()


def many(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


def around(*members: bytes) -> bytes:
    return b"{" + b",".join((PROMPT, *members)) + b"}"


BODIES: dict[str, Callable[[], bytes]] = {
    "escaped quotes, then control": lambda: around(b'"a":"' + b'\\"' * (51 * MIB // 2) + b'"', CONTROL),
    "escaped quotes that ask for usage": lambda: around(
        b'"a":"' + b'\\"' * (51 * MIB // 2) + b'"', CONTROL, b'"stream":true,"stream_options":{}'
    ),
    "escaped quotes and half a character": lambda: around(
        b'"s":"\\ud83d","a":"' + b'\\"' * (51 * MIB // 2) + b'"', CONTROL
    ),
    "backslashes": lambda: around(b'"a":"' + b"\\\\" * (25 * MIB) + b'"', CONTROL),
    "colons in a string": lambda: around(b'"a":"' + b'\\" :' * (15 * MIB) + b'"', CONTROL),
    "blanks": lambda: around(b" " * (60 * MIB) + CONTROL),
    "control, again and again": lambda: around(*[b'"priority":1'] * 290_000),
    "a billing block, then numbers": lambda: around(b'"system":[' + BILLED + b"," + many(b"1", 3_900_000)[1:]),
    "numbers": lambda: around(b'"metadata":' + many(b"1", 3_900_000)),
    "a billing block, then fewer numbers": lambda: around(b'"system":[' + BILLED + b"," + many(b"1", 990_000)[1:]),
    "a hosted tool, then numbers": lambda: around(b'"tools":[{"type":"web_search_2"},' + many(b"1", 990_000)[1:]),
    "billing blocks": lambda: around(b'"system":' + many(BILLED, 290_000)),
    "billing blocks that pass": lambda: around(b'"system":' + many(BILLED, 9_999)),
    "empty messages": lambda: around(b'"messages":' + many(b"{}", 345_000)),
    "empty messages that pass": lambda: around(b'"messages":' + many(b"{}", 199_000)),
    "empty items that pass": lambda: around(b'"input":' + many(b"{}", 199_000)),
    "a deep background": lambda: around(b'"background":' + b"[" * 1000 + b"]" * 1000),
    "a deeper background": lambda: around(b'"background":' + b"[" * 99_000 + b"]" * 99_000),
    "a deep field of control": lambda: around(b'"priority":' + b"[" * 1000 + b"]" * 1000),
    "deep, with half a character": lambda: around(
        b'"s":"\\ud83d \\ude00","background":' + b"[" * 99_000 + b"]" * 99_000
    ),
}


REFUSED = {
    "numbers": "many values",
    "a billing block, then numbers": "many values",
    "a billing block, then fewer numbers": "'system' has more than",
    "a hosted tool, then numbers": "'tools' has more than",
    "billing blocks": "many values",
    "empty messages": "many values",
    "a deep background": "background",
    "a deeper background": "not JSON",
    "deep, with half a character": "not JSON",
}
"""What is said of those that are not read, on /v1/messages."""


@pytest.mark.parametrize("name", BODIES)
def test_a_body_made_to_take_long_does_not(name: str) -> None:
    raw = BODIES[name]()
    for dialect in (CHAT, MESSAGES) if len(raw) > 8 * MIB else (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        began_s = time.process_time()
        said = checked(raw, dialect)
        took_s = time.process_time() - began_s
        assert took_s < CPU_S, f"{took_s:.2f} s for {len(raw) / MIB:.0f} MiB on {dialect.path}"
        check_said(said, dialect)
    assert isinstance(said, Problem) == (name in REFUSED)
    assert not isinstance(said, Problem) or REFUSED[name] in said.message


def check_said(said: Prepared | Problem, dialect: Dialect) -> None:
    """Either fine and free of control, or a 400 that is short and not to be tried again."""
    if isinstance(said, Problem):
        assert (said.status, said.heals) == (400, False)
        assert len(said.message) < 400
    else:
        assert not any(b'"%s":' % field.encode() in said.body for field in ENGINE_CONTROL), dialect.path


# The line of those that take long


def long_body(path: str, stream: bool) -> bytes:
    """A body that waits for its turn, and is small."""
    body = json.dumps(ask(path, stream=stream, metadata={"a": [0] * 20_001})).encode()
    assert takes_long(body)
    return body


@pytest.mark.anyio
@together
@STREAM_OR_NOT
async def test_a_seat_with_a_full_line_is_told_to_come_back_and_others_are_not(path: str, stream: bool) -> None:
    async with running() as gateway, asyncio.TaskGroup() as group:

        async def send(seat: str) -> Answer:
            return await exchange(gateway, post(long_body(path, stream), path=path, seat=seat))

        async with gateway.core.large_bodies.turn("e"):
            of_one = [group.create_task(send("a")) for _ in range(LINE_PER_SEAT)]
            await in_line(gateway, "a", LINE_PER_SEAT)
            answer = await send("a")
            await refused(path, answer, gateway, 503, "bodies_full")
            assert "x-should-retry" not in answer.headers
            of_other = group.create_task(send("b"))
            await in_line(gateway, "b", 1)
            assert not any(task.done() for task in (*of_one, of_other))
        for task in (*of_one, of_other):
            assert forms.whole(path, await task)
        assert forms.whole(path, await send("a"))


async def in_line(gateway: Running, seat: str, count: int) -> None:
    await gateway.until(lambda: len(gateway.core.large_bodies._lines.get(seat, ())) == count)
