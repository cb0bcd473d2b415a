"""What the plan and the engine want of the box, for the checks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.state import BudgetBar, Finding


@dataclass(frozen=True, slots=True)
class Needs:
    """Nothing is needed unless it is said; the empty value is what the embedded engine needs.

    `gpus`: cards; 0 = the engine runs without one. `gpu_names`: parts of the names of cards that will do, none = any.
    `capability`: least compute capability. `bars`: the budget, `gpu0`.. in the order of the engine's cards,
    and `node0`.. or `host`.
    `largest_region_bytes`: the largest piece of host memory that is pinned in one call. `own_pids`: processes of our
    engine when it is loaded already: what they hold counts as free, and host memory is not judged again. `visible`: the
    cards that the engine may see, as CUDA_VISIBLE_DEVICES names them (an index or the beginning of a UUID), None = all.
    `plan`: its name; `plan_id`: which plan it is. `kv_tier_bytes`: what it counts for a KV tier in host RAM.
    """

    gpus: int = 0
    gpu_names: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    bars: tuple[BudgetBar, ...] = ()
    largest_region_bytes: int | None = None
    own_pids: frozenset[int] = frozenset()
    visible: tuple[str, ...] | None = None
    plan: str = ""
    plan_id: str = ""
    kv_tier_bytes: int = 0

    def bar(self, name: str) -> BudgetBar | None:
        """The bar of a card or a node, None when the plan says nothing about it."""
        return next((bar for bar in self.bars if bar.id == name), None)

    @property
    def host_bars(self) -> tuple[BudgetBar, ...]:
        """Those of host memory."""
        return tuple(bar for bar in self.bars if not bar.id.startswith("gpu"))


@dataclass(frozen=True, slots=True)
class Wants:
    """`needs`, and what others than the box's checks have found already: the plan's own checks, the engine's."""

    needs: Needs
    findings: tuple[Finding, ...] = ()
