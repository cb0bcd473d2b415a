"""How a value that was in a settings file is shown: without secrets, and harmless to a terminal. Pure.

Rules:
- Rather too little is shown than a part of a password: a URL that can be read in two ways ends where they part.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SECRET = re.compile(
    r"((key|secret|password|passwd|passphrase|credential)s?|token|auth|authorization|bearer|cookie)$", re.IGNORECASE
)
_URL = re.compile(r"(?P<scheme>\s*(?:[\w+.-]+:)?//)?(?P<rest>.*)", re.DOTALL)


def old_value(name: str | int, value: Any) -> str:
    """What to say of the value that the setting `name` had."""
    if _SECRET.search(str(name)) and not isinstance(value, bool):
        return "another one"
    if isinstance(value, str):
        value = without_credentials(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isprintable() else json.dumps(value, default=str)


def without_credentials(url: str) -> str:
    """A URL without user, password, query and fragment, each of which may hold a key; any other text as it is."""
    found = _URL.fullmatch(url)
    if found is None:
        return url
    scheme = found["scheme"] or ""
    userinfo, at, place = found["rest"].rpartition("@")
    if not scheme and not (at and ":" in userinfo):
        return url
    if at and set(userinfo) & set("?#"):
        return f"{scheme}..."
    place = re.sub(r"([?#]).*", r"\1...", place, count=1, flags=re.DOTALL)
    return f"{scheme}...@{place}" if at else f"{scheme}{place}"
