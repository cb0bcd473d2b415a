"""What one reply says and how long it is: generated words, a fixed text, or a tool call. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.fake_engine.asks import Ask
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.render import call_text
from tests.fake_engine.tools import ToolCall
from tests.fake_engine.wire import words

_ARGUMENT_PIECE = 12


@dataclass(frozen=True, slots=True)
class Script:
    """The tokens of each sequence. `reason` is the chat form's finish_reason: stop, length or tool_calls.

    `fixed` holds one string per token, for a call the pieces of its arguments; None = generated words.
    """

    tokens: int
    reason: str
    call: ToolCall | None = None
    fixed: tuple[str, ...] | None = None

    def piece(self, prompt: bytes, sequence: int, start: int, count: int) -> str:
        """Tokens `start` ... `start + count - 1`."""
        if self.fixed is None:
            return words(prompt, sequence, start, count)
        return "".join(self.fixed[start : start + count])

    def as_prompt(self, text: str) -> str:
        """`text`, the whole reply, as it will stand in the next prompt."""
        return text if self.call is None else call_text(self.call.name, text)


def write(ask: Ask, knobs: Knobs) -> Script:
    """The script of a reply. Generated words fill an asked-for limit and then end in "length"."""
    room = knobs.context_tokens - ask.prompt_tokens
    limit = room if ask.max_tokens is None else min(ask.max_tokens, room)
    if ask.call is not None:
        text = ask.call.arguments
        pieces = tuple(text[i : i + _ARGUMENT_PIECE] for i in range(0, len(text), _ARGUMENT_PIECE))
        return Script(min(len(pieces), limit), "tool_calls" if len(pieces) <= limit else "length", ask.call, pieces)
    text = ask.text or knobs.reply_text
    if text:
        pieces = tuple(re.findall(r"\s*\S+\s*\Z|\s*\S+", text)) or (text,)
        return Script(min(len(pieces), limit), "stop" if len(pieces) <= limit else "length", None, pieces)
    if ask.max_tokens is not None:
        return Script(limit, "length")
    return Script(knobs.reply_tokens, "stop") if knobs.reply_tokens <= room else Script(room, "length")
