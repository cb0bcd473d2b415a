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
from appliance.engine.examined import Examined
from appliance.engine.pairs import Pairs
from appliance.printable import printable
from gateway.logs import Log
from gateway.state import Cause, Finding, Pair, Severity


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
        return self.compose(self.pairs.current)

    def forget(self) -> None:
        """What appliance.toml says is in use, whatever was chosen before."""
        self._set(Pairs(toml=self.toml))

    def with_(self, plan_file: str | None, environment: str | None) -> Pair:
        """The pair in use, on trial or not, with one half of it replaced; None leaves a half as it is."""
        now = self.pairs.current
        return Pair(plan_file=plan_file or now.plan_file, environment=environment or now.environment)

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
        name = self.compose(pair).adapter.environment
        found = environments.find(self.state_dir, name)
        return name if found is None else found.id

    def began(self) -> None:
        """A start begins."""
        self._set(pairs.began(self.pairs))

    def stopped(self) -> None:
        """The box is being stopped."""
        self._set(pairs.stopped(self.pairs))

    def settled(self) -> None:
        """The engine has been READY for long enough."""
        if self._composed:
            self._set(pairs.settled(self.pairs))

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
        """`engine.reverted`: the last pair that was tried did not come to serve."""
        told = self.pairs.reverted
        if told is None:
            return ()
        return (
            Finding(
                id="engine.reverted",
                severity=Severity.WARN,
                title="What was tried last did not come to serve; what served before serves again",
                observed=f"{told.tried.shown}: {told.cause.title}",
                required="an engine that is ready, and stays so for 5 minutes",
                remedy=told.cause.remedy,
            ),
        )

    def _set(self, wanted: Pairs) -> None:
        if wanted != self.pairs:
            self.pairs = wanted
            self._keep()

    def _keep(self) -> None:
        try:
            pairs_kept.save(self.state_dir, self.pairs)
        except OSError as error:
            self.log.warning("engine.pair_unkept", error=str(error))
