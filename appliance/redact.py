"""Takes secrets and people's names out of text and of JSON values that leave the box in a support bundle. Pure.

Rules:
- What looks like a secret is one, whoever made it: too much goes rather than too little.
- Secrets that the box knows are given as they are and go wherever they stand, in their usual spellings too.
- Names of seats, admins and whoever acted become seat-1, admin-1, person-1: by the field that holds them, and as whole
  words of free text from three letters on. The user's name goes from a home folder's path.
- What an engine said may be of a prompt: its log, lines of it, and what our sentences quote of it go unless they are
  asked for.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from appliance.printable import CLOSES, OPENS

MASK = "[removed]"
SECRET_MIN = 6
"""Shorter texts are no secrets, and would be found everywhere."""
_NAME_MIN = 3

_SECRET_KEY = re.compile(r"(?i)(^|_|-)(digest|key|token|secret|password|passwd|authorization|cookie|credential)s?$")
_SECRET_FLAG = re.compile(r"(?i)--?[a-z0-9_-]*(?:key|token|password|secret)")
"""An argument behind which a secret stands; `--key-file` is none."""
_NAME_KEYS = frozenset({"seat", "admin", "who", "by", "mode_by", "off_by", "name", "operator", "SEAT", "MOE_ADMIN"})
_PATTERNS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", MASK),
        (r"(?s)moe-(?:admin-)?[A-Za-z0-9_-]{32,}", MASK),
        (r"(?i)sha256:[0-9a-f]{16,}", MASK),
        (r"v1\.[A-Za-z0-9_-]+\.\d+\.[A-Za-z0-9_-]{20,}", MASK),
        (r"(?i)\b(bearer|basic|digest)(\s+)[A-Za-z0-9._~+/=-]{4,}", r"\1\2" + MASK),
        (r"\b(?:hf|ghp|gho|ghs|ghu|glpat|github_pat|xox[a-z]|AKIA|ASIA)[-_]?[A-Za-z0-9_-]{12,}", MASK),
        (r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{12,}", MASK),
        (r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*", MASK),
        (r"(?<=://)[^/\s@'\"]+@", MASK + "@"),
        (
            r"([?&][A-Za-z0-9_.~-]*(?i:key|token|sig|signature|secret|password|credential|auth)=)[^&\s\"'<>]+",
            r"\1" + MASK,
        ),
        (
            r"((?i:api[_-]?key|access[_-]?key|[A-Z0-9_]*_key|token|secret|passw(?:or)?d|authorization|cookie)"
            r"[\"']?\s*[:=]\s*[\"']?)(?!\[removed\])[^\s\"',;}\]]{4,}",
            r"\1" + MASK,
        ),
        (
            r"(--?[A-Za-z0-9_-]*(?i:key|token|password|secret)[\"']?[=,\s]\s*[\"']?)(?!\[removed\])[^\s\"']{4,}",
            r"\1" + MASK,
        ),
        (r"(?<=/home/)[^/\s\"':]+", "user"),
    )
)


LEFT_OUT = "left out; --engine-log"
_LOG_KEYS = frozenset({"evidence", "log_tail"})
"""Fields that hold lines of an engine's log."""
_QUOTED = re.compile(rf"(?m)(?:{OPENS}|\\u201c).*?(?:{CLOSES}|\\u201d|$)")
"""As printable.py quotes, or JSON its marks; one that was cut has no end."""


class Redactor:
    """`secrets`: texts that must not be seen. `seats`, `admins`, `persons`: names that become numbers. `last_words`:
    leave what an engine said."""

    def __init__(
        self,
        secrets: Iterable[str] = (),
        seats: Iterable[str] = (),
        admins: Iterable[str] = (),
        persons: Iterable[str] = (),
        *,
        last_words: bool = False,
    ) -> None:
        self._last_words = last_words
        spelled = {form for secret in secrets if len(secret) >= SECRET_MIN for form in _spellings(secret)}
        self._secrets = sorted(spelled, key=len, reverse=True)
        self._names: dict[str, str] = {}
        for kind, names in (("person", persons), ("admin", admins), ("seat", seats)):
            for number, name in enumerate(sorted(set(names)), start=1):
                self._names[name] = f"{kind}-{number}"
        words = [re.escape(name) for name in sorted(self._names, key=len, reverse=True) if len(name) >= _NAME_MIN]
        self._words = re.compile(rf"(?<![\w.-])(?:{'|'.join(words)})(?![\w-])") if words else None

    def text(self, text: str) -> str:
        """The text without them."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        if not self._last_words:
            text = _QUOTED.sub(MASK, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        if self._words is not None:
            text = self._words.sub(lambda found: self._names[found[0]], text)
        return text

    def value(self, value: Any, key: str = "") -> Any:
        """A JSON value without them. Under `env`, and under a key that names a secret, nothing is left but paths and
        numbers."""
        if key in _LOG_KEYS and value and not self._last_words:
            return LEFT_OUT
        if isinstance(value, Mapping):
            if key == "env":
                return dict.fromkeys(map(str, value), MASK)
            return {self._names.get(str(k), str(k)): self.value(item, str(k)) for k, item in value.items()}
        if isinstance(value, list | tuple):
            before = ["", *value]
            return [
                MASK if isinstance(flag, str) and _SECRET_FLAG.fullmatch(flag) else self.value(item, key)
                for flag, item in zip(before, value, strict=False)
            ]
        if not isinstance(value, str):
            return value
        if key in _NAME_KEYS and value in self._names:
            return self._names[value]
        return MASK if value and _SECRET_KEY.search(key) else self.text(value)


def _spellings(secret: str) -> Iterable[str]:
    """As it is, percent-encoded, escaped for JSON, and the base64 of it."""
    raw = secret.encode("utf-8", "surrogatepass")
    yield secret
    yield quote(secret, safe="")
    yield raw.hex()
    yield base64.b64encode(raw).rstrip(b"=").decode()
    yield base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
