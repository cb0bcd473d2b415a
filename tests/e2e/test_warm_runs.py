"""What is warm stays known as warm when the gateway is killed: the next gateway finds it in the runtime folder.

What each prompt was taken for is in the log line of its request: `uncached_tokens`.
"""

from __future__ import annotations

import json
import stat
from datetime import datetime
from typing import Any

from tests.e2e.box import Box, kill9, until
from tests.e2e.client import Call, request_bytes
from tests.e2e.conftest import MakeBox

SEATS = ("a", "b", "c", "d")
COLD_TOKENS = 1500
"""Of this box's engine; a conversation here has three times as many."""
TALK_BYTES = 20_000
WARM_TOKENS = 100
LONG_TOKENS = 20_000
KEPT_S = 10.0
"""A snapshot is at most 5 s old."""


class Talk:
    """One seat's conversation, a session of its own."""

    def __init__(self, box: Box, seat: str) -> None:
        self.box, self.seat = box, seat
        self.messages = [{"role": "user", "content": f"{seat} says: ".ljust(TALK_BYTES, seat)}]

    def ask(self, max_tokens: int = 8) -> Call:
        """Its next turn, under way."""
        body = {"model": "fake-model", "stream": True, "max_tokens": max_tokens, "messages": self.messages}
        key = self.box.keys[self.seat]
        return self.box.call(request_bytes("POST", "/v1/chat/completions", key, json.dumps(body).encode()))

    def turn(self) -> None:
        """Its next turn, to its end."""
        answer = self.ask().wait()
        assert answer.done, answer.told()
        reply = {"role": "assistant", "content": answer.content}
        self.messages += [reply, {"role": "user", "content": "And then?"}]


def turns(box: Box, count: int) -> list[dict[str, Any]]:
    """The log lines of the last turns, once there are as many as `count`."""

    def found() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in box.log.splitlines() if '"request.done"' in line]
        return lines if len(lines) >= count else []

    return until(f"{count} turns are in the log", found, 5.0)


def test_a_killed_gateway_leaves_four_warm_runs_warm(make_box: MakeBox) -> None:
    box = make_box(knobs={"time_scale": 0.02}, tables={"engine": {"cold_tokens": COLD_TOKENS}}).start().wait_ready()
    talks = [Talk(box, seat) for seat in SEATS]
    for _ in range(2):
        for talk in talks:
            talk.turn()
    before = turns(box, 8)
    assert all(line["uncached_tokens"] > COLD_TOKENS for line in before[:4]), before
    assert all(line["uncached_tokens"] < WARM_TOKENS for line in before[4:]), before
    snapshot, ended_s = box.runtime / "prefixes.bin", datetime.fromisoformat(before[-1]["timestamp"]).timestamp()
    until("all is kept", lambda: snapshot.exists() and snapshot.stat().st_mtime >= ended_s, KEPT_S)
    assert stat.S_IMODE(snapshot.stat().st_mode) == 0o600
    assert b"says" not in snapshot.read_bytes()

    running = [talk.ask(LONG_TOKENS) for talk in talks]
    for call in running:
        call.wait_bytes(b'"content"')
    kill9(box.gateway_pid)
    assert all(call.wait(10).cut for call in running)
    box.wait_ready()
    for talk in talks:
        talk.turn()
    after = turns(box, 12)[8:]
    assert [line["seat"] for line in after] == list(SEATS)
    assert all(line["uncached_tokens"] < WARM_TOKENS for line in after), after
    assert all(line["prompt_tokens"] - line["cached_tokens"] < WARM_TOKENS for line in after), after
    assert [line["run"] for line in after] == [line["run"] for line in before[:4]]
    assert all(line["turn"] >= 3 for line in after), after
