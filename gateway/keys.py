"""Keys of seats and admins: how they are made, digested and looked up. Pure.

- A key is 256 random bits, so its digest is a plain SHA-256: nothing slower protects a secret that
  cannot be guessed, and every request pays for it.
- Only digests are stored. A key is shown once, when it is made, and is never logged.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Generic, NewType, TypeVar

SEAT_PREFIX = "moe-"
ADMIN_PREFIX = "moe-admin-"
KEY_BYTES = 32
"""Random bytes in a key: 256 bits."""

Digest = NewType("Digest", str)
"""`sha256:` and 64 lower-case hex digits."""

T = TypeVar("T")

_DIGEST = re.compile(r"sha256:[0-9a-fA-F]{64}")


def new_key(prefix: str, random_bytes32: bytes) -> str:
    """Return `prefix` and the base64url form (43 characters, no padding) of exactly 32 random bytes.

    Raises ValueError for any other number of bytes.
    """
    if len(random_bytes32) != KEY_BYTES:
        raise ValueError(f"a key needs {KEY_BYTES} random bytes, got {len(random_bytes32)}")
    return prefix + base64.urlsafe_b64encode(random_bytes32).rstrip(b"=").decode("ascii")


def digest_of(key: str) -> Digest:
    """Return the digest under which a key is stored."""
    return Digest("sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest())


def parse_digest(text: str) -> Digest:
    """Return the digest in lower case. Raises ValueError with a plain reason that does not repeat the text."""
    if _DIGEST.fullmatch(text) is not None:
        return Digest(text.lower())
    if text.startswith(SEAT_PREFIX):
        raise ValueError("holds a key; it must hold the key's digest (sha256: and 64 hex digits)")
    raise ValueError("must be sha256: and 64 hex digits")


class KeyTable(Generic[T]):
    """Finds what a presented key stands for.

    Why the look-up takes the same time whatever part of a secret a guess gets right: the presented key is
    hashed first, so all that follows compares digests. One bit of difference in a key changes about half
    the bits of its digest, so "nearly right" does not exist there, and nobody can make keys whose digests
    creep towards a stored one. The dict compares two digests only when their 64-bit hashes, seeded anew in
    each process, agree. The last word is `hmac.compare_digest`, and a digest that leaks opens nothing.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[tuple[Digest, T]]) -> None:
        """Raises ValueError when a digest occurs twice: one key must not stand for two things."""
        self._entries: dict[Digest, tuple[Digest, T]] = {}
        for digest, value in entries:
            if digest in self._entries:
                raise ValueError("a digest occurs twice")
            self._entries[digest] = (digest, value)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: str) -> T | None:
        """Return the value of a presented key, or None. Time depends on the length of `key` alone."""
        presented = digest_of(key)
        stored, value = self._entries.get(presented, (None, None))
        if stored is None or not hmac.compare_digest(stored, presented):
            return None
        return value
