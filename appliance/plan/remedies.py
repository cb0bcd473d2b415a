"""The commands that findings about a plan end with. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor
from shlex import quote

from appliance.checkpoint.catalogue import TensorClass
from appliance.checkpoint.tensors import Checkpoint
from appliance.plan.budget import Budget
from appliance.plan.cards import WEIGHTS
from appliance.plan.schema import Plan
from appliance.printable import printable
from appliance.units import GIB

_SELECT = {
    "uniform": "",
    "layers": "--layers LAYERS",
    "manual": "--list FILE",
    "routing-stats": "--select routing-stats --stats FILE",
}
"""How experts were chosen, as options; a plan does not say from which file, or in which order."""


def smallest_card(made: Budget) -> int:
    """The memory of the smallest card that is there, bytes; 0 without any."""
    return min((bar.capacity_bytes for bar in made.gpus if bar.capacity_bytes is not None), default=0)


def quoted(text: str) -> str:
    """A name or a path, for a command line."""
    return printable(quote(text), 4000)


def short_name(checkpoint: Checkpoint) -> str:
    """What the model is called when nobody says: the last part of where it was read."""
    return checkpoint.origin.rstrip("/").rpartition("/")[2] or checkpoint.origin


@dataclass(frozen=True, slots=True)
class Remake:
    """Writes the command that makes such a plan anew for this checkpoint and these cards. `file`: of the plan; None =
    not known. `other`: the checkpoint is another one than the plan's; what was said of that one is left out then."""

    plan: Plan
    checkpoint: Checkpoint
    made: Budget
    file: str | None = None
    other: bool = False

    def command(self, *, gpus: int | None = None, max_host_gib: int | None = None, keep_experts: bool = False) -> str:
        """`gpus`: for another number of them; `max_host_gib`: with another bound on pinned memory than the plan's;
        `keep_experts`: with as many experts in host RAM as the plan has, when the cards hold the rest. Without it, as
        many as it takes."""
        plan = self.plan
        words = ["moe-appliance plan make --checkpoint", quoted(self.checkpoint.origin)]
        words.append(f"--gpus {gpus or plan.topology.tp}")
        if smallest_card(self.made):
            words.append(f"--vram-gib {_hundredths(smallest_card(self.made)):.12g}")
        words += kv_words(plan)
        most = plan.limits.max_host_bytes
        if max_host_gib is not None or most is not None:
            words.append(f"--max-host-gib {max_host_gib or _hundredths(most or 0):.12g}")
        words += filter(None, [_SELECT[plan.selection.method]])
        if keep_experts and self._number_is_meant():
            words.append(f"--experts {plan.cold_count}")
        words += self._placed()
        words += _targets(plan)
        if not self.other:
            words += self._called(measured=gpus in (None, plan.topology.tp))
        words.append("--out plan.json" if self.file is None else f"--out {quoted(self.file)} --overwrite")
        return " ".join(words)

    def _number_is_meant(self) -> bool:
        """Whether the plan's number of experts means something here; a list says it itself."""
        plan = self.plan
        fits = not (self.other or self.made.short_bytes)
        return fits and plan.cold_count > 0 and plan.selection.method != "manual"

    def _placed(self) -> Iterator[str]:
        """Where Engram is, if there is some, and that the embedding stayed when experts went."""
        engram = self.plan.host.engram
        on_card = {line.id: line.bytes for line in self.made.gpus[0].lines}
        if engram is not None and engram.mode != "pinned" and WEIGHTS + TensorClass.ENGRAM in on_card:
            yield f"--engram {engram.mode}"
        movable = on_card.get(WEIGHTS + TensorClass.EMBEDDING) and WEIGHTS + TensorClass.HEAD in on_card
        if movable and self.plan.cold_count and not self.plan.host.tensors:
            yield "--keep-embedding"

    def _called(self, *, measured: bool) -> Iterator[str]:
        """The model's name, and the validated cap unless it was `measured` on other cards."""
        name = self.plan.model.name
        if measured:
            yield from _profile(self.plan)
        if name != short_name(self.checkpoint):
            yield f"--name {quoted(name)}"


def by_counts(plan: Plan, checkpoint: str | None, counts: str) -> str:
    """The command that makes a plan for what `plan` is for, by a file of visits and for the cards that are there.
    `checkpoint` None = not known."""
    words = ["sudo moe-appliance plan make --checkpoint", "PATH" if checkpoint is None else quoted(checkpoint)]
    words += [f"--gpus {plan.topology.tp}", *kv_words(plan)]
    if plan.limits.max_host_bytes is not None:
        words.append(f"--max-host-gib {_hundredths(plan.limits.max_host_bytes):.12g}")
    words += ["--keep-embedding"] * (plan.cold_count > 0 and not plan.host.tensors)
    words += [*_targets(plan), *_profile(plan), f"--name {quoted(plan.model.name)}"]
    words += [f"--select routing-stats --stats {quoted(counts)}", "--out plan-by-counts.json --overwrite"]
    return " ".join(words)


def _targets(plan: Plan) -> list[str]:
    """What is to run, as options."""
    words = ["--vision"] * plan.targets.vision + ["--no-draft"] * (not plan.targets.draft)
    return words + ["--whole-layers"] * plan.limits.whole_layers


def _profile(plan: Plan) -> list[str]:
    """The validated cap, as options."""
    if plan.profile is None:
        return []
    validated = [f"--validated {quoted(plan.profile.validated)}"] if plan.profile.validated else []
    return [f"--cap {plan.profile.streams}", *validated]


def kv_words(plan: Plan) -> list[str]:
    """What the plan keeps free for the KV cache, as options."""
    targets = plan.targets
    if targets.kv_bytes is None:
        return [f"--streams {targets.streams} --context {targets.context_tokens}"]
    return [f"--kv-gib {ceil(targets.kv_bytes * 100 / GIB) / 100:.12g}"]


def _hundredths(count: int) -> float:
    """Bytes as GiB, rounded down to hundredths."""
    return floor(count * 100 / GIB) / 100
