"""What the gateway knows of itself at one moment: streams, line, seats, counts. Pure.

Served on the gateway's own socket and turned into the page by status.py. Ages are seconds before `at_s`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StreamView(_Wire):
    """One running stream. `step` is prefill or decode; `tokens` and `tok_per_s` are estimates (`~`) until the
    engine has counted."""

    request_id: str
    seat: str
    route: str
    step: str
    age_s: float
    tokens: int
    tok_per_s: float | None
    estimated: bool


class WaitingView(_Wire):
    """One request in line, in the order of service."""

    request_id: str
    seat: str
    position: int
    waited_s: float
    predicted_s: float


class SeatView(_Wire):
    """One seat: `state` is active, disabled or expired; counts are since the gateway started."""

    name: str
    state: str
    max_streams: int | None
    running: int
    waiting: int
    served: int
    refused: int
    failed: int
    tokens_out: int


class FileView(_Wire):
    """A file that is read while the gateway runs; `error` is set while the file on disk is broken and the last
    good version is in use."""

    path: str
    error: str | None
    missing: bool


class GatewaySnapshot(_Wire):
    """Everything the page shows of the gateway. `mean_hold_s` is the measured mean time of a stream, None before
    the first one ended. `runs`: agents' chains of turns with a request in the last 90 s."""

    at_s: float
    started_s: float
    pid: int
    draining: bool
    closed: str | None
    streams_max: int
    running: tuple[StreamView, ...]
    waiting: tuple[WaitingView, ...]
    queue_max: int
    queue_deadline_s: float
    mean_hold_s: float | None
    body_bytes: int
    body_budget_bytes: int
    seats: tuple[SeatView, ...]
    files: tuple[FileView, ...]
    outcomes: dict[str, int]
    runs: int = 0
