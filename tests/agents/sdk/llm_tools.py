"""The tool that `llm --functions` is given. It runs inside llm."""

import subprocess


def shell(command: str) -> str:
    """Run a command."""
    return subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True).stdout
