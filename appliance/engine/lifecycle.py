"""Decide what happens to the engine next: a state, an event and the time give a state and effects. Pure.

The supervisor carries out the effects and reports what came of them as events. Its part of the contract:
- `Prepare` is answered by PrepareStarted, Progress, then Prepared, Refused, PrepareFailed or MemoryHeld, and ALWAYS by
  exactly one StopDone after these, also when it was cancelled before it began. It waits for what the former engine held
  first.
- `Spawn` is answered by Spawned, and ALWAYS by exactly one Exited, also when the command cannot be run or
  `Spawned` never came. An engine that is not ours to run gets Spawned(None, id), and Exited after Kill.
- `Kill` ends whatever goes on: a preparation (answer: its StopDone) or an engine (answer: its Exited). It may be
  repeated. StopDone while an engine is alive does not count.
- `SetTimer(at_s)` replaces the former timer; TimerDue comes at that time. Same clock as `now_s`: monotonic.
- StartTimeout comes once, so many seconds after Spawn; it is ignored when the engine is READY by then.
- Events of a former start carry its `start_id` and are ignored here ("" is never stale).

Rules:
- An end that nobody asked for is a crash, exit code 0 included. Backoff 1, 2, 4 ... 60 s.
- The same cause three times in a row is FAILED: no start any more until somebody asks; but for LEFT, which is another
  box's doing and is over when that one is back. A cause that the next start
  would meet again (`retry` False) is FAILED at once.
- What the former engine held and nobody can free is NEEDS_REBOOT: no start until somebody asks.
- A run that was READY for `STABLE_S` and answered somebody clears the counts, one that hung after `STABLE_HUNG_S`, and
  so does StartAsked or RestartAsked. The warm-up and the canary are nobody: an engine that each first request ends is
  FAILED however long it stood idle before.
- A KV tier in host RAM that was not proven, or that engines end with (at the warm-up, for a cause that names it, or
  for the same cause three times), is left out of the next starts: `host_kv_off`. Only RestartAsked tries it again.
- An engine that is killed because it hangs (StartTimeout, StartFailed, HealthLost, WarmUpFailed) is STOPPING with
  `after` CRASH: its Exited counts as a crash with the cause of the kill, whatever the exit looked like. One that died
  by itself (HealthLost.ended) is STOPPING with DIED, while the rest of it ends: its Exited has the cause.
- `TABLE` holds a rule for every event in every phase; `_ignored` is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

from appliance.engine import host_kv
from appliance.engine.lifecycle_events import (
    Effect,
    Event,
    Exited,
    HealthLost,
    HealthOk,
    HostKvUnproven,
    Kill,
    MemoryHeld,
    Prepare,
    Prepared,
    PrepareFailed,
    PrepareStarted,
    Progress,
    Publish,
    Refused,
    RestartAsked,
    Served,
    SetTimer,
    Spawn,
    Spawned,
    StartAsked,
    StartFailed,
    StartTimeout,
    StopAsked,
    StopDone,
    TimerDue,
    WarmUp,
    WarmUpDone,
    WarmUpFailed,
)
from appliance.engine.lifecycle_state import After, State
from gateway.state import Cause, EngineAbilities, Phase

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
SAME_CAUSE_LIMIT = 3
STABLE_S = 300.0
"""READY for so long, and of use to somebody, clears the counts."""
STABLE_HUNG_S = 3600.0
"""The same for a run that hung: to see that takes minutes in which the engine is READY."""

HUNG = "engine.hung"
LEFT = "engine.nodes_left"
"""A part of another box ends with it."""
STOP_ASKED = Cause(id="engine.stop_asked", title="The operator stopped the engine.", remedy="start it again")
RESTART_ASKED = Cause(id="engine.restart_asked", title="The operator restarts the engine.", remedy="wait")


Step: TypeAlias = tuple[State, tuple[Effect, ...]]
Rule: TypeAlias = Callable[[State, Any, float], Step]


def handle(state: State, event: Event, now_s: float) -> Step:
    """The next state and what to do, in this order. Never raises; an event without meaning changes nothing."""
    start_id = getattr(event, "start_id", "")
    if start_id and start_id != state.start_id and not isinstance(event, Spawned):
        return state, ()
    return TABLE[type(event)][state.phase](state, event, now_s)


def backoff_s(crashes: int) -> float:
    """Seconds before the next start after `crashes` (1 or more) in a row: 1, 2, 4 ... 60."""
    return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(crashes - 1, 16))


# What several rules have in common


def _enter(state: State, phase: Phase, now_s: float, **changes: Any) -> State:
    """`state` in another phase: what described the former phase is cleared."""
    cleared: dict[str, Any] = {"step": "", "progress": None, "retry_at_s": None, "ready_at_s": None, "served": False}
    if phase not in (Phase.STARTING, Phase.WARMING, Phase.READY, Phase.STOPPING):
        cleared |= {"pid": None, "start_id": "", "host_kv": False}
    if phase is not Phase.READY:
        cleared |= {"models": (), "context_tokens": None, "warm_tok_per_s": None}
        cleared |= {"abilities": EngineAbilities(), "probes": ()}
    return replace(state, **(cleared | {"phase": phase, "since_s": now_s, "causes": ()} | changes))


def _cleared_counts(state: State) -> State:
    return replace(state, cause_id="", same_cause=0, crashes=0)


def _settled(state: State, cause: Cause, now_s: float) -> State:
    """The counts are cleared when a run that ends now was READY for long enough, and served."""
    enough_s = STABLE_HUNG_S if cause.id == HUNG else STABLE_S
    stable = state.served and state.ready_at_s is not None and now_s - state.ready_at_s >= enough_s
    return _cleared_counts(state) if stable else state


def _crash(state: State, cause: Cause, now_s: float) -> Step:
    same = state.same_cause + 1 if cause.id == state.cause_id else 1
    counted = replace(state, cause=cause, cause_id=cause.id, same_cause=same, crashes=state.crashes + 1)
    if state.host_kv and (state.phase is Phase.WARMING or cause.id == host_kv.ID or same >= SAME_CAUSE_LIMIT):
        counted = replace(counted, host_kv_off=host_kv.blamed(cause), same_cause=0)
    elif (same >= SAME_CAUSE_LIMIT and cause.id != LEFT) or not cause.retry:
        return _enter(counted, Phase.FAILED, now_s), (Publish(),)
    retry_at_s = now_s + backoff_s(counted.crashes)
    return _enter(counted, Phase.BACKOFF, now_s, retry_at_s=retry_at_s), (SetTimer(retry_at_s), Publish())


def _end_for(state: State, after: After, cause: Cause, now_s: float) -> Step:
    shown = cause if after in (After.CRASH, After.DIED) else None
    stopping = _enter(_settled(state, cause, now_s), Phase.STOPPING, now_s, after=after, cause=shown)
    return stopping, (Kill(cause), Publish())


def _after_stop(state: State, now_s: float) -> Step:
    if state.after is After.CRASH and state.cause is not None:
        return _crash(state, state.cause, now_s)
    if state.after is After.START:
        return _enter(state, Phase.PREPARING, now_s), (Prepare(), Publish())
    return _enter(state, Phase.OFF, now_s), (Publish(),)


# Rules: what the operator asks


def _asked(state: State, event: StartAsked | RestartAsked) -> State:
    """What is forgotten when somebody wants a start."""
    off = None if isinstance(event, RestartAsked) else state.host_kv_off
    return replace(_cleared_counts(state), host_kv_off=off)


def _start(state: State, event: StartAsked | RestartAsked, now_s: float) -> Step:
    fresh = _enter(_asked(state, event), Phase.PREPARING, now_s, cause=None)
    return fresh, (Prepare(), Publish())


def _start_after_stop(state: State, event: StartAsked | RestartAsked, now_s: float) -> Step:
    return replace(_asked(state, event), after=After.START, cause=None), (Publish(),)


def _stop_then_start(state: State, event: RestartAsked, now_s: float) -> Step:
    return _end_for(_asked(state, event), After.START, RESTART_ASKED, now_s)


def _stop(state: State, event: StopAsked, now_s: float) -> Step:
    return _end_for(_cleared_counts(state), After.OFF, STOP_ASKED, now_s)


def _off(state: State, event: StopAsked, now_s: float) -> Step:
    return _enter(_cleared_counts(state), Phase.OFF, now_s, cause=None), (Publish(),)


def _off_after_stop(state: State, event: StopAsked, now_s: float) -> Step:
    return replace(_cleared_counts(state), after=After.OFF, cause=None), (Publish(),)


# Rules: preparation


def _refused(state: State, event: Refused, now_s: float) -> Step:
    first = event.causes[0] if event.causes else None
    return _enter(state, Phase.REFUSED, now_s, cause=first, causes=event.causes), (Publish(),)


def _prepare_started(state: State, event: PrepareStarted, now_s: float) -> Step:
    return replace(state, step="preparing", progress=None), (Publish(),)


def _progress(state: State, event: Progress, now_s: float) -> Step:
    if (event.step, event.progress) == (state.step, state.progress):
        return state, ()
    return replace(state, step=event.step, progress=event.progress), (Publish(),)


def _prepared(state: State, event: Prepared, now_s: float) -> Step:
    return _enter(state, Phase.STARTING, now_s, alive=True), (Spawn(state.host_kv_off is None), Publish())


def _prepare_failed(state: State, event: PrepareFailed, now_s: float) -> Step:
    return _crash(state, event.cause, now_s)


def _memory_held(state: State, event: MemoryHeld, now_s: float) -> Step:
    return _enter(state, Phase.NEEDS_REBOOT, now_s, cause=event.cause), (Publish(),)


def _timer_due(state: State, event: TimerDue, now_s: float) -> Step:
    if state.retry_at_s is not None and now_s < state.retry_at_s:
        return state, (SetTimer(state.retry_at_s),)
    again = _enter(state, Phase.PREPARING, now_s, restarts=state.restarts + 1)
    return again, (Prepare(), Publish())


# Rules: a running engine


def _spawned(state: State, event: Spawned, now_s: float) -> Step:
    return replace(state, pid=event.pid, start_id=event.start_id, host_kv=event.host_kv), (Publish(),)


def _spawned_too_late(state: State, event: Spawned, now_s: float) -> Step:
    """The Kill went out before there was anything to kill."""
    if not state.alive:
        return state, ()
    cause = state.cause or (RESTART_ASKED if state.after is After.START else STOP_ASKED)
    return replace(state, pid=event.pid, start_id=event.start_id), (Kill(cause), Publish())


def _health_ok(state: State, event: HealthOk, now_s: float) -> Step:
    if not state.start_id:  # something else answers on that port: our engine is not running yet
        return state, ()
    return _enter(state, Phase.WARMING, now_s), (WarmUp(), Publish())


def _warm(state: State, event: WarmUpDone, now_s: float) -> Step:
    ready = _enter(
        state,
        Phase.READY,
        now_s,
        models=event.models,
        context_tokens=event.context_tokens,
        warm_tok_per_s=event.tok_per_s,
        abilities=event.abilities,
        probes=event.probes,
        served=not event.models,  # a part of another box answers nobody
        ready_at_s=now_s,
        cause=None,
    )
    return ready, (Publish(),)


def _served(state: State, event: Served, now_s: float) -> Step:
    return replace(state, served=True), ()


def _without_host_kv(state: State, event: HostKvUnproven, now_s: float) -> Step:
    return _end_for(replace(state, host_kv_off=event.cause), After.START, event.cause, now_s)


def _kill_for_cause(state: State, event: WarmUpFailed | StartFailed, now_s: float) -> Step:
    return _end_for(state, After.CRASH, event.cause, now_s)


def _health_lost(state: State, event: HealthLost, now_s: float) -> Step:
    return _end_for(state, After.DIED if event.ended else After.CRASH, event.cause, now_s)


def _never_ready(state: State, event: StartTimeout, now_s: float) -> Step:
    return _end_for(state, After.CRASH, never_ready(event.after_s), now_s)


def never_ready(after_s: float) -> Cause:
    """The cause of a StartTimeout; `after_s`: the limit, seconds, 0 = not told."""
    limit = f" within {after_s:g} s" if after_s else " in time"
    return Cause(
        id="engine.never_ready",
        title=f"The engine was started but was not ready{limit}.",
        remedy="moe-appliance status (shows its last log lines); raise start_timeout_s if it was still loading",
    )


def _exited(state: State, event: Exited, now_s: float) -> Step:
    return _crash(replace(_settled(state, event.cause, now_s), alive=False), event.cause, now_s)


def _exited_as_asked(state: State, event: Exited, now_s: float) -> Step:
    if not state.alive:  # a preparation is being cancelled
        return state, ()
    gone = replace(state, alive=False)
    return _crash(gone, event.cause, now_s) if state.after is After.DIED else _after_stop(gone, now_s)


def _stop_done(state: State, event: StopDone, now_s: float) -> Step:
    if state.alive:  # its Exited is still to come
        return state, ()
    return _after_stop(state, now_s)


def _ignored(state: State, event: Event, now_s: float) -> Step:
    return state, ()


def _row(rules: Mapping[Rule, tuple[Phase, ...]], ignored: str) -> Mapping[Phase, Rule]:
    """A row of the table; `ignored` says why the event means nothing in the phases that are not named."""
    row: dict[Phase, Rule] = dict.fromkeys(Phase, _ignored)
    for rule, phases in rules.items():
        row.update(dict.fromkeys(phases, rule))
    return MappingProxyType(row)


_OFF, _REFUSED, _PREPARING, _STARTING = Phase.OFF, Phase.REFUSED, Phase.PREPARING, Phase.STARTING
_WARMING, _READY, _STOPPING, _BACKOFF = Phase.WARMING, Phase.READY, Phase.STOPPING, Phase.BACKOFF
_FAILED, _REBOOT = Phase.FAILED, Phase.NEEDS_REBOOT
_AT_REST = (_OFF, _REFUSED, _BACKOFF, _FAILED, _REBOOT)

TABLE: Mapping[type[Event], Mapping[Phase, Rule]] = MappingProxyType(
    {
        StartAsked: _row({_start: _AT_REST, _start_after_stop: (_STOPPING,)}, "it is on its way up or there"),
        RestartAsked: _row(
            {
                _start: _AT_REST,
                _stop_then_start: (_PREPARING, _STARTING, _WARMING, _READY),
                _start_after_stop: (_STOPPING,),
            },
            "never",
        ),
        StopAsked: _row(
            {
                _off: (_REFUSED, _BACKOFF, _FAILED, _REBOOT),
                _stop: (_PREPARING, _STARTING, _WARMING, _READY),
                _off_after_stop: (_STOPPING,),
            },
            "OFF already",
        ),
        Refused: _row({_refused: (_OFF, _PREPARING, _REFUSED)}, "only a start that is being prepared"),
        PrepareStarted: _row({_prepare_started: (_PREPARING,)}, "the preparation was cancelled"),
        Prepared: _row({_prepared: (_PREPARING,)}, "the preparation was cancelled"),
        MemoryHeld: _row({_memory_held: (_PREPARING,)}, "the preparation was cancelled"),
        PrepareFailed: _row({_prepare_failed: (_PREPARING,)}, "the preparation was cancelled"),
        Progress: _row({_progress: (_PREPARING, _STARTING, _WARMING)}, "nothing is on its way up"),
        TimerDue: _row({_timer_due: (_BACKOFF,)}, "a timer that outlived its BACKOFF"),
        Spawned: _row({_spawned: (_STARTING,), _spawned_too_late: (_STOPPING,)}, "no Spawn is open"),
        HealthOk: _row({_health_ok: (_STARTING,)}, "known already, or no longer of interest"),
        WarmUpDone: _row({_warm: (_WARMING,)}, "the run it belongs to is over"),
        Served: _row({_served: (_READY,)}, "the run it belongs to is over"),
        WarmUpFailed: _row({_kill_for_cause: (_WARMING,)}, "the run it belongs to is over"),
        HostKvUnproven: _row({_without_host_kv: (_WARMING,)}, "the run it belongs to is over"),
        HealthLost: _row({_health_lost: (_READY,)}, "before READY the start timeout judges"),
        StartFailed: _row({_kill_for_cause: (_STARTING,)}, "it serves, or is over"),
        StartTimeout: _row({_never_ready: (_STARTING, _WARMING)}, "READY in time, or over"),
        Exited: _row({_exited: (_STARTING, _WARMING, _READY), _exited_as_asked: (_STOPPING,)}, "no engine is alive"),
        StopDone: _row({_stop_done: (_STOPPING,)}, "no stop is going on"),
    }
)
