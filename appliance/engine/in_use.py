"""The pair in use: what it makes of the configuration, kept on disk, with the way back. Touches the state folder.

Rule: what is decided is on disk before anything is done about it. A disk that does not take it is no reason to stop:
the next daemon knows less then, and that is logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance.engine import environments, pairs, pairs_kept
from appliance.engine.adapter import Adapter
from appliance.engine.environments import Environment
from appliance.engine.examined import Examined
from appliance.engine.pairs import Pairs
from appliance.printable import printable
from gateway.logs import Log
from gateway.state import Cause, Finding, Pair, Reverted, Severity


@dataclass(frozen=True, slots=True)
class Composed:
    """What a pair makes of the configuration: the engine's adapter, and the look at the box that goes with it."""

    adapter: Adapter
    examine: Callable[[], Examined]


@dataclass(slots=True)
class InUse:
    """One per daemon. `compose` gives what serves with a pair; raises ConfigError where it has no place in the
    configuration. `toml`: what appliance.toml says of the two. A trial is judged by the starts that `composed` was
    asked for: the end of one from before it is none of its own."""

    state_dir: Path
    toml: Pair
    compose: Callable[[Pair], Composed]
    log: Log
    pairs: Pairs = field(init=False)
    _composed: bool = False
    _serves_in: str = ""

    def __post_init__(self) -> None:
        kept = pairs_kept.load(self.state_dir) or Pairs(toml=self.toml)
        self.pairs = pairs.found(kept, self.toml, time.time())
        if self.pairs.toml != kept.toml:
            dropped = printable(kept.current.shown)
            self.log.warning("engine.pair_unkept", error=f"appliance.toml was edited: {dropped} is in use no more")
        if self.pairs != kept:
            self._keep()

    def composed(self) -> Composed:
        """What the current pair makes of the configuration, for a start. Raises ConfigError."""
        self._composed = True
        return self.compose(self.meant(self.pairs.current))

    def meant(self, pair: Pair) -> Pair:
        """`pair` with the very environment that a start of it takes. Raises ConfigError."""
        return pairs.meant(self.pairs, pair, self.compose(pair).adapter.environment)

    def forget(self) -> None:
        """What appliance.toml says is in use, whatever was chosen before."""
        self._set(Pairs(toml=self.toml, served=self.pairs.served))

    def with_(self, plan_file: str | None, environment: str | None) -> Pair:
        """The pair in use, on trial or not, with one half of it replaced; None leaves a half as it is."""
        now = self.pairs.current
        return Pair(plan_file=plan_file or now.plan_file, environment=environment or now.environment)

    def is_settled(self, pair: Pair) -> bool:
        """Whether `pair` is what is in use, and no longer on trial. Raises ConfigError."""
        return self.pairs.before is None and self.meant(pair) == self.meant(self.pairs.current)

    def try_(self, pair: Pair, *, prove: bool, serves_in: str = "") -> None:
        """`pair` is on trial from now on. `serves_in`: id of the environment that serves now: its name may mean a newer
        one already, and the way back leads to what served. Raises ConfigError."""
        was = self.pairs
        if was.before is None and serves_in and self._environment(pair) != serves_in:
            was = replace(was, current=was.current.model_copy(update={"environment": serves_in}))
        self._composed = False
        self._set(pairs.tried(was, pair, prove=prove))

    def _environment(self, pair: Pair) -> str:
        """Id of the environment that `pair` means now; a name that means none stays one."""
        name = self.compose(self.meant(pair)).adapter.environment
        found = environments.find(self.state_dir, name)
        return name if found is None else found.id

    def began(self) -> None:
        """A start begins."""
        self._set(pairs.began(self.pairs))

    def stopped(self) -> None:
        """The box is being stopped."""
        self._set(pairs.stopped(self.pairs))

    def served(self, environment: str) -> None:
        """The engine is READY in `environment`, an id; "" = in none of ours. One that its id does not lead to (its name
        is a link to elsewhere) is not kept."""
        self._serves_in = environment if environments.find(self.state_dir, environment) is not None else ""
        self._set(pairs.served(self.pairs, self._serves_in))

    def settled(self) -> None:
        """The engine has been READY for long enough."""
        if self._composed:
            self._set(pairs.served(pairs.settled(self.pairs), self._serves_in))

    def ended(self, cause: Cause) -> bool:
        """A start ended or was refused for `cause`; True = that ended a trial, and what is in use now is to be
        started."""
        was = self.pairs
        if self._composed:
            self._set(pairs.ended(was, cause, time.time()))
        if self.pairs == was:
            return False
        self.log.warning("engine.reverted", cause=cause.id, title=cause.title)
        return True

    def findings(self) -> tuple[Finding, ...]:
        """`engine.reverted`: the last pair that was tried did not come to serve. `engine.newer`: what is in use is not
        the last installation of its engine."""
        told, now = self.pairs.reverted, self.meant(self.pairs.current).environment or ""
        newer = environments.newer(self.state_dir, now)
        if newer is not None and told is not None and told.tried.environment == newer.id:
            newer = None
        return (*(() if told is None else (_reverted(told),)), *(() if newer is None else (_newer(newer, now),)))

    def _set(self, wanted: Pairs) -> None:
        if wanted != self.pairs:
            self.pairs = wanted
            self._keep()

    def _keep(self) -> None:
        try:
            pairs_kept.save(self.state_dir, self.pairs)
        except OSError as error:
            self.log.warning("engine.pair_unkept", error=str(error))


def _reverted(told: Reverted) -> Finding:
    return Finding(
        id="engine.reverted",
        severity=Severity.WARN,
        title="What was tried last did not come to serve; what served before serves again",
        observed=f"{told.tried.shown}: {told.cause.title}",
        required="an engine that is ready, and stays so for 5 minutes",
        remedy=told.cause.remedy,
    )


def _newer(newer: Environment, now: str) -> Finding:
    return Finding(
        id="engine.newer",
        severity=Severity.INFO,
        title="What is in use is not the last installation of the engine",
        observed=f"{printable(now)} is in use, {newer.id} was installed last",
        required="what is in use stays until another one is tried",
        remedy=f"moe-appliance engine use {newer.name}   goes back by itself if it does not come to serve",
    )
