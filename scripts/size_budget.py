"""Fails when a module or a function outgrows CONTRIBUTING.md: 400 lines a module, 60 a function."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

MODULE_MAX = 400
FUNCTION_MAX = 60


def main() -> int:
    """Print what is too long; the exit code is 1 when anything is."""
    listed = subprocess.run(["git", "ls-files", "*.py"], check=True, capture_output=True, text=True).stdout
    too_long = []
    for path in map(Path, listed.split()):
        text = path.read_text()
        lines = text.count("\n")
        if lines > MODULE_MAX:
            too_long.append(f"{path}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > FUNCTION_MAX:
                    too_long.append(f"{path}:{node.lineno} {node.name}: {size} lines")
    print("\n".join(too_long) or "size budget: kept")
    return bool(too_long)


if __name__ == "__main__":
    sys.exit(main())
