"""What a run of the engine is told of the rest of the box, and how its end is explained with that. Touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from appliance.box.probe_log import found_in
from appliance.engine.examined import Examined
from appliance.engine.failures import Context, Exit, VramHolder, diagnose, plan_room
from appliance.engine.failures.kernel_log import oom_kills
from gateway.state import Cause


@dataclass(frozen=True, slots=True)
class Around:
    """`streams`: what the gateway has running, 0 while it does not answer; `served`: id of the start that answered
    somebody last, "" = none did; `longest_prefill_s`: by what was measured here, of a profile's name, a model and so
    many tokens, None = not known; `cards`: what each card holds now, bytes by index, None = not known; `context`: what
    explains an end beside the log; `looked`: called when a run has something new to show, how long its start
    still takes or what residency counted."""

    streams: Callable[[], int] = lambda: 0
    served: Callable[[], str] = lambda: ""
    longest_prefill_s: Callable[[str, str, int], float | None] = lambda profile, model, tokens: None
    cards: Callable[[], Mapping[int, int] | None] = lambda: None
    context: Callable[[], Context] = Context
    looked: Callable[[], None] = lambda: None


def context_of(environment: str, seen: Examined, holders: tuple[VramHolder, ...]) -> Context:
    """What is known of a start before it begins. `seen`: the look that went before it."""
    plan = None if seen.plan is None else plan_room.figures(seen.plan)
    return Context(environment=environment, model=seen.model, plan=plan, holders=holders)


def explained(exit_: Exit, lines: Sequence[str], kernel: Sequence[str], pids: Set[int], context: Context) -> Cause:
    """Why a run ended. `lines`: its log; `kernel`: what the kernel said meanwhile; `pids`: of all its processes."""
    killed = next((kill for kill in oom_kills(kernel) if kill.pid in pids), None)
    return diagnose(exit_, lines, replace(context, xids=found_in(kernel), oom_killed=killed))
