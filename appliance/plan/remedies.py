"""The commands that findings about a plan end with. Pure."""

from __future__ import annotations

from math import ceil, floor
from shlex import quote

from appliance.checkpoint.tensors import Checkpoint
from appliance.plan.budget import Budget
from appliance.plan.schema import Plan
from appliance.printable import printable
from appliance.units import GIB


def smallest_card(made: Budget) -> int:
    """The memory of the smallest card that is there, bytes; 0 without any."""
    return min((bar.capacity_bytes for bar in made.gpus if bar.capacity_bytes is not None), default=0)


def quoted(origin: str) -> str:
    """Where a checkpoint was read, for a command line."""
    return printable(quote(origin), 4000)


def make_command(
    plan: Plan, checkpoint: Checkpoint, made: Budget, *, gpus: int | None = None, max_host_gib: int | None = None
) -> str:
    """The command that makes such a plan anew for this checkpoint and these cards. `gpus`: for another number of them;
    `max_host_gib`: with another bound on pinned memory than the plan's."""
    words = ["moe-appliance plan make --checkpoint", quoted(checkpoint.origin), f"--gpus {gpus or plan.topology.tp}"]
    if smallest_card(made):
        words.append(f"--vram-gib {_hundredths(smallest_card(made)):.12g}")
    words.append(f"--kv-gib {ceil(made.kv_bytes * 100 / GIB) / 100:.12g}")
    most = plan.limits.max_host_bytes
    if max_host_gib is not None or most is not None:
        words.append(f"--max-host-gib {max_host_gib or _hundredths(most or 0):.12g}")
    if plan.host.engram is not None and plan.host.engram.mode != "pinned":
        words.append(f"--engram {plan.host.engram.mode}")
    words += ["--vision"] * plan.targets.vision + ["--no-draft"] * (not plan.targets.draft)
    words += ["--whole-layers"] * plan.limits.whole_layers
    return " ".join((*words, "--out plan.json"))


def _hundredths(count: int) -> float:
    """Bytes as GiB, rounded down to hundredths."""
    return floor(count * 100 / GIB) / 100
