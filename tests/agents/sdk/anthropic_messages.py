"""A user's program with the anthropic SDK: a prompt, one tool, and the answer on stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from anthropic import Anthropic

TOOL: Any = {
    "name": "shell",
    "description": "Run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


def main() -> None:
    """Ask, run what is called, ask again, print."""
    client = Anthropic()
    messages: list[Any] = [{"role": "user", "content": sys.argv[1]}]
    asked: dict[str, Any] = {"model": os.environ["MODEL"], "max_tokens": 4096, "tools": [TOOL]}
    while True:
        with client.messages.stream(messages=messages, **asked) as stream:
            message = stream.get_final_message()
        if message.stop_reason not in ("end_turn", "tool_use"):
            sys.exit(f"not whole: {message.stop_reason}")
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            print("".join(block.text for block in message.content if block.type == "text"))
            return
        messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
        results = []
        for call in calls:
            command = str(dict(call.input)["command"])
            output = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True).stdout
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": output})
        messages.append({"role": "user", "content": results})


main()
