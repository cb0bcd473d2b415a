"""Reads the lock of an environment: which wheels it is made of. Pure.

Rules:
- A line is a requirement as pip reads it, with one hash; behind "#" stand the wheel's bytes and its file name.
- A lock names no index and no host: where wheels come from is what the operator's pip is told.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[\w.+!]+) --hash=sha256:(?P<sha256>[0-9a-f]{64})"
    r"  # (?P<size>[1-9]\d*) (?P<file>[\w.+!-]+\.whl)"
)
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel of a lock: `name` as indexes spell it, `file` and `size_bytes` of the file that the hash is of."""

    name: str
    version: str
    sha256: str
    size_bytes: int
    file: str

    @property
    def requirement(self) -> str:
        """The line for pip."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n"


@dataclass(frozen=True, slots=True)
class Lock:
    """`sha256`: of the lock's text."""

    sha256: str
    wheels: tuple[Wheel, ...]

    @property
    def total_bytes(self) -> int:
        """Of all wheels."""
        return sum(wheel.size_bytes for wheel in self.wheels)

    def version(self, name: str) -> str:
        """Of a package; "" when it is not in the lock."""
        return next((wheel.version for wheel in self.wheels if wheel.name == name), "")


def parse(text: str) -> Lock:
    """The lock. Raises ValueError naming the line that is none of a lock's, or a package that stands there twice."""
    wheels: dict[str, Wheel] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None or found["name"] in wheels:
            raise ValueError(f"line {number} is no line of a lock, or a package's second: {line[:80]!r}")
        wheels[found["name"]] = Wheel(
            found["name"], found["version"], found["sha256"], int(found["size"]), found["file"]
        )
    return Lock(hashlib.sha256(text.encode()).hexdigest(), tuple(wheels.values()))


def identity(lock: Lock, sources: Iterable[str] = ()) -> str:
    """Twelve digits that tell two environments of one set apart: of the lock, and of the hashes of what was built
    beside it."""
    given = tuple(sources)
    if not given:
        return lock.sha256[:_SHOWN]
    return hashlib.sha256("\n".join((lock.sha256, *given)).encode()).hexdigest()[:_SHOWN]
