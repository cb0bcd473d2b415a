"""Which plan and engine environment serve together: the pair in use, one on trial, and the way back. Pure.

Rules:
1. `Pair()` is what appliance.toml says. Another pair, chosen with `plan use` or `engine use`, holds for as long as
   appliance.toml says what it said then: an edited file wins.
2. A trial has one start. It is good once that start was READY for `SETTLED_S`: an engine with wrong blocks dies at its
   first request. Until then the pair before it is kept.
3. A start of a trial that ends before leads back to the pair before, once, and `reverted` says why until the next
   `use`. Going back is no trial: should that pair fail too, it fails as any engine does.
4. `NOT_THE_PAIRS` say nothing of the pair: the trial goes on with the next start.
5. An installation that was never tried is not taken by a restart: where a pair says by its name alone which environment
   it runs in, that is the one of this name which served last, until `engine use` tries another.
6. A daemon that was killed while a pair was on trial goes back as well: nobody saw how it would have ended. After a
   stop in good order the trial begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.state import Cause, Pair, Reverted

SETTLED_S = 300.0
"""READY for so long makes a trial good. Source: lifecycle.STABLE_S, after which an engine counts as stable."""
NOT_THE_PAIRS = frozenset(
    {"engine.stopped", "engine.guard_lost", "engine.record_failed", "engine.vram_held", "engine.socket_gone"}
)
"""Ends that another pair would have met as well."""
INTERRUPTED = Cause(
    id="engine.trial_interrupted",
    title="The service was restarted while this was being tried, so nobody saw whether it works.",
    remedy="try it again when nothing else restarts the service",
)


@dataclass(frozen=True, slots=True)
class Pairs:
    """`toml`: what appliance.toml said when `current` was chosen. `before`: what a trial goes back to, None = nothing
    is on trial. `begun`: the trial's start has begun. `prove`: it must also serve two prompts of the longest length.
    `served`: id of the environment that served last and was not on trial, "" = none is known."""

    toml: Pair = field(default_factory=Pair)
    current: Pair = field(default_factory=Pair)
    before: Pair | None = None
    begun: bool = False
    prove: bool = False
    reverted: Reverted | None = None
    served: str = ""

    @property
    def trial(self) -> Pair | None:
        """The pair on trial."""
        return self.current if self.before is not None else None


def found(kept: Pairs, toml: Pair, now_s: float) -> Pairs:
    """What holds at the start of a daemon, by what was kept and what appliance.toml says now."""
    if kept.toml != toml:  # 1
        return Pairs(toml=toml, served=kept.served)
    if kept.before is not None and kept.begun:  # 6
        return _back(kept, INTERRUPTED, now_s)
    return kept


def meant(pairs: Pairs, pair: Pair, name: str) -> Pair:
    """`pair` with the very environment that it runs in; `name`: what the configuration makes of it, "" = none."""
    of = pairs.served.rpartition("-")[0]
    return pair.model_copy(update={"environment": pairs.served}) if of and of == name else pair  # 5


def served(pairs: Pairs, environment: str) -> Pairs:
    """The engine serves in `environment`, an id; "" = in none of ours."""
    return replace(pairs, served=environment) if environment and pairs.before is None else pairs


def tried(pairs: Pairs, pair: Pair, *, prove: bool = False) -> Pairs:
    """`pair` on trial; one that is on trial already was never good, so the way back stays."""
    before = pairs.current if pairs.before is None else pairs.before
    return replace(pairs, current=pair, before=before, begun=False, prove=prove, reverted=None)


def began(pairs: Pairs) -> Pairs:
    """A start of the current pair begins."""
    return replace(pairs, begun=True) if pairs.before is not None else pairs


def stopped(pairs: Pairs) -> Pairs:
    """The box is stopped in good order: a trial begins anew with the next daemon."""
    return replace(pairs, begun=False)


def settled(pairs: Pairs) -> Pairs:
    """The current pair was READY for SETTLED_S."""
    return replace(pairs, before=None, begun=False, prove=False) if pairs.before is not None else pairs


def ended(pairs: Pairs, cause: Cause, now_s: float) -> Pairs:
    """A start ended, or was refused, for `cause`; `now_s`: wall clock. The result's `current` is to be started next."""
    if pairs.before is None or cause.id in NOT_THE_PAIRS:  # 4
        return pairs
    return _back(pairs, cause, now_s)


def _back(pairs: Pairs, cause: Cause, now_s: float) -> Pairs:
    assert pairs.before is not None, "only a trial goes back"
    told = Reverted(tried=pairs.current, cause=cause, at_s=now_s)
    return replace(pairs, current=pairs.before, before=None, begun=False, prove=False, reverted=told)
