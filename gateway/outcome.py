"""What is kept of one request once it is over: the fields of its log line. Pure but for a fresh id.

Rules:
- Never prompt text, never a key.
- The first word that an exchange gives its outcome stands; see exchange.py.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from gateway.keys import SEAT_PREFIX
from gateway.meter import Meter
from gateway.responses import Scope

_REQUEST_ID = re.compile(rb"(?!.*%b[A-Za-z0-9_-]{40})[A-Za-z0-9._:-]{1,128}" % SEAT_PREFIX.encode())


@dataclass(slots=True)
class Outcome:
    """What the one log line of a request says. Times in seconds; tokens as the engine counted them, or
    estimated. `word` is ok, refused, client_gone, engine_lost, engine_error, ended, failed. `queue_s`: until its
    ticket, None = it got none. `uncached_tokens`: what of the prompt admission expected not to be cached when it let it
    go to the engine. `run`, `turn` and `helper`: see runs.py."""

    request_id: str
    route: str
    seat: str = ""
    word: str = ""
    status: int = 0
    code: str = ""
    queue_s: float | None = None
    ttft_s: float | None = None
    duration_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    uncached_tokens: int | None = None
    completion_tokens: int = 0
    tok_per_s: float | None = None
    estimated: bool = True
    stream: bool = False
    body_bytes: int = 0
    run: str = ""
    turn: int | None = None
    helper: bool = False

    def measured(self, meter: Meter, arrived_s: float) -> None:
        """Take over what a reply's meter says; `arrived_s` is when the request came."""
        if meter.first_token_s is not None:
            self.ttft_s = meter.first_token_s - arrived_s
        self.completion_tokens = meter.tokens
        self.tok_per_s = meter.tok_per_s
        self.estimated = meter.estimated
        if meter.usage is not None:
            self.prompt_tokens = meter.usage.prompt_tokens
            self.cached_tokens = meter.usage.cached_tokens

    def fields(self) -> dict[str, object]:
        """What is known, by name."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in found.items() if value not in (None, "")}


def request_id_of(scope: Scope) -> str:
    """The client's X-Request-Id when it is harmless (letters, digits, `._:-`, 128 at most, no key), else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
    return secrets.token_hex(16)
