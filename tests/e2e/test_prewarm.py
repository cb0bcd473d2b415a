"""Prefixes that stay warm, on the real embedded engine behind a whole box: read after the boot into all four sequences,
and the conversations of people again after the engine was killed.

What was cached is the engine's own word (`cached_tokens`). Times are printed, not asserted: they vary with the load.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.box import Box, kill9, until
from tests.e2e.conftest import MakeBox
from tests.model import demo_wheel

CHAT = "/v1/chat/completions"
SEATS = ("a", "b", "c", "d")
START_S = 120.0
READ_S = 180.0


@dataclass(frozen=True)
class Heard:
    """One streamed answer."""

    first_token_s: float
    prompt_tokens: int
    cached_tokens: int
    text: str

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def demo_box(make_box: MakeBox, *prefixes: tuple[str, Path]) -> Box:
    """A box with the demo model, and named prefixes; serves when this returns."""
    pytest.importorskip("xllamacpp")
    wheel = demo_wheel()
    box = make_box()
    lines = [f'listen = "127.0.0.1:{box.port}"', f'runtime_dir = "{box.runtime}"', "[engine]", 'kind = "embedded"']
    lines.append(f'model_file = "{wheel}"')
    for name, file in prefixes:
        lines += ["[[prefix]]", f'name = "{name}"', f'file = "{file}"']
    box.config.write_text("\n".join(lines) + "\n")
    return box.start().wait_ready(START_S)


def words(tag: str, count: int) -> str:
    return " ".join(f"{tag}{number}" for number in range(count))


def ask(box: Box, seat: str, messages: list[dict[str, str]], max_tokens: int = 8) -> Heard:
    """One streamed turn to its end."""
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": max_tokens}
    headers = {"authorization": f"Bearer {box.keys[seat]}"}
    began_s, first_s = time.monotonic(), None
    text = ""
    usage: dict[str, Any] = {}
    with httpx.stream("POST", box.url + CHAT, json=body, headers=headers, timeout=300, trust_env=False) as answer:
        assert answer.status_code == 200, answer.read()
        for event in events(answer):
            assert "error" not in event, event
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                if piece and first_s is None:
                    first_s = time.monotonic()
                text += piece
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Heard((first_s or time.monotonic()) - began_s, usage["prompt_tokens"], cached, text)


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def reads(box: Box) -> list[dict[str, Any]]:
    """The log lines of what was read into the engine, in order."""
    lines = [json.loads(line) for line in box.log.splitlines() if '"prewarm.read"' in line]
    return [line for line in lines if line["event"] == "prewarm.read"]


def test_four_streams_at_once_find_a_named_prefix(make_box: MakeBox, tmp_path: Path) -> None:
    rules = {"role": "system", "content": words("rule", 500)}
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"messages": [rules, {"role": "user", "content": "."}]}))
    box = demo_box(make_box, ("rules", file))
    (read,) = until("the prefix is read", lambda: reads(box), READ_S)
    assert read["tokens"] >= 1900, read
    assert read["copies"] == 3
    assert list((box.home / "state" / "slots").iterdir()) == []

    with ThreadPoolExecutor(len(SEATS)) as pool:
        questions = [[rules, {"role": "user", "content": f"What is rule {seat}?"}] for seat in SEATS]
        heard = list(pool.map(lambda seat, messages: ask(box, seat, messages), SEATS, questions))
    other = {"role": "system", "content": words("other", 500)}
    cold = ask(box, "e", [other, {"role": "user", "content": "What is rule e?"}])
    assert [one.cached_tokens >= read["tokens"] - 32 for one in heard] == [True] * 4, heard
    assert cold.cached_tokens < 100
    print(
        f"\nfirst token of four at once, {read['tokens']} tokens cached: "
        f"{', '.join(f'{one.first_token_s:.2f}' for one in heard)} s; of one alone, nothing cached: "
        f"{cold.first_token_s:.2f} s"
    )


def test_conversations_are_warm_again_after_the_engine_was_killed(make_box: MakeBox) -> None:
    box = demo_box(make_box)
    talks = {seat: [{"role": "user", "content": words(seat, 150)}] for seat in SEATS}

    def turns() -> dict[str, Heard]:
        """The next turn of each, one after the other."""
        heard = {}
        for seat, talk in talks.items():
            heard[seat] = ask(box, seat, talk)
            talk += [{"role": "assistant", "content": heard[seat].text}, {"role": "user", "content": "And then?"}]
        return heard

    turns()
    before = turns()
    assert all(one.cached_share >= 0.8 for one in before.values()), before
    pid = box.engine_pid
    killed_s = kill9(pid)
    box.wait_state(
        "another engine serves", lambda s: s["engine"]["phase"] == "ready" and s["engine"]["pid"] != pid, START_S
    )
    back_s = time.monotonic()
    until("all four are read again", lambda: len(reads(box)) == len(SEATS), READ_S)
    warm_s = time.monotonic()
    print(f"\nengine back after {back_s - killed_s:.1f} s, four conversations warm {warm_s - back_s:.1f} s later")
    assert {line["kind"] for line in reads(box)} == {"run"}
    assert [line["seat"] for line in reads(box)] == ["d", "c", "b", "a"]
    after = turns()
    assert all(one.cached_share >= 0.8 for one in after.values()), after
    assert not any(words(seat, 150) in box.log for seat in SEATS)
