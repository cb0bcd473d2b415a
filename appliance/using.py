"""Puts another plan or engine environment into use, as `plan use` and `engine use` ask: checks, then has it tried.

Touches the plan that is named, the state folder, and what a look at the box touches. Rules:
- Nothing is changed while anything speaks against the pair: the engine that serves goes on.
- Our own engine's memory speaks against nothing: it is given back before the start.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.box.probe_host import family
from appliance.config import Config, Paths
from appliance.engine import pairs, pairs_kept
from appliance.engine.adapter import Adapter
from appliance.engine.environments import find
from appliance.engine.in_use import Composed, InUse
from appliance.engine.settings import EmbeddedSettings, ExternalSettings
from appliance.engine.vllm.place import environment_name
from appliance.engine.vllm.profiles import PROFILES
from appliance.engine.vllm.settings import VllmSettings
from appliance.errors import ConfigError, MoeError
from appliance.examine import Examiner
from appliance.plan import planfile
from appliance.printable import printable
from appliance.unwaited import unwaited
from gateway.logs import Log
from gateway.state import Finding, Pair, Severity

Said = tuple[int, Mapping[str, object]]
STOPPING: Said = (
    409,
    {
        "said": "the box is being stopped, and nothing is started any more",
        "error": "the box is being stopped",
        "remedy": "start it, then run the same command again",
    },
)


@dataclass(frozen=True, slots=True)
class Using:
    """One per daemon. `adapter_of`: what a configuration makes of the engine."""

    config: Config
    paths: Paths
    adapter_of: Callable[[Config, Paths], Adapter]
    log: Log

    def in_use(self) -> InUse:
        """What is in use at the start of this daemon. A kept pair that has no place in the configuration any more is
        forgotten."""
        found = InUse(self.paths.state_dir, _of_toml(self.config), self.compose, self.log)
        try:
            found.composed()
        except ConfigError as error:
            self.log.warning("engine.pair_unkept", error=error.message)
            found.forget()
        return found

    def compose(self, pair: Pair) -> Composed:
        """The adapter and the look of a pair. Raises ConfigError."""
        examiner = self._examiner(pair, frozenset())
        return Composed(examiner.adapter, examiner.examine)

    def _examiner(self, pair: Pair, own_pids: frozenset[int]) -> Examiner:
        config = with_pair(self.config, pair)
        adapter = self.adapter_of(config, self.paths)
        return Examiner(config, self.paths, adapter, os.environ, own_pids=own_pids, saves_plans=True)

    async def pair(self, in_use: InUse, asked: Mapping[str, str], *, serves: bool) -> Pair | Said:
        """The pair that is asked for: `plan` (a path) or `environment` (a name); neither = what is in use. Or the
        answer that says why not. `serves`: what is in use does."""
        try:
            return await unwaited(lambda: self._checked(in_use, asked, serves))
        except MoeError as error:
            findings = [_line(found) for found in getattr(error, "findings", ())]
            return 409, {"error": error.message, "remedy": error.remedy, "findings": findings}
        except OSError as error:
            return 409, {"error": str(error), "remedy": "df -h; ls -ld the state folder"}

    def _checked(self, in_use: InUse, asked: Mapping[str, str], serves: bool) -> Pair:
        """Raises MoeError and OSError."""
        named, environment = asked.get("plan"), asked.get("environment")
        if environment is not None:
            environment = _known(self.paths.state_dir, self.config, environment)
        plan = planfile.load(Path(named)) if named else None
        copy = pairs_kept.keep_plan(self.paths.state_dir, plan, Path(named)) if plan is not None and named else None
        pair = in_use.with_(_text(copy), environment)
        if serves and "prove" not in asked and in_use.is_settled(pair):
            raise MoeError(
                f"it serves with {pair.shown} already", "moe-appliance engine prove, or moe-appliance restart"
            )
        looked = self._examiner(in_use.meant(pair), family(Path("/"), os.getpid())).examine()
        failed = [found for found in looked.findings if found.severity is Severity.FAIL]
        if failed:
            raise _Refused(tuple(failed))
        return pair


class _Refused(MoeError):
    def __init__(self, findings: tuple[Finding, ...]) -> None:
        first = findings[0]
        super().__init__(f"{first.title}: {first.observed}", first.remedy)
        self.findings = findings


def with_pair(config: Config, pair: Pair) -> Config:
    """The configuration with a pair in it. Raises ConfigError where it has no place for one."""
    if pair.plan_file is not None and isinstance(config.engine, EmbeddedSettings | ExternalSettings):
        raise ConfigError(
            f'[engine] kind = "{config.engine.kind}" takes no plan',
            'a plan is for an engine that is started here: [engine] kind = "vllm" or "command"',
        )
    update: dict[str, object] = {}
    if pair.plan_file is not None:
        update["plan"] = config.plan.model_copy(update={"file": Path(pair.plan_file)})
    if pair.environment is not None:
        if not isinstance(config.engine, VllmSettings) or config.engine.python is not None:
            raise ConfigError(
                "the engine of appliance.toml runs in no environment of ours",
                'environments are for [engine] kind = "vllm" without python',
            )
        update["engine"] = config.engine.model_copy(update={"environment": pair.environment})
    return config.model_copy(update=update)


def as_used(config: Config, paths: Paths) -> Config:
    """What the engine's next start is made of: the configuration with the pair in use, as it is kept. For those who
    only look; raises nothing."""
    kept = pairs_kept.load(paths.state_dir)
    if kept is None:
        return config
    current = kept.current if kept.toml == _of_toml(config) else Pair()
    try:
        name = _environment(with_pair(config, current))
        return with_pair(config, pairs.meant(kept, current, name))
    except ConfigError:
        return config


def said_of(pair: Pair, streams: int, drain_s: float) -> str:
    """What the person who asked is told."""
    wait = f"; {streams} running streams may end for {drain_s:g} s" if streams else ""
    return f"{pair.shown} is tried now{wait}"


def _known(state_dir: Path, config: Config, name: str) -> str:
    """The id of an environment: its name may mean another one after the next `engine install`."""
    with_pair(config, Pair(environment=name))
    found = find(state_dir, name)
    if found is None:
        raise MoeError(f"there is no environment {printable(name)} here", "moe-appliance engine list")
    return found.id


def _environment(config: Config) -> str:
    """What the engine runs in, as the configuration says it; "" = in none of ours."""
    engine = config.engine
    if not isinstance(engine, VllmSettings) or engine.python is not None:
        return ""
    return environment_name(engine, PROFILES[engine.profile])


def _of_toml(config: Config) -> Pair:
    environment = config.engine.environment if isinstance(config.engine, VllmSettings) else None
    return Pair(plan_file=_text(config.plan.file), environment=environment)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _line(found: Finding) -> str:
    return f"{found.id}: {found.title}: {found.observed}; wanted: {found.required}; {found.remedy}"
