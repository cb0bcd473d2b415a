"""How vLLM is told which experts a plan moves to host RAM, and what of the plan would be lost. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.engine.vllm import beside_residency
from appliance.engine.vllm.arguments import draft_tokens, parse
from appliance.engine.vllm.flags import EnvVar, Flag
from appliance.engine.vllm.profiles import Profile
from appliance.engine.vllm.settings import VllmSettings
from appliance.errors import PlanError
from appliance.plan.export import exl3_command, residency
from appliance.plan.export.outcome import Outcome, engram_argv
from appliance.plan.schema import Plan
from appliance.printable import printable
from appliance.residency.decided import VLLM
from appliance.residency.document import FILE
from appliance.residency.options import FOLDER, FOLLOW, STAGING
from appliance.units import count
from gateway.state import Finding, Severity

ID = "engine.placement"
_ENGRAM = "--engram-config"
_SAID_MAX = 2000
_BY_EXPORT = "the plan, by plan export --to residency"
RESIDENCY_VLLM = tuple(map(int, VLLM.split(".")))
RESIDENT_WORKER = "moe_residency.worker.ResidentWorker"


@dataclass(frozen=True, slots=True)
class Placed:
    """Flags and variables for the plan, and what is to be said of them. `document`: what the residency plugin reads, to
    be put where `resident` says."""

    flags: tuple[Flag, ...] = ()
    env: tuple[EnvVar, ...] = ()
    findings: tuple[Finding, ...] = ()
    document: Mapping[str, object] | None = None


def placed(
    settings: VllmSettings,
    profile: Profile,
    plan: Plan | None,
    plan_file: str,
    uva: Outcome | None,
    version: tuple[int, ...],
    quantisation: str | None = None,
) -> Placed:
    """`uva`: the plan in the words of vLLM's own offload, by the checkpoint's headers; None = they were not read.
    `version`: of the vLLM that will run. `quantisation`: of the model, "" = none, None = it is not known."""
    if plan is None:
        return Placed()
    moved = plan.cold_count + plan.cold_draft_count
    match settings.placement:
        case "none":
            words = () if profile.engram_disk else engram_argv(plan)
            return Placed(_flags(words), findings=(_ignored(moved),) if moved else ())
        case "command":
            return _command(settings, plan, plan_file)
        case "uva":
            return _uva(settings, profile, uva)
        case "residency":
            return _residency(settings, profile, plan, version, quantisation)


def _command(settings: VllmSettings, plan: Plan, plan_file: str) -> Placed:
    try:
        outcome = exl3_command.export(plan, shlex.join(settings.plan_args), plan_file)
        if outcome.verdict == "impossible":
            return Placed(findings=(_cannot("command", outcome.reason, 'placement = "uva" or "none"'),))
        words = [word for flag in parse(outcome.argv) for word in (flag.name, *flag.values)]
    except PlanError as error:
        said = error.message.replace("--template", "[engine] plan_args")
        return Placed(findings=(_cannot("command", said, "[engine] plan_args"),))
    except ValueError as error:
        return Placed(findings=(_cannot("command", f"plan_{error}", "[engine] plan_args"),))
    return Placed(_flags(words, "what the operator's build is told of the plan", "[engine] plan_args"))


def _uva(settings: VllmSettings, profile: Profile, uva: Outcome | None) -> Placed:
    if uva is None:
        return Placed(findings=(_cannot("uva", "the checkpoint's headers were not read", "[plan] checkpoint"),))
    if uva.verdict == "impossible" or uva.needs:
        return Placed(findings=(_cannot("uva", uva.needs or uva.reason, "[plan] checkpoint, or another plan"),))
    env: tuple[EnvVar, ...] = ()
    if draft_tokens(settings.args, profile.speculative) != 0:
        why = "the second model runner, which a draft model brings with it, passes over the offload without a word"
        env = (EnvVar("VLLM_USE_V2_MODEL_RUNNER", "0", why, "vllm#48468"),)
    findings = (_nearly(uva),) if uva.verdict == "approximate" else ()
    flags = _flags(uva.argv, "whole layers of experts in pinned host RAM", "the plan, by plan export")
    if profile.engram_disk:
        flags = tuple(flag for flag in flags if flag.name != _ENGRAM)
    return Placed(flags, env, findings)


def _residency(
    settings: VllmSettings, profile: Profile, plan: Plan, version: tuple[int, ...], quantisation: str | None
) -> Placed:
    outcome = residency.export(plan)
    if outcome.document is None:
        return Placed(findings=(_cannot("residency", outcome.reason, 'placement = "uva" or "command"'),))
    if not profile.cuda or version != RESIDENCY_VLLM:
        why = f"the plugin is made for vLLM {_dotted(RESIDENCY_VLLM)} on cards, and this is {_dotted(version)}"
        return Placed(findings=(_cannot("residency", why, "[engine] environment or profile"),))
    if settings.tensor_parallel not in (None, plan.topology.tp):
        return Placed(findings=(_other_cards(settings, plan),))
    if found := sorted(beside_residency.clashes(settings)):
        why = f"does not go together with {', '.join(found)}"
        return Placed(findings=(_cannot("residency", why, f"[engine]: leave out {', '.join(found)}"),))
    why = "single experts are placed: cold rows in host RAM, read by vLLM's own kernels"
    worker = Flag("--worker-cls", (RESIDENT_WORKER,), why, _BY_EXPORT)
    backend = beside_residency.backend_flags(settings, quantisation)
    return Placed((worker, *backend), document=outcome.document)


def resident(settings: VllmSettings, document: Path, plugin: Path, written: Path) -> tuple[EnvVar, ...]:
    """Where the plugin is, the file that it reads, the folder that it writes into, and what it is told."""
    follow, tokens = str(settings.follow_mib_per_s), settings.staging_tokens
    why = "longer steps read cold experts from VRAM"
    staging = () if tokens is None else (EnvVar(STAGING, str(tokens), why, "[engine] staging_tokens"),)
    return (
        *staging,
        EnvVar(FILE, str(document), "which experts are cold", _BY_EXPORT),
        EnvVar(FOLDER, str(written), "counts, figures, and what is cold by now", "the appliance"),
        EnvVar(FOLLOW, follow, "MiB/s of the link to exchange experts with", "[engine] follow_mib_per_s"),
        EnvVar("PYTHONPATH", str(plugin), "the residency plugin, and nothing else", "the appliance"),
    )


def _other_cards(settings: VllmSettings, plan: Plan) -> Finding:
    cards, said = plan.topology.tp, settings.tensor_parallel
    return Finding(
        id=ID,
        severity=Severity.FAIL,
        title="The plan is for another number of cards",
        observed=f"the plan shares each expert among {count(cards, 'card')}; [engine] tensor_parallel = {said}",
        required="the same number in both",
        remedy=f"leave tensor_parallel out; or a plan for as many: moe-appliance plan make --gpus {said}",
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _flags(
    words: Sequence[str], why: str = "where the Engram tables are", source: str = "the plan"
) -> tuple[Flag, ...]:
    """vLLM's own offload is in the pinned release; what else is said of a plan only the operator's build knows."""
    stock = ("--offload-backend", "--cpu-offload-gb", "--cpu-offload-params")
    return tuple(
        Flag(one.name, one.values, why, source, "pinned" if one.name in stock else "operator") for one in parse(words)
    )


def _ignored(moved: int) -> Finding:
    return Finding(
        id=ID,
        severity=Severity.FAIL,
        title="The plan would be ignored",
        observed=f'the plan moves {count(moved, "expert")} to host RAM, and [engine] placement is "none"',
        required="an engine that is told of the plan",
        remedy='[engine] placement = "residency", "uva", or "command" with plan_args of your build; or no [plan] file',
    )


def _cannot(how: str, why: str, where: str) -> Finding:
    return Finding(
        id=ID,
        severity=Severity.FAIL,
        title="The engine cannot be told of the plan",
        observed=f'[engine] placement = "{how}": {printable(why, _SAID_MAX)}',
        required="a plan that reaches the engine whole",
        remedy=f"change {where}",
    )


def _nearly(uva: Outcome) -> Finding:
    figures = f" ({json.dumps(dict(uva.differs))})" if uva.differs else ""
    return Finding(
        id="engine.uva",
        severity=Severity.WARN,
        title="vLLM's own offload is only near the plan",
        observed=printable(uva.reason, _SAID_MAX) + figures,
        required="the experts that the plan names",
        remedy='nothing, if the figures still fit; else placement = "command" with a build that places single experts',
    )
