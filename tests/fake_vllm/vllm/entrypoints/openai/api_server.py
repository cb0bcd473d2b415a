"""Run as a module, it is the fake server."""

from __future__ import annotations

from tests.fake_vllm.server import run

if __name__ == "__main__":
    run()
