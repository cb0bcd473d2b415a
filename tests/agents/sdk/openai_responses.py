"""A user's program with the openai SDK and the Responses form: a prompt, one tool, and the answer on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from openai import OpenAI

TOOL: Any = {
    "type": "function",
    "name": "shell",
    "description": "Run a command",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}


def main() -> None:
    """Ask, run what is called, ask again, print."""
    client = OpenAI()
    items: list[Any] = [{"role": "user", "content": sys.argv[1]}]
    while True:
        with client.responses.stream(model=os.environ["MODEL"], input=items, tools=[TOOL], store=False) as stream:
            for event in stream:
                if event.type in ("error", "response.failed"):
                    sys.exit(f"failed: {event.to_json(indent=None)}")
            response = stream.get_final_response()
        if response.status != "completed":
            sys.exit(f"not whole: {response.status}")
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            print(response.output_text)
            return
        for call in calls:
            command = json.loads(call.arguments)["command"]
            output = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True).stdout
            called = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            items.append({"type": "function_call", **called})
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})


main()
