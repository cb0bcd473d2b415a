"""The gateway's own settings: limits of admission, bodies and time. Pure.

Each field documents meaning, unit and default; "0 disables" where it does. Unknown keys are refused.
They are the tables `[admission]`, `[gateway]` and `[ledger]` of appliance.toml (docs/configuration.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gateway.prewarm.settings import Prefixes, PrewarmSettings
from gateway.state import EngineAbilities, EngineProfile

MIB = 1024 * 1024
RETIRE_MAX_S = 20.0
"""How long a gateway that is replaced serves those who are there: who comes meanwhile waits without a heartbeat."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class _Numbers(_Table):
    """A table of numbers; text, true and false are none."""

    model_config = ConfigDict(strict=True)


class AdmissionSettings(_Numbers):
    """`[admission]`: who streams, who waits, who is refused."""

    streams: Annotated[int, Field(ge=0, le=256)] = 0
    """Streams served at once. 0 = as many as `[engine] streams` says, else the plan's validated cap. Default 0."""
    queue_max: Annotated[int, Field(ge=0, le=1000)] = 32
    """Requests that may wait, all seats together. 0 = nobody waits, a full box refuses. Default 32."""
    queue_per_seat: Annotated[int, Field(ge=1, le=1000)] = 8
    """Requests that may wait of one seat. Default 8."""
    queue_bytes: Annotated[int, Field(ge=0)] = 64 * MIB
    """Bytes of request bodies that may wait, all seats together. 0 disables. Default 67108864 (64 MiB)."""
    queue_deadline_s: Annotated[float, Field(gt=0, le=230)] = 180.0
    """Longest wait, seconds. At most 230, so that wait and prefill stay under agents' 240 s. Default 180."""
    queue_cold_per_seat: Annotated[int, Field(ge=0, le=1000)] = 1
    """Cold requests, those with more uncached tokens than the engine's `cold_tokens` that are predicted to be read in
    `short_s` or longer, that may wait of one seat; one more is refused and comes back later. Calls that agents
    make beside their turns do not count, nor does the demo engine have it. 0 disables. Default 1."""
    short_s: Annotated[float, Field(ge=0, le=600)] = 4.0
    """A prompt that is predicted to be read in less than this, seconds, is not cold, however long it is. As long as no
    reading was measured on this box every prompt above the engine's `cold_tokens` is. 0 disables. Default 4."""
    spacing: Annotated[float, Field(ge=0, le=100)] = 8.0
    """After a cold prompt no other one is read for so many times its predicted seconds of reading, counted from its
    admission, unless nothing runs; half of queue_deadline_s at most. 0 disables. Default 8."""
    quiet_s: Annotated[float, Field(ge=0, le=600)] = 20.0
    """Before a cold prompt is read nobody else is admitted, so that running answers can end: for so long at most,
    seconds, and a sixth of queue_deadline_s at most. 0 disables. Default 20."""
    last_wait_s: Annotated[float, Field(ge=0, le=600)] = 90.0
    """The last free stream is kept from a request for so long at most, seconds, while a running answer would fall
    behind the engine's `floor_tok_per_s` by it; half of queue_deadline_s at most. 0 disables. Default 90."""
    aged_s: Annotated[float, Field(ge=0, le=600)] = 60.0
    """Requests that have waited for so long, seconds, go by age before all others; a third of queue_deadline_s at most.
    0 disables. Default 60."""
    over_share: Annotated[float, Field(ge=0, le=1000)] = 1.5
    """A seat that has used so many times the mean of the seats with work, over some five minutes, stands behind them.
    0 disables. Default 1.5."""
    floor_guard_s: Annotated[float, Field(ge=0, le=86_400)] = 300.0
    """Streams that run under the engine's `floor_tok_per_s` for so long, seconds, without a cold prompt beside them,
    become one fewer; a change that does not make those that began since 10 % faster within as long again is taken back.
    Fewer than 5 answers in it are no evidence. 0 disables. Default 300."""
    max_stream_s: Annotated[float, Field(ge=0)] = 1800.0
    """Longest stream, seconds; then it ends with an error. 0 disables. Default 1800."""
    seat_grace_s: Annotated[float, Field(ge=0)] = 30.0
    """How long running streams of a disabled or removed seat go on, seconds. 0 = not at all. Default 30."""


