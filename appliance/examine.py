"""Looks at everything that speaks for or against a start: the box, the plan and its checkpoint, the engine's own needs.

One look for the daemon, `moe-appliance check` and `moe-appliance preflight`. Touches what preflight.py and
inspect_child.py touch; blocks for up to a minute where a file system hangs: call it in a thread.

Rules:
- Cards, nodes and kernel are looked at only when a plan or `[preflight] gpus` says that the engine needs cards, or when
  somebody asks for it: the embedded engine runs on a laptop.
- Nothing is raised for what is wrong with the box, the plan or the checkpoint: all of it is findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance.box import preflight
from appliance.box.checks import IDS, admission_streams, kept, listen_plain, seen_of
from appliance.box.facts import Facts
from appliance.box.gpu import GpuReport, Outcome
from appliance.box.needs import Wants
from appliance.box.preflight import Deep
from appliance.box.report import Preflight
from appliance.config import Config, Paths, listen_address
from appliance.engine import host_kv
from appliance.engine.adapter import Adapter
from appliance.engine.examined import Examined
from appliance.engine.planned import beyond_validated, planned
from appliance.engine.settings import DeclaredSettings, EmbeddedSettings, ExternalSettings, SpawnedSettings
from appliance.engine.vllm.adapter import VllmEngine
from appliance.engine.vllm.settings import VllmSettings, is_folder
from appliance.plan.check import PLAN_IDS
from appliance.plan.inspect_child import inspected
from appliance.plan.inspection import Inspection, Question
from appliance.plan.memory import of_box as memory_of
from appliance.plan.nodes import placed_bytes
from gateway.state import EngineProfile, Finding

ROOT = "/"
"""Where /proc, /sys and /dev are; tests give a folder."""
FINDING_IDS = IDS | PLAN_IDS
"""All that can be forced."""


@dataclass(slots=True)
class Examiner:
    """One box. `environ`: for the children that ask the driver. `saves_plans`: a plan that is made is kept. `of_box`:
    somebody asks about the box itself, so that with cards in it nothing is said of the demo's engine.
    `inspection`: what the last look found of the plan."""

    config: Config
    paths: Paths
    adapter: Adapter
    environ: Mapping[str, str]
    root: Path = field(default_factory=lambda: Path(ROOT))
    own_pids: frozenset[int] = frozenset()
    saves_plans: bool = False
    of_box: bool = False
    inspection: Inspection = field(default_factory=Inspection)

    @property
    def wants_cards(self) -> bool:
        """Whether the engine needs cards, by the configuration."""
        return self.config.plan.file is not None or self.config.preflight.gpus > 0 or self._own_cards > 0

    @property
    def _own_cards(self) -> int:
        """Cards that the engine itself is told to use; 0 = it is not told."""
        return self.adapter.cards_wanted() if isinstance(self.adapter, VllmEngine) else 0

    @property
    def profile(self) -> EngineProfile:
        """What the engine is taken to do, by the configuration and the plan of the last look."""
        return planned(self.config.engine, self.adapter.profile, self.inspection.profile)

    def examine(self) -> Examined:
        """What must be known before a start."""
        look = replace(self)  # a cancelled look may still be going on in its thread
        if self.wants_cards:
            seen = look.preflight()
        else:
            seen = preflight.run_small(
                self.paths.state_dir, look.wants, listen_host=listen_address(self.config)[0], root=self.root
            )
        return Examined(seen.findings, look.inspection.state, look.profile, self._model)

    @property
    def _model(self) -> str:
        """The folder of the checkpoint, as far as the configuration names one."""
        engine, planned_for = self.config.engine, self.config.plan.checkpoint
        if isinstance(engine, VllmSettings) and engine.model is not None:
            return engine.model if is_folder(engine.model) else ""
        return "" if planned_for is None else str(planned_for)

    def preflight(self, *, deep: Deep | None = None, deadline_s: float | None = None) -> Preflight:
        """The whole look, cards and all; kept in the state folder."""
        return preflight.run(
            self.paths.state_dir,
            self.wants,
            listen_host=listen_address(self.config)[0],
            root=self.root,
            environ=self.environ,
            secret_files=(self.paths.seats_file, self.paths.admins_file),
            deadline_s=deadline_s,
            deep=deep,
        )

    def wants(self, facts: Facts) -> Wants:
        """What plan and engine want of the box, and what is wrong with them themselves."""
        report = facts.gpus if facts.gpus is not None else GpuReport(Outcome.NO_DRIVER)
        visible = self._visible()
        cards = seen_of(report.gpus, visible)[: self.config.preflight.gpus or None]
        wanted = self.config.preflight.gpus or None
        question = Question(
            self.config.plan,
            memory_of(replace(report, gpus=cards), facts.host),
            cards=wanted,
            whole=report.outcome is Outcome.OK and (wanted is not None or not report.lost),
            save=self.saves_plans,
            uva=isinstance(self.adapter, VllmEngine) and self.adapter.settings.placement == "uva",
        )
        self.inspection = found = inspected(question, self.environ)
        if isinstance(self.adapter, VllmEngine):
            self.adapter.uva = found.uva
            self.adapter.planned_host_bytes = placed_bytes(found.state.bars) if found.state else None
        gpus = self.config.preflight.gpus or found.needs.gpus or self._own_cards
        needs = replace(found.needs, gpus=gpus, own_pids=self._own_pids(report), visible=visible)
        return Wants(needs, found.findings + self._whatever_the_cards(facts) + self._host_kv(facts))

    def _host_kv(self, facts: Facts) -> tuple[Finding, ...]:
        """Whether the KV tier in host RAM is in the plan, or fits into what is free where no plan counts it."""
        tier, needs = self.adapter.host_tier, self.inspection.needs
        if needs.plan_id:
            told = isinstance(self.config.engine, SpawnedSettings)
            return kept(host_kv.fits_plan(tier, needs.kv_tier_bytes)) if told else ()
        if tier is None or self.own_pids:
            return ()
        return kept(host_kv.fits_memory(tier, facts.mem_available_bytes))

    def _visible(self) -> tuple[str, ...] | None:
        """The cards that the engine may see, by its environment; an engine that somebody else starts has its own."""
        engine = self.config.engine
        if isinstance(engine, ExternalSettings):
            return None
        env = engine.env if isinstance(engine, SpawnedSettings) else {}
        named = env.get("CUDA_VISIBLE_DEVICES", self.environ.get("CUDA_VISIBLE_DEVICES"))
        return None if named is None else tuple(name.strip() for name in named.split(","))

    def _own_pids(self, report: GpuReport) -> frozenset[int]:
        """An engine that somebody else runs is loaded already, and which processes are its own only they know."""
        if not isinstance(self.config.engine, ExternalSettings):
            return self.own_pids
        return frozenset(process.pid for gpu in report.gpus for process in gpu.processes)

    def _whatever_the_cards(self, facts: Facts) -> tuple[Finding, ...]:
        declared = isinstance(self.config.engine, DeclaredSettings)
        profile = self.profile
        streams = admission_streams(self.config.admission.streams, profile.streams, declared=declared)
        cap = beyond_validated(profile.streams, self.inspection.profile)
        found = kept(listen_plain(facts), streams, cap)
        demo = isinstance(self.config.engine, EmbeddedSettings)
        if demo and self.of_box and facts.gpus is not None and facts.gpus.gpus:
            return found
        return found + self.adapter.findings(facts)
