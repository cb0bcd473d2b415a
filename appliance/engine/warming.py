"""What a healthy engine is asked before it serves, as the lifecycle is told of it. Touches the engine and the log.

Rule: an engine that did not say what its log must have said does not serve, whatever it answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from logging import INFO, WARNING
from typing import TypeAlias

from appliance.engine.adapter import Adapter, Launch
from appliance.engine.launching import key_of
from appliance.engine.lifecycle_events import Event, HostKvUnproven, Progress, WarmUpDone, WarmUpFailed
from appliance.engine.promise import Promise
from appliance.engine.warmup import WarmUp, warm_up
from appliance.engine.warmup import WarmUpFailed as WarmUpError
from appliance.errors import MoeError
from gateway.logs import Log
from gateway.state import Cause

PROBES_END_S = 2.0
"""The probes of the warm-up end this long before the start limit."""

Warmed: TypeAlias = WarmUpDone | WarmUpFailed | HostKvUnproven


@dataclass(frozen=True, slots=True)
class Warming:
    """One start's. `host_kv`: it has the KV tier in host RAM; `host_bytes`:
    what the log told of pinned memory; `missing`: why it must not serve, by its log; `ends_s`: when the start must be
    over, monotonic."""

    adapter: Adapter
    launch: Launch
    promise: Promise
    start_id: str
    ask: Callable[[Event], None]
    log: Log
    host_kv: bool
    host_bytes: Callable[[], int | None]
    missing: Callable[[], Cause | None]
    ends_s: float

    async def run(self) -> Warmed:
        """Ask, and say what came of it."""
        try:
            warm = await warm_up(
                self.launch.url,
                key_of(self.launch),
                self.adapter.served_model,
                lambda step, part: self.ask(Progress(step, part)),
                promise=self.promise,
                host_bytes=self.host_bytes,
                left_s=self.left_s,
                host_kv=self.host_kv,
                sequence_folder=self.launch.sequence_folder,
            )
        except WarmUpError as error:
            return WarmUpFailed(self.missing() or error.cause, self.start_id)
        except MoeError as error:
            cause = Cause(id="engine.key_file", title=error.message, remedy=error.remedy)
            return WarmUpFailed(cause, self.start_id)
        missing = self.missing()
        if missing is not None:
            return WarmUpFailed(missing, self.start_id)
        if isinstance(warm.host_kv, Cause):
            self.log.warning("engine.host_kv", start_id=self.start_id, off=warm.host_kv.title)
            return HostKvUnproven(warm.host_kv, self.start_id)
        return self._serves(warm)

    def _serves(self, warm: WarmUp) -> WarmUpDone:
        if warm.host_kv is not None and not isinstance(warm.host_kv, Cause):
            self.log.info("engine.host_kv", start_id=self.start_id, **asdict(warm.host_kv))
        shown = warm.abilities
        self.log.log(
            WARNING if warm.notes else INFO,
            "engine.abilities",
            start_id=self.start_id,
            dialects=shown.dialects,
            counters=shown.counters,
            continuation=shown.continuation,
            images=shown.images,
            notes=warm.notes,
        )
        context_tokens = self.adapter.context_tokens or warm.context_tokens
        return WarmUpDone(warm.models, context_tokens, warm.tok_per_s, shown, self.start_id, warm.results)

    def left_s(self) -> float:
        """Seconds for the probes, so that an engine that serves is not ended by the start limit while it is asked."""
        return self.ends_s - PROBES_END_S - time.monotonic()
