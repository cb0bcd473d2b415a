"""A user's program with the openai SDK and chat completions: a prompt, one tool, and the answer on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from openai import OpenAI

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}


def main() -> None:
    """Ask, run what is called, ask again, print."""
    client = OpenAI()
    messages: list[Any] = [{"role": "user", "content": sys.argv[1]}]
    while True:
        with client.chat.completions.stream(model=os.environ["MODEL"], messages=messages, tools=[TOOL]) as stream:
            choice = stream.get_final_completion().choices[0]
        if choice.finish_reason not in ("stop", "tool_calls"):
            sys.exit(f"not whole: {choice.finish_reason}")
        calls = choice.message.tool_calls or []
        if not calls:
            print(choice.message.content)
            return
        messages.append(choice.message.model_dump(include={"role", "content", "tool_calls"}))
        for call in calls:
            command = json.loads(call.function.arguments)["command"]
            output = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True).stdout
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


main()
