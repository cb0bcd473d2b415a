"""Which coding agent sent a request, by its user agent. Pure.

Only words of FAMILIES and OTHER ever come out: what a stranger writes into a header is shown to nobody.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

OTHER = "other"
FAMILIES = {
    "claude-cli": "claude-cli",
    "claude-code": "claude-cli",
    "codex": "codex",
    "opencode": "opencode",
    "aider": "aider",
    "litellm": "aider",
    "pi": "pi",
    "qwen": "qwen",
    "qwencode": "qwen",
    "cline": "cline",
    "continue": "continue",
}
"""How the first product of a user agent begins, and the family that it is of."""
_AGENT_BYTES = 64
"""No name of a product that we know is longer."""
_PRODUCT = re.compile(rb"[A-Za-z]+(?:-[a-z]+)?")


def client_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The family, from the headers of a request (names in lower case)."""
    agent = next((value for name, value in headers if name == b"user-agent"), b"")
    return _family(agent[:_AGENT_BYTES])


@functools.lru_cache(maxsize=256)
def _family(agent: bytes) -> str:
    match = _PRODUCT.match(agent)
    if match is None:
        return OTHER
    product = match.group().decode().lower()
    return FAMILIES.get(product) or FAMILIES.get(product.partition("-")[0], OTHER)