class LimitSettings(_Numbers):
    """`[gateway]`: bodies, slow clients, heartbeats, drain, connections."""

    body_max_bytes: Annotated[int, Field(ge=1024)] = 64 * MIB
    """Largest request body, bytes; above it 413. Default 67108864 (64 MiB)."""
    body_budget_bytes: Annotated[int, Field(ge=1024)] = 256 * MIB
    """Bytes of request bodies held in memory at once; above it 503. At least body_max_bytes. Default 268435456
    (256 MiB)."""
    body_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """Time a client has to send its whole body, seconds; then 408. Default 30."""
    client_stall_s: Annotated[float, Field(ge=0)] = 30.0
    """A client that takes no byte for this long, seconds, is cut. 0 disables. Default 30."""
    early_response_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """A stream that has no answer yet after this long gets its 200 and heartbeats, seconds. Default 1."""
    heartbeat_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    """Time between heartbeats while a stream waits, seconds. Default 5."""
    first_token_s: Annotated[float, Field(ge=0)] = 235.0
    """Longest wait of a stream for its first token, queue and prefill together, seconds; then it ends with an error
    that agents try again. Below 240, as agents themselves give up at 300. 0 disables. Default 235."""
    engine_silence_s: Annotated[float, Field(ge=0)] = 240.0
    """An engine that sends nothing of a running stream for this long, seconds, has lost it: the stream ends with an
    error. 0 disables. Default 240."""
    unstreamed_s: Annotated[float, Field(ge=0)] = 590.0
    """Longest time that the engine has for an answer that is not streamed, seconds; clients give up at 600. 0 disables.
    Default 590."""
    drain_s: Annotated[float, Field(ge=0)] = 30.0
    """At a stop: how long running streams may go on, seconds. 0 = not at all. Default 30."""
    connections: Annotated[int, Field(ge=16)] = 2048
    """Connections of clients at once; fewer when the process may open too few files for it, at two a connection. At
    the limit idle ones are closed for new ones, and when none is idle the new one gets a 503. Each can hold 64 KiB of a
    head that was not read to its end, so 2048 are 128 MiB at worst. Default 2048."""
    connections_per_address: Annotated[int, Field(ge=0)] = 512
    """Connections of one address (IPv6: of one /64) at once, treated the same way. A team behind one router is one
    address: 512 are 18 for each of 28 developers. This machine and `trusted_proxies` have no limit of their own.
    0 disables. Default 512."""

    @model_validator(mode="after")
    def _largest_body_fits(self) -> LimitSettings:
        if self.body_max_bytes > self.body_budget_bytes:
            raise ValueError(
                f"body_max_bytes ({self.body_max_bytes}) is above body_budget_bytes ({self.body_budget_bytes}): "
                "the largest body could never be read"
            )
        return self


LOOK_BACK_DAYS = 14
"""How many days the ledger looks back to say how busy the team is."""


class LedgerSettings(_Table):
    """`[ledger]`: who used what, kept in `state_dir`/ledger.db."""

    model_config = ConfigDict(strict=True)

    enabled: bool = True
    """Keep a row of each request: seat, times, tokens, outcome; never text. Budgets need it. Default true."""
    keep_days: Annotated[int, Field(ge=0, le=36500)] = 400
    """Days that single requests are kept; what each seat used in each month is kept for ever. With 400 the same month
    of last year can still be looked at; at 1000 requests a day they are 70 MB. 0 = for ever, else at least 14: how busy
    the team was is measured over 14 days. Default 400."""

    @field_validator("keep_days")
    @classmethod
    def _long_enough_to_measure(cls, days: int) -> int:
        if 0 < days < LOOK_BACK_DAYS:
            raise ValueError(
                f"0, which is for ever, or at least {LOOK_BACK_DAYS}: so many days are looked at for sizing"
            )
        return days


class StaticEngine(_Table):
    """An engine that nobody supervises: the gateway run alone, without a daemon."""

    url: str
    key_file: Path | None = None
    models: tuple[str, ...] = ()
    context_tokens: int | None = None
    profile: EngineProfile = EngineProfile(name="static", floor_tok_per_s=40.0, cold_tokens=12_000, streams=4)
    abilities: EngineAbilities = EngineAbilities()


class GatewaySettings(_Table):
    """All that a gateway process is told at start. The daemon writes it to a 0600 file.

    `control_socket` is the daemon's Unix socket; without it `engine` must be given.
    `gateway_socket` is where the gateway itself listens for the daemon and the CLI.
    """

    @classmethod
    def of_daemon(cls, raw: bytes) -> GatewaySettings:
        """What a daemon wrote, of this version or an older one: keys that are unknown here are not ours to refuse.
        Raises ValidationError."""
        return cls.model_validate_json(raw, extra="ignore")

    seats_file: Path
    admins_file: Path | None = None
    state_dir: Path
    control_socket: Path | None = None
    gateway_socket: Path | None = None
    engine: StaticEngine | None = None
    public_url: str = ""  # set: a proxy is in front, and nobody counts as local
    trusted_proxies: tuple[str, ...] = ()
    model_aliases: tuple[str, ...] = ("claude-*",)
    admission: AdmissionSettings = AdmissionSettings()
    limits: LimitSettings = LimitSettings()
    ledger: LedgerSettings = LedgerSettings()
    prewarm: PrewarmSettings = PrewarmSettings()
    prefixes: Prefixes = ()
