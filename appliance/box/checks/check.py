"""What a check is, and the words that checks share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from appliance.box.facts import Facts
from appliance.box.gpu import Gpu
from appliance.box.needs import Needs
from gateway.state import Finding

Judge: TypeAlias = Callable[[Facts, Needs], Finding | None]


@dataclass(frozen=True, slots=True)
class Check:
    """One check as docs/preflight.md tells of it. `judge`: None = an engine or the daemon judges it with figures of its
    own. `source`: where the rule or its threshold is from."""

    id: str
    severity: str
    measures: str
    threshold: str
    remedy: str
    source: str
    judge: Judge | None = None


def gpus_of(facts: Facts) -> tuple[Gpu, ...]:
    """The cards that answer."""
    return facts.gpus.gpus if facts.gpus is not None else ()


def used_of(facts: Facts, needs: Needs) -> tuple[Gpu, ...]:
    """The cards that the engine uses, in its order: the first that it may see, as many as it needs; all when that is
    not said. Others may hold what they like of the rest."""
    return seen_of(gpus_of(facts), needs.visible)[: needs.gpus or None]


def seen_of(gpus: Sequence[Gpu], visible: Sequence[str] | None) -> tuple[Gpu, ...]:
    """Those that `visible` names (see Needs), in its order. As CUDA has it, the first name that is nobody's ends the
    list. Source: CUDA C++ Programming Guide, environment variables."""
    if visible is None:
        return tuple(gpus)
    seen: list[Gpu] = []
    for name in visible:
        by_uuid = name.startswith("GPU-")
        found = [gpu for gpu in gpus if (gpu.uuid.startswith(name) if by_uuid else name == str(gpu.index))]
        if len(found) != 1 or found[0] in seen:
            break
        seen += found
    return tuple(seen)


def each(gpus: Iterable[Gpu], say: Callable[[Gpu], str]) -> str:
    """`gpu0 x8, gpu1 x4`: what is to be said of several cards, on one line."""
    return ", ".join(f"gpu{gpu.index} {say(gpu)}" for gpu in gpus)


def named(gpus: Iterable[Gpu]) -> str:
    """`gpu0 (0000:41:00.0), gpu1 (0000:81:00.0)`."""
    return each(gpus, lambda gpu: f"({gpu.bus_id})")
