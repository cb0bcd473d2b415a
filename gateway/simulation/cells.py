"""What is simulated: a pod, its developers, a policy and a seed; and the cells of the table. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from gateway.admission_types import Limits
from gateway.errors import MoeError
from gateway.simulation import agents
from gateway.simulation.agents import Agent, Developer
from gateway.simulation.baselines import Line, Recommended, RoundRobin, Vtc
from gateway.simulation.kv import Kv
from gateway.simulation.metrics import Day, day_of
from gateway.simulation.pace import STUDY, Pace
from gateway.simulation.pod import Parts, Pod
from gateway.simulation.request import Policy
from gateway.simulation.shipped import Shipped

APPLIANCE = "appliance"
"""The shipped policy."""
TABLE_SEEDS = 24
TABLE_HOURS = 8.0
AGENTS_OF_HOG = 6
"""So many agents of a hog's seat never pause. Source: facts/admission-search.md."""
_LINES: dict[str, type[Line]] = {"round-robin": RoundRobin, "vtc": Vtc, "recommended": Recommended}
_FIFO = re.compile(r"fifo-cap-([1-9][0-9]{0,2})", re.ASCII)
POLICIES = (APPLIANCE, "none", "fifo-cap-N", *_LINES)
"""What `--policy` takes."""


@dataclass(frozen=True, slots=True)
class KvCase:
    """`tokens`: what the engine's cache holds; `host`: with an unlimited copy in host RAM."""

    tokens: int
    host: bool = False


KV_CASES = {"A": KvCase(624_000), "B": KvCase(1_360_000), "C": KvCase(624_000, host=True)}
"""Source: facts/simulation-model.md section 1."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A pod and who sits at it. `seats`: developers; `hogs`: seats beside them with agents that never pause;
    `deadline_s`: None = nobody fails. `limits`: the shipped policy's, and its floor is everybody's measure."""

    seats: int
    kv: KvCase = KV_CASES["B"]
    hogs: int = 0
    hours: float = TABLE_HOURS
    deadline_s: float | None = 180.0
    limits: Limits = field(default_factory=Limits)
    pace: Pace = STUDY
    developer: Developer = agents.STUDY


@dataclass(frozen=True, slots=True)
class Trial:
    """What is simulated with several seeds. `kv_case`: the cache's name; None = the capacity was given."""

    policy: str
    scenario: Scenario
    kv_case: str | None


_SIZES = (("B", 19, 0), ("B", 28, 0), ("B", 40, 0), ("A", 28, 0), ("C", 40, 0), ("B", 17, 2), ("C", 17, 2))
_EVERYWHERE = (APPLIANCE, "recommended", "fifo-cap-4")
_IN_THREE = ("none", "round-robin", "vtc")
_THREE = (("B", 28, 0), ("B", 40, 0), ("B", 17, 2))


def table(hours: float) -> list[Trial]:
    """The shipped policy and the two that matter most beside it everywhere, the others where they differ."""
    asked = [(policy, size) for policy in _EVERYWHERE for size in _SIZES]
    asked += [(policy, size) for policy in _IN_THREE for size in _THREE]
    return [Trial(policy, Scenario(seats, KV_CASES[case], hogs, hours), case) for policy, (case, seats, hogs) in asked]


def is_policy(name: str) -> bool:
    """Whether there is one of that name."""
    return name in (APPLIANCE, "none", *_LINES) or _FIFO.fullmatch(name) is not None


def policy_of(name: str, scenario: Scenario) -> Callable[[Parts], Policy]:
    """What makes the policy of that name. Raises MoeError if there is none."""
    cap, deadline_s = scenario.limits.streams, scenario.deadline_s
    if not is_policy(name):
        raise MoeError(f"there is no policy {name[:64]!r}", f"take one or more of --policy {', '.join(POLICIES)}")
    if name == APPLIANCE:
        limits = replace(scenario.limits, queue_deadline_s=inf if deadline_s is None else deadline_s)
        return lambda parts: Shipped(parts, limits)
    if name == "none":
        return lambda parts: Line(parts, None, deadline_s)
    if (fifo := _FIFO.fullmatch(name)) is not None:
        return lambda parts: Line(parts, int(fifo[1]), deadline_s)
    return lambda parts: _LINES[name](parts, cap, deadline_s)


def simulate_day(scenario: Scenario, policy: str, seed: int) -> Day:
    """One day. The same arguments give the same day. Raises MoeError for a policy that there is none of."""
    kv = Kv(scenario.kv.tokens, host=scenario.kv.host)
    pod = Pod(agents_of(scenario, seed), kv, scenario.pace, policy_of(policy, scenario))
    pod.run(scenario.hours * 3600)
    return day_of(pod.ended, scenario.limits.floor_tok_per_s, scenario.hours, pod.refused)


def agents_of(scenario: Scenario, seed: int) -> list[Agent]:
    """Who sits at the pod: developers, then the agents of hogs."""
    made = [Agent(seed, index, f"seat-{index + 1}", scenario.developer) for index in range(scenario.seats)]
    nonstop = replace(scenario.developer, think_s=0.0)
    for hog in range(scenario.hogs):
        first = scenario.seats + hog * AGENTS_OF_HOG
        made += [Agent(seed, first + at, f"hog-{hog + 1}", nonstop, hog=True) for at in range(AGENTS_OF_HOG)]
    return made
