"""Agents' requests of four dialects, as a fair mix: seeded conversations that grow, branch and are cut. Pure.

Rules: what an agent sends back of a reply is the reply, except its thinking. Sizes, kinds and order are drawn; nothing
looks at what the index makes of it.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fake_engine.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES

PATHS = (CHAT, MESSAGES, RESPONSES, COMPLETIONS)
_TEXT = (
    "the of and return if else def self None value index = == ( ) { } [ ] : ; , . \n \n    \t error file path "
    "naïve größe 世界 … \"quoted\" 'single' \\n 0x1f 3.14159 https://127.0.0.1/a?b=c import class function const "
    "expected received assertion engine prefix cache tokens because therefore whatever together international"
)
_WORDS = _TEXT.split(" ")


def prose(draw: random.Random, size: int) -> str:
    """About `size` characters of something between code and prose."""
    words: list[str] = []
    while size > 0:
        word = draw.choice(_WORDS)
        words.append(word)
        size -= len(word) + 1
    return " ".join(words)


@dataclass(slots=True)
class Reply:
    """What a model said: thinking, text, and perhaps a call."""

    text: str
    thinking: str = ""
    call: tuple[str, dict[str, Any]] | None = None


@dataclass(slots=True)
class Conversation:
    """One agent's. `turns` are in the words of its dialect."""

    path: str
    seat: str
    tools: list[dict[str, Any]]
    system: str
    thinks: bool
    turns: list[dict[str, Any]] = field(default_factory=list)
    prompt: str = ""
    requests: int = 0
    called: str = ""
    busy: bool = False

    def say(self, text: str) -> None:
        """A person's turn, or a tool's result when a call waits for one."""
        if self.path == COMPLETIONS:
            self.prompt += text
        elif not self.called:
            self.turns.append({"role": "user", "content": text})
        elif self.path == CHAT:
            self.turns.append({"role": "tool", "tool_call_id": self.called, "content": text})
        elif self.path == MESSAGES:
            result = {"type": "tool_result", "tool_use_id": self.called, "content": text}
            self.turns.append({"role": "user", "content": [result]})
        else:
            self.turns.append({"type": "function_call_output", "call_id": self.called, "output": text})
        self.called = ""

    def answered(self, reply: Reply, number: int) -> None:
        """The reply comes back in the next request."""
        if self.path == COMPLETIONS:
            self.prompt += reply.text
            return
        self.called = f"call_{number}" if reply.call else ""
        name, arguments = reply.call or ("", {})
        if self.path == CHAT:
            function = {"name": name, "arguments": json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)}
            calls = [{"id": self.called, "type": "function", "function": function}]
            turn: dict[str, Any] = {"role": "assistant", "content": reply.text}
            self.turns.append(turn | ({"tool_calls": calls} if reply.call else {}))
        elif self.path == MESSAGES:
            blocks: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
            if reply.call:
                blocks.append({"type": "tool_use", "id": self.called, "name": name, "input": arguments})
            self.turns.append({"role": "assistant", "content": blocks})
        elif reply.call:
            call = {"type": "function_call", "call_id": self.called, "name": name, "arguments": json.dumps(arguments)}
            self.turns.append(call | {"id": f"fc_{number}", "status": "completed"})
        else:
            content = [{"type": "output_text", "text": reply.text, "annotations": []}]
            self.turns.append({"type": "message", "role": "assistant", "id": f"msg_{number}", "content": content})

    def body(self) -> dict[str, Any]:
        """The next request."""
        self.requests += 1
        turns = copy.deepcopy(self.turns)
        if self.path == COMPLETIONS:
            return {"model": "fake-model", "prompt": self.prompt}
        if self.path == MESSAGES:
            billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={self.requests:05x};"}
            system = [billing, {"type": "text", "text": self.system, "cache_control": {"type": "ephemeral"}}]
            if isinstance(turns[-1]["content"], list):
                turns[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
            tools = [{"name": t["name"], "description": t["text"], "input_schema": t["schema"]} for t in self.tools]
            return {"model": "fake-model", "max_tokens": 4096, "system": system, "tools": tools, "messages": turns}
        functions = [{"name": t["name"], "description": t["text"], "parameters": t["schema"]} for t in self.tools]
        if self.path == CHAT:
            head = [{"role": "system", "content": self.system}]
            tools = [{"type": "function", "function": function} for function in functions]
            return {"model": "fake-model", "messages": head + turns, "tools": tools}
        tools = [{"type": "function", **function} for function in functions]
        return {"model": "fake-model", "instructions": self.system, "input": turns, "tools": tools}


class Mix:
    """Draws what comes next. `next` gives a conversation whose `body()` is to be sent; it is busy until answered."""

    def __init__(self, seed: int, *, scale: float = 1.0, agents: int = 12, paths: tuple[str, ...] = PATHS) -> None:
        self._draw = random.Random(seed)
        self._scale = scale
        self._agents = agents
        self._paths = paths
        self._tools = [self._toolset(name) for name in "abc"]
        self._all: list[Conversation] = []
        self.number = 0

    def next(self) -> Conversation:
        """Somebody who is not busy, with something new to say."""
        ready = [one for one in self._all if not one.busy]
        kinds: list[Callable[[Conversation], Conversation]]
        kinds = [self._goes_on, self._branches, self._compacts, self._edits, self._asks_again]
        new = not ready or self._draw.random() < (0.5 if len(self._all) < self._agents else 0.08)
        if new:
            chosen = self._new()
        else:
            late = ready[-max(3, len(ready) // 2) :] if self._draw.random() < 0.7 else ready
            chosen = self._draw.choices(kinds, (75, 9, 4, 6, 6))[0](self._draw.choice(late))
        chosen.busy = True
        if chosen in self._all:
            self._all.remove(chosen)
        self._all.append(chosen)
        return chosen

    def reply(self, one: Conversation) -> Reply:
        """What the model says."""
        draw = self._draw
        self.number += 1
        thinking = prose(draw, self._size(200, 6000)) if one.thinks and draw.random() < 0.7 else ""
        if one.tools and draw.random() < 0.6:
            call = (one.tools[0]["name"], {"path": prose(draw, 20), "content": prose(draw, self._size(40, 3000))})
            said = prose(draw, 60) if one.path != RESPONSES and draw.random() < 0.5 else ""
            return Reply(said, thinking, call)
        return Reply(prose(draw, self._size(100, 4000)), thinking)

    def _new(self) -> Conversation:
        draw = self._draw
        path = draw.choice(self._paths)
        if path == COMPLETIONS or draw.random() < 0.3:  # a script, not an agent
            one = Conversation(path, f"seat-{path[-9:]}-x", [], prose(draw, self._size(50, 2000)), thinks=False)
            one.prompt = one.system
        else:
            seat = f"seat-{path[-9:]}-{draw.randrange(3)}"
            tools, system = draw.choice(self._tools)
            own = system + (f"\nWorking directory: /home/{draw.randrange(3)}" if draw.random() < 0.7 else "")
            one = Conversation(path, seat, tools, own, thinks=draw.random() < 0.2)
        one.say(prose(draw, self._size(100, 20_000)))
        return one

    def _goes_on(self, one: Conversation) -> Conversation:
        one.say(prose(self._draw, self._size(50, 16_000)))
        return one

    def _branches(self, one: Conversation) -> Conversation:
        """A subagent: the same head, a task of its own."""
        other = Conversation(one.path, one.seat, one.tools, one.system, one.thinks)
        other.prompt = one.system
        other.say(prose(self._draw, self._size(200, 4000)))
        return other

    def _compacts(self, one: Conversation) -> Conversation:
        one.turns, one.called, one.prompt = [], "", one.system
        one.say("This session continues from a summary: " + prose(self._draw, self._size(2000, 12_000)))
        return one

    def _edits(self, one: Conversation) -> Conversation:
        """A person goes back to where they last spoke."""
        at = max((i for i, turn in enumerate(one.turns) if turn.get("role") == "user"), default=0)
        del one.turns[at:]
        one.called = ""
        return self._goes_on(one)

    def _asks_again(self, one: Conversation) -> Conversation:
        """The same once more, without the answer: a client that gave up and tries again."""
        while one.turns and (one.turns[-1].get("role") == "assistant" or one.turns[-1].get("type") == "function_call"):
            one.turns.pop()
        one.called = ""
        return one if one.turns or one.path == COMPLETIONS else self._goes_on(one)

    def _toolset(self, name: str) -> tuple[list[dict[str, Any]], str]:
        draw = self._draw
        schema = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
        tools = [
            {"name": f"{name}{i}", "text": prose(draw, self._size(100, 2500)), "schema": schema}
            for i in range(draw.randrange(3, 20))
        ]
        return tools, prose(draw, self._size(4000, 16_000))

    def _size(self, low: int, high: int) -> int:
        """Many are small, few are large."""
        return max(1, int(self._scale * low * (high / low) ** self._draw.random()))
