"""Request bodies that the prewarm tests read, and what the fake engine saw of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from gateway.prewarm.settings import PrefixSettings
from tests.fake_engine.server import FakeEngine

FAST = {"time_scale": 0.001, "echo_body": 50}


def body(text: str, **more: object) -> bytes:
    said = {"model": "m", "messages": [{"role": "system", "content": text}, {"role": "user", "content": "go"}]}
    return json.dumps(said | {"stream": True, "max_tokens": 900} | more).encode()


def prefix(tmp_path: Path, name: str, text: str = "") -> PrefixSettings:
    file = tmp_path / f"{name}.json"
    file.write_bytes(body(text or f"{name} " * 200))
    return PrefixSettings(name=name, file=file)


def seen(engine: FakeEngine) -> list[dict[str, Any]]:
    """The bodies of all requests, in order."""
    return [json.loads(base64.b64decode(echo["body_b64"])) for echo in engine.stats.echoes]


def systems(engine: FakeEngine) -> list[str]:
    """The first word of each system text."""
    return [request["messages"][0]["content"].split()[0] for request in seen(engine)]
