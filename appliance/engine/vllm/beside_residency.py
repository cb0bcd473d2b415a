"""What the residency plugin asks of the rest of a vLLM's settings, before a model is loaded. Pure.

The plugin refuses the same and more once the engine runs (appliance/residency/vllm_0_26.py); here it costs no start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from appliance.engine.vllm.arguments import Argument, parse
from appliance.engine.vllm.flags import Flag
from appliance.engine.vllm.settings import VllmSettings
from gateway.state import Finding, Severity

REFUSED = frozenset(
    {
        "--cpu-offload-gb",
        "--data-parallel-size",
        "--enable-cumem-allocator",
        "--enable-dbo",
        "--enable-eplb",
        "--enable-expert-parallel",
        "--enable-lora",
        "--enable-sleep-mode",
        "--offload-backend",
        "--offload-group-size",
        "--pipeline-parallel-size",
        "--prefill-context-parallel-size",
        "--weight-transfer-config",
        "--worker-cls",
    }
)
"""Arguments that cannot stand beside it, switched off or one of a kind apart."""
_OFF = re.compile(r"0+(?:\.0*)?|auto")
_BACKEND = "--moe-backend"
_SAY_BACKEND = frozenset({_BACKEND, "--kernel-config", "--quantization"})
_SOURCE = "config.json of the model"
BACKENDS: Mapping[str, str] = {
    "": "triton",
    "fp8": "triton",
    "awq": "marlin",
    "modelopt_fp4": "marlin",
    "mxfp4": "marlin",
}
"""Quantisation as config.json says it, "" = none -> the backend that keeps rows as the plugin places them. Source:
appliance/residency/vllm_0_26.py, METHODS."""
MEASURED = (9, 0)
"""Compute capability of the cards that it was measured on (docs/measurements.md)."""


def clashes(settings: VllmSettings) -> Iterator[str]:
    """Settings that cannot stand beside it, as an operator finds them."""
    if settings.pipeline_parallel > 1:
        yield "pipeline_parallel"
    if settings.nodes.nnodes > 1:
        yield "[engine.nodes]"
    for argument in parse(settings.args):
        if argument.setting in REFUSED and not _is_off(argument):
            yield f"args {argument.name}"


def _is_off(argument: Argument) -> bool:
    value = argument.values[0] if argument.values else ""
    is_one = value == "1" and argument.setting.endswith("-parallel-size")
    return argument.name.startswith("--no-") or is_one or _OFF.fullmatch(value) is not None


def backend_flags(settings: VllmSettings, quantisation: str | None) -> tuple[Flag, ...]:
    """The backend that it needs, unless the operator says one. `quantisation` None = it is not known here; then the
    plugin says what it wants."""
    said = any(argument.setting in _SAY_BACKEND for argument in parse(settings.args))
    backend = None if quantisation is None else BACKENDS.get(quantisation)
    if said or backend is None:
        return ()
    return (Flag(_BACKEND, (backend,), "the one that keeps rows of experts where they are placed", _SOURCE),)


def unmeasured(capabilities: Sequence[tuple[int, int] | None]) -> Finding | None:
    """`engine.residency`: no card of that kind was ever measured with it."""
    others = sorted({f"{one[0]}.{one[1]}" for one in capabilities if one is not None and one != MEASURED})
    if not others:
        return None
    return Finding(
        id="engine.residency",
        severity=Severity.INFO,
        title="Residency is unmeasured on these cards",
        observed=f"compute capability {', '.join(others)}; measured on {MEASURED[0]}.{MEASURED[1]}",
        required="figures of your own",
        remedy='scripts/bench-residency of the source, with the engine stopped; or placement = "uva"',
    )
