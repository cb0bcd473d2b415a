"""What is known of a run that its log does not say. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from appliance.box.host import Xid


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """The fullest card of the plan, bytes. `needed_bytes`: weights, reserves and KV; `card_bytes`: the smallest card's;
    `expert_bytes`: what one expert takes of a card, 0 = not known; `cold_experts`: those in host RAM, of `experts`.
    `remake`: the command that makes the plan anew, without a number of experts."""

    needed_bytes: int
    card_bytes: int
    cold_experts: int
    experts: int
    expert_bytes: int
    remake: str

    @property
    def short_bytes(self) -> int:
        """What the plan wants beyond the card."""
        return max(0, self.needed_bytes - self.card_bytes)

    def experts_for(self, short_bytes: int) -> int:
        """How many more experts must leave the cards to gain so much on each; 0 = nobody can tell."""
        if self.expert_bytes <= 0:
            return 0
        more = ceil(short_bytes / self.expert_bytes)
        return more if self.cold_experts + more <= self.experts else 0


@dataclass(frozen=True, slots=True)
class OomKill:
    """A process of the engine that the kernel killed for memory. `cgroup`: for the limit of its group, not for want of
    memory in the machine; `resident_bytes`: what it held."""

    pid: int
    process: str
    resident_bytes: int = 0
    cgroup: bool = False


@dataclass(frozen=True, slots=True)
class VramHolder:
    """A process that holds memory of a card. `ours`: an engine process of this appliance."""

    pid: int
    command: str
    bytes: int
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """What the log does not say. All of it is optional.

    `command`: the program that was started, argv[0]. `environment`: the name of the engine's Python environment.
    `model`: the folder of the checkpoint. `served`: it was READY before. `context_tokens` and `streams`: what it was
    told to serve. `xids`: what the kernel said of the cards during this run, oldest first. `holders`: who held memory
    of the cards before the start, and lives. `runtime_dir`: where the record of a run is.
    """

    command: str = "the engine"
    environment: str = ""
    model: str = ""
    plan: PlanFigures | None = None
    xids: tuple[Xid, ...] = ()
    oom_killed: OomKill | None = None
    holders: tuple[VramHolder, ...] = ()
    served: bool = False
    context_tokens: int | None = None
    streams: int | None = None
    runtime_dir: str = "runtime_dir"
