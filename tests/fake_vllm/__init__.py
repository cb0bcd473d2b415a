"""A stand-in for vLLM 0.26.0's server: `-m vllm.entrypoints.openai.api_server` with tests/fake_vllm on PYTHONPATH.

It takes the flags of the real parser and no others, wants VLLM_API_KEY, logs what a real boot logged, has children with
the real names, listens on the socket of --uds, and then is the fake engine in vLLM's style. What it is told to do wrong
comes as JSON in FAKE_VLLM_KNOBS, or as @FILE (knobs.py).
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KNOBS = "FAKE_VLLM_KNOBS"


def install(folder: Path, version: str = "0.26.0") -> Path:
    """An environment in `folder` with the fake as its vLLM; its Python, for `[engine] python`."""
    (folder / f"lib/python3.11/site-packages/vllm-{version}.dist-info").mkdir(parents=True)
    python = folder / "bin/python"
    python.parent.mkdir()
    path = shlex.quote(f"{HERE}:{ROOT}")
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return python


def model_in(folder: Path) -> Path:
    """A folder that looks like a model's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"architectures": ["Qwen3MoeForCausalLM"]}\n')
    return folder
