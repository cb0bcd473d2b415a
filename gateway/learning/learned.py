"""Keeps what was learned of each engine over restarts. Touches learned.json in the state folder.

Rules:
- Nothing depends on it: a file that cannot be read or written costs what was learned, and nothing else.
- A file that holds something else is set aside, and everything is learned anew.
- Written in a thread, at once, 0600, when something changed and at most once a minute.
- ENGINES_MAX engines are kept, those that were used last.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from gateway.files import read_small, replace_file
from gateway.learning.paces import Paces
from gateway.learning.prefill_curve import PrefillCurve
from gateway.logs import Log
from gateway.state import Finding, Severity

NAME = "learned.json"
VERSION = 2
KEEP_EVERY_S = 60.0
ENGINES_MAX = 16
FILE_MAX_BYTES = 8 * 1024 * 1024
AT_MAX_S = 2.0**40
"""A time beyond this cannot be written again."""
NAME_MAX = 1024
"""Characters of an engine's name and of its model's."""


@dataclass(slots=True)
class Known:
    """What is known of one engine with one model. `at_s`: when it was used last, wall clock."""

    curve: PrefillCurve = field(default_factory=PrefillCurve)
    paces: Paces = field(default_factory=Paces)
    at_s: float = 0.0


@dataclass(slots=True)
class Learned:
    """One per gateway; `load` it. `unread`: why what lay there was not used, "" when it was; `is_aside`: it was put
    aside."""

    path: Path
    unread: str = ""
    unkept: str = ""
    is_aside: bool = False
    _engines: dict[tuple[str, str], Known] = field(default_factory=dict)
    _written: bytes = b""
    _one: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def load(cls, state_dir: Path) -> Learned:
        """What a state folder keeps. Raises nothing; blocks."""
        learned = cls(state_dir / NAME)
        try:
            learned._engines = read(learned.path)
        except FileNotFoundError:
            return learned
        except OSError as error:
            learned.unread = error.strerror or str(error)
            return learned
        except ValueError as error:
            learned._set_aside(str(error))
        learned._written = learned._encoded()
        return learned

    @property
    def aside(self) -> Path:
        """Where a file that cannot be used is kept; the latest one."""
        return self.path.with_name(NAME + ".bad")

    def findings(self) -> tuple[Finding, ...]:
        """What was learned before this gateway and could not be used."""
        if not self.unread:
            return ()
        where = f"; it was put aside as {self.aside}" if self.is_aside else ""
        return (
            Finding(
                id="learned.unread",
                severity=Severity.INFO,
                title="What was learned of the engine's speed is lost; it is learned anew",
                observed=f"{self.path}: {self.unread}{where}",
                required="a file as the gateway wrote it; until the engine is measured again every long prompt is cold",
                remedy=f"rm {self.aside}" if self.is_aside else f"ls -l {self.path}",
            ),
        )

    def of(self, profile: str, model: str) -> Known:
        """What is known of an engine by the name of its profile and its model; to be learned on. Asked for when another
        engine is there, not with each request: the engines that were asked for last are kept."""
        key = (_plain(profile), _plain(model))
        known = self._engines.setdefault(key, Known())
        known.at_s = time.time()
        while len(self._engines) > ENGINES_MAX:
            del self._engines[min(self._engines, key=lambda name: self._engines[name].at_s)]
        return known

    def keep(self) -> str:
        """Write it now, if it changed. Why that was not possible, "" when it is kept. Raises nothing; blocks."""
        return self._write(self._encoded())

    async def run(self, log: Log) -> None:
        """Keep it for ever. `keep` once more at the end."""
        if self.unread:
            aside = str(self.aside) if self.is_aside else ""
            log.warning("learned.unread", path=str(self.path), error=self.unread, aside=aside)
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            before, why = self.unkept, await asyncio.to_thread(self._write, self._encoded())
            if why and why != before:
                log.warning("learned.unkept", error=why)

    def _encoded(self) -> bytes:
        engines = [
            {
                "profile": profile,
                "model": model,
                "at_s": round(known.at_s),
                "curve": known.curve.as_dict(),
                "paces": known.paces.as_dict(),
            }
            for (profile, model), known in self._engines.items()
            if known.curve.measured or known.paces.table()
        ]
        return orjson.dumps({"version": VERSION, "engines": engines}, option=orjson.OPT_APPEND_NEWLINE)

    def _write(self, encoded: bytes) -> str:
        with self._one:
            if encoded == self._written:
                return self.unkept
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self.path, encoded, 0o600)
            except OSError as error:
                self.unkept = f"{self.path} cannot be written: {error.strerror or error}"
            else:
                self._written, self.unkept = encoded, ""
            return self.unkept

    def _set_aside(self, why: str) -> None:
        self.unread = why
        with contextlib.suppress(OSError):
            self.path.replace(self.aside)
            self.is_aside = True


def read(path: Path) -> dict[tuple[str, str], Known]:
    """What such a file keeps, by profile and model; it is left as it is. Raises OSError, ValueError; blocks."""
    return _engines_of(read_small(path, FILE_MAX_BYTES))


def _engines_of(raw: bytes) -> dict[tuple[str, str], Known]:
    """Raises ValueError."""
    try:
        kept = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise ValueError("it is no JSON") from None
    if not isinstance(kept, dict) or kept.get("version") != VERSION or not isinstance(kept.get("engines"), list):
        raise ValueError(f"it is not of version {VERSION}")
    return dict(_engine_of(engine) for engine in kept["engines"][-ENGINES_MAX:])


def _engine_of(engine: Any) -> tuple[tuple[str, str], Known]:
    match engine:
        case {"profile": str(profile), "model": str(model), "at_s": int() | float() as at_s} if 0 <= at_s <= AT_MAX_S:
            curve, paces = PrefillCurve.from_dict(engine.get("curve")), Paces.from_dict(engine.get("paces"))
            return (_plain(profile), _plain(model)), Known(curve, paces, float(at_s))
    raise ValueError("an engine in it has no profile, model or time")


def _plain(name: str) -> str:
    """A name that can be written: a lone surrogate cannot."""
    return name[:NAME_MAX].encode(errors="replace").decode()
