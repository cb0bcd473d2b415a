"""What the fake engine saw and did, for tests to compare with what they asked for. Pure: times are arguments.

Rules: a request that was admitted ends exactly once. Times are CLOCK_MONOTONIC seconds, which all processes of
one machine share.
"""

from __future__ import annotations

import base64
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

LOG_LENGTH = 10_000


@dataclass(slots=True)
class RequestRecord:
    """One completion request. `outcome` is "" while it runs.

    Outcomes: completed, aborted (the client left), error, truncated, cut, rejected, broken (stopped by its owner).
    """

    id: str
    path: str
    arrived_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sequences: int = 0
    tokens: int = 0
    read_s: float | None = None
    """When its prompt had been read. The first token comes then, unless several are packed into one chunk."""
    first_token_s: float | None = None
    ended_s: float | None = None
    outcome: str = ""


@dataclass(slots=True)
class Stats:
    """Counters and gauges since the start or the last reset."""

    requests: int = 0
    running: int = 0
    peak_requests: int = 0
    sequences: int = 0
    peak_sequences: int = 0
    completed: int = 0
    aborted: int = 0
    rejected: int = 0
    tokens_out: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    paths: Counter[str] = field(default_factory=Counter)
    """Requests of any kind by path, refused ones too; without the control endpoints."""
    log: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=LOG_LENGTH))
    last_aborts: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=100))
    echoes: deque[dict[str, Any]] = field(default_factory=deque)

    def arrive(self, record: RequestRecord) -> None:
        """A completion request came in; it runs only once `admit` was called."""
        self.requests += 1
        self.log.append(record)

    def admit(self, record: RequestRecord, sequences: int) -> None:
        """It now runs as `sequences` sequences, until `end`."""
        record.sequences = sequences
        self.running += 1
        self.sequences += sequences
        self.peak_requests = max(self.peak_requests, self.running)
        self.peak_sequences = max(self.peak_sequences, self.sequences)

    def prefilled(self, record: RequestRecord, prompt_tokens: int, cached_tokens: int, now: float) -> None:
        """Its prefill is done."""
        record.read_s = now
        record.prompt_tokens, record.cached_tokens = prompt_tokens, cached_tokens
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def sent(self, record: RequestRecord, tokens: int, now: float) -> None:
        """`tokens` more left the engine."""
        if record.first_token_s is None:
            record.first_token_s = now
        record.tokens += tokens
        self.tokens_out += tokens

    def end(self, record: RequestRecord, outcome: str, now: float) -> None:
        """It ended; later calls for the same record do nothing."""
        if record.outcome:
            return
        record.outcome, record.ended_s = outcome, now
        if record.sequences:
            self.running -= 1
            self.sequences -= record.sequences
        if outcome == "completed":
            self.completed += 1
        elif outcome == "rejected":
            self.rejected += 1
        elif outcome == "aborted":
            self.aborted += 1
            self.last_aborts.append({"id": record.id, "at_s": now, "tokens": record.tokens})

    def echo(self, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes, keep: int) -> None:
        """Remember one request as it came, and the last `keep` of them."""
        pairs = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers]
        self.echoes.append({"path": path, "headers": pairs, "body_b64": base64.b64encode(body).decode()})
        while len(self.echoes) > keep:
            self.echoes.popleft()

    def as_json(self) -> dict[str, Any]:
        """Plain values under the field names."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return plain | {
            "paths": dict(self.paths),
            "log": [asdict(record) for record in self.log],
            "last_aborts": list(self.last_aborts),
            "echoes": list(self.echoes),
        }
