"""Checks of the cards themselves: how many, which, in what state. Pure."""

from __future__ import annotations

from appliance.box.checks.check import Check, each, named, seen_of, used_of
from appliance.box.facts import Facts
from appliance.box.gpu import Gpu, GpuProcess, Outcome
from appliance.box.needs import Needs
from appliance.printable import printable
from appliance.units import GIB, gib
from gateway.state import Finding, Severity

HELD_BYTES = GIB
"""More than this in use before the engine starts is too much. Source: appliance rule after vllm-project/vllm#9920."""
CONTEXT_BYTES = 100 * 1024**2
"""Below this a process has no CUDA context (about 0.5 GiB), for instance a display server."""
_SLOWED = ("hardware slowdown", "thermal (software)", "thermal (hardware)", "power brake")
"""Clock event reasons that mean trouble, by nvml_child's names. `power cap` alone is ordinary under load."""


def gpu_count(facts: Facts, needs: Needs) -> Finding | None:
    """`gpu.count`: a plan for two cards does not fit one; a card too many is only said."""
    report = facts.gpus
    if report is None or report.outcome is not Outcome.OK:
        return None
    seen = seen_of(report.gpus, needs.visible)
    found = len(seen)
    if needs.gpus in (0, found):
        return None
    few = found < needs.gpus
    missing = len(report.gpus) < needs.gpus
    title = "Cards are hidden from the engine" if few else "There are more cards than the engine uses"
    if missing:
        title = "Cards are missing"
    return Finding(
        id="gpu.count",
        severity=Severity.FAIL if few else Severity.INFO,
        title=title,
        observed=f"{found} {'card answers' if found == 1 else 'cards answer'}: {named(seen) or 'none'}"
        + (f"; CUDA_VISIBLE_DEVICES={printable(','.join(needs.visible))}" if needs.visible is not None else ""),
        required=f"{needs.gpus}" + (f", for the plan {printable(needs.plan)}" if needs.plan else ""),
        remedy="lspci -d 10de: | grep -iE 'vga|3d'   shows whether the slot sees it: reseat the card and its power plug"
        if missing
        else f"name the engine's cards, for instance CUDA_VISIBLE_DEVICES={','.join(map(str, range(needs.gpus)))}",
    )


def gpu_model(facts: Facts, needs: Needs) -> Finding | None:
    """`gpu.model`: other cards than the plan's, or cards that differ among themselves."""
    gpus = used_of(facts, needs)
    wanted = [name.lower() for name in needs.gpu_names]
    other = [gpu for gpu in gpus if wanted and not any(name in gpu.name.lower() for name in wanted)]
    least = needs.capability
    old = [gpu for gpu in gpus if least is not None and gpu.capability is not None and gpu.capability < least]
    mixed = len({gpu.name for gpu in gpus}) > 1
    strange = [gpu for gpu in gpus if mixed or gpu in other or gpu in old]
    if not strange:
        return None
    names = ", or ".join(map(printable, dict.fromkeys(needs.gpu_names))) or "cards of one kind"
    return Finding(
        id="gpu.model",
        severity=Severity.WARN,
        title="The cards are others than planned" if other or old else "The cards are not of one kind",
        observed=each(strange, _model),
        required=names + (f", compute capability {least[0]}.{least[1]} or later" if least is not None else ""),
        remedy="moe-appliance plan make   for these cards; or name the right ones: CUDA_VISIBLE_DEVICES=0,1",
    )


def _model(gpu: Gpu) -> str:
    capability = f", capability {gpu.capability[0]}.{gpu.capability[1]}" if gpu.capability is not None else ""
    return f"({printable(gpu.name) or 'no name'}{capability})"


def mig_off(facts: Facts, needs: Needs) -> Finding | None:
    """`mig.off`: an engine cannot span parts of cards."""
    on = [gpu for gpu in used_of(facts, needs) if gpu.mig is not None and any(gpu.mig)]
    if not on:
        return None
    return Finding(
        id="mig.off",
        severity=Severity.FAIL,
        title="A card is split by MIG",
        observed=each(on, lambda gpu: _mig(gpu.mig or (False, False))),
        required=f"MIG off on all {len(used_of(facts, needs))} cards, now and after a reset",
        remedy=f"nvidia-smi -i {_indices(on)} -mig 0, then: nvidia-smi --gpu-reset -i {_indices(on)}",
    )


def _mig(mode: tuple[bool, bool]) -> str:
    now, then = ("on" if part else "off" for part in mode)
    return f"MIG {now}" + (f", {then} after a reset" if now != then else "")


def cc_off(facts: Facts, needs: Needs) -> Finding | None:
    """`cc.off`: confidential computing keeps cards from reading host memory directly."""
    if facts.gpus is None or not facts.gpus.confidential:
        return None
    return Finding(
        id="cc.off",
        severity=Severity.WARN,
        title="Confidential computing is on",
        observed=f"the driver says: on, for {len(facts.gpus.gpus)} cards",
        required="off: experts in host memory are read by the cards, through encrypted bounce buffers otherwise",
        remedy="nvidia-smi conf-compute -f   shows it; BIOS: SEV-SNP (AMD) or TDX (Intel) off, or ask the provider",
    )


def vram_free(facts: Facts, needs: Needs) -> Finding | None:
    """`vram.free`: memory that somebody holds; most often what an engine that died left behind."""
    held = {gpu.index: _foreign(gpu, needs) for gpu in used_of(facts, needs)}
    full = [gpu for gpu in used_of(facts, needs) if (_used(gpu, needs) or 0) > HELD_BYTES]
    busy = [gpu for gpu in used_of(facts, needs) if gpu in full or held[gpu.index]]
    if not busy:
        return None
    processes = {process.pid: process for gpu in busy for process in held[gpu.index]}
    pids = " ".join(map(str, sorted(processes)))
    who = "; ".join(_process(process) for _, process in sorted(processes.items()))
    return Finding(
        id="vram.free",
        severity=Severity.FAIL if full else Severity.WARN,
        title="Somebody holds memory of a card",
        observed=each(busy, lambda gpu: gib(_used(gpu, needs) or 0))
        + (f", by {who}" if who else ", by nobody visible"),
        required=f"at most {gib(HELD_BYTES)} in use on each card, and no other process on it",
        remedy=f"ps -fp {pids.replace(' ', ',')}   shows them; when nobody needs them: kill {pids}"
        if pids
        else "nvidia-smi; fuser -v /dev/nvidia*   show who; in a container: look on the host",
    )


def _used(gpu: Gpu, needs: Needs) -> int | None:
    """Bytes in use by others than our engine."""
    if gpu.used_bytes is None:
        return None
    ours = sum(process.used_bytes or 0 for process in gpu.processes if process.pid in needs.own_pids)
    unknown = any(process.used_bytes is None for process in gpu.processes if process.pid in needs.own_pids)
    return 0 if unknown else max(0, gpu.used_bytes - ours)


def _foreign(gpu: Gpu, needs: Needs) -> list[GpuProcess]:
    others = (process for process in gpu.processes if process.pid not in needs.own_pids)
    return [process for process in others if process.used_bytes is None or process.used_bytes > CONTEXT_BYTES]


def _process(process: GpuProcess) -> str:
    held = gib(process.used_bytes) if process.used_bytes is not None else "an unknown amount"
    return f"pid {process.pid} ({printable(process.name) or 'not visible from here'}): {held}"


def ecc_mode(facts: Facts, needs: Needs) -> Finding | None:
    """`ecc.mode`: without it bit errors go unseen; on cards with GDDR it costs some memory."""
    off = [gpu for gpu in used_of(facts, needs) if gpu.ecc is False]
    if not off:
        return None
    return Finding(
        id="ecc.mode",
        severity=Severity.INFO,
        title="Memory errors of a card go unseen",
        observed=each(off, lambda gpu: "ECC off"),
        required=f"ECC on, on all {len(used_of(facts, needs))} cards; on GDDR it takes some memory",
        remedy=f"nvidia-smi -i {_indices(off)} -e 1, then reboot",
    )


def gpu_remap(facts: Facts, needs: Needs) -> Finding | None:
    """`gpu.remap`: broken rows of memory that are replaced at the next reset, or no longer can be."""
    failed = [gpu for gpu in used_of(facts, needs) if gpu.remap_failed]
    marked = [gpu for gpu in used_of(facts, needs) if gpu.remap_failed or gpu.remap_pending]
    if not marked:
        return None
    return Finding(
        id="gpu.remap",
        severity=Severity.FAIL if failed else Severity.WARN,
        title="A card's memory has broken rows",
        observed=each(
            marked, lambda gpu: "has no spare rows left" if gpu.remap_failed else "has rows that wait for a reset"
        ),
        required=f"no failed and no pending row on all {len(used_of(facts, needs))} cards",
        remedy=f"have the card exchanged: {named(failed)}"
        if failed
        else f"nvidia-smi --gpu-reset -i {_indices(marked)}, or reboot",
    )


def power(facts: Facts, needs: Needs) -> Finding | None:
    """`power`: a limit below the card's own makes prefill slower; somebody may want it so."""
    low = [gpu for gpu in used_of(facts, needs) if 0 < (gpu.power_limit_w or 0) < (gpu.power_default_w or 0)]
    if not low:
        return None
    return Finding(
        id="power",
        severity=Severity.INFO,
        title="A card's power limit is below its default",
        observed=each(low, lambda gpu: f"{gpu.power_limit_w:.0f} W"),
        required=each(low, lambda gpu: f"{gpu.power_default_w:.0f} W"),
        remedy="; ".join(f"nvidia-smi -i {gpu.index} -pl {gpu.power_default_w:.0f}" for gpu in low)
        + "; or leave it so",
    )


def throttle(facts: Facts, needs: Needs) -> Finding | None:
    """`throttle`: heat or power slows a card down at this moment."""
    slow = [gpu for gpu in used_of(facts, needs) if any(reason in _SLOWED for reason in gpu.throttle)]
    if not slow:
        return None
    return Finding(
        id="throttle",
        severity=Severity.WARN,
        title="A card is slowed down by heat or power",
        observed=each(slow, lambda gpu: " and ".join(reason for reason in gpu.throttle if reason in _SLOWED)),
        required=f"none of: {', '.join(_SLOWED)}",
        remedy=f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {_indices(slow)}   says which; check fans, air and "
        "the card's power plugs",
    )


def persistence(facts: Facts, needs: Needs) -> Finding | None:
    """`persistence`: without it the driver lets go of an idle card, and the next start wakes it for seconds."""
    off = [gpu for gpu in used_of(facts, needs) if gpu.persistence is False]
    if not off:
        return None
    return Finding(
        id="persistence",
        severity=Severity.WARN,
        title="The driver lets go of idle cards",
        observed=each(off, lambda gpu: "persistence off"),
        required=f"persistence on, on all {len(used_of(facts, needs))} cards",
        remedy="systemctl enable --now nvidia-persistenced; or until the next boot: nvidia-smi -pm 1",
    )


def _indices(gpus: list[Gpu]) -> str:
    return ",".join(str(gpu.index) for gpu in gpus)


CHECKS = (
    Check(
        "gpu.count",
        "FAIL; INFO for more than needed",
        "cards that answer and that CUDA_VISIBLE_DEVICES lets the engine see, against the plan's or [preflight] gpus",
        "any other number",
        "reseat the missing card; name the engine's cards",
        "a plan's bytes are for its number of cards",
        gpu_count,
    ),
    Check(
        "gpu.model",
        "WARN",
        "each card's name and compute capability, against the plan's and each other's",
        "another name, a lower capability, or two names",
        "make a plan for these cards",
        "samuelcardillo/glm-5.3-flash-2x-rtx-pro-6000-blackwell, scripts/preflight.sh",
        gpu_model,
    ),
    Check(
        "mig.off",
        "FAIL",
        "each card's MIG mode, now and after a reset",
        "on",
        "nvidia-smi -mig 0",
        "our own rule: an engine spans whole cards",
        mig_off,
    ),
    Check(
        "cc.off",
        "WARN",
        "NVML's confidential computing state",
        "on",
        "BIOS, or the host",
        "our own inference: host memory is not mapped plainly then",
        cc_off,
    ),
    Check(
        "vram.free",
        "FAIL; WARN when it is little",
        "memory in use on each card, and the processes that hold it; our own engine's left out",
        "more than 1 GiB, or another process with more than 0.1 GiB",
        "end the processes that it names",
        "vllm-project/vllm#9920, #55510",
        vram_free,
    ),
    Check(
        "ecc.mode",
        "INFO",
        "each card's ECC mode",
        "off",
        "nvidia-smi -e 1",
        "our own rule",
        ecc_mode,
    ),
    Check(
        "gpu.remap",
        "FAIL; WARN while a reset mends it",
        "remapped rows: failed, pending",
        "any",
        "reset, or exchange the card",
        "NVML: nvmlDeviceGetRemappedRows",
        gpu_remap,
    ),
    Check(
        "power",
        "INFO",
        "enforced power limit against the card's default",
        "below",
        "nvidia-smi -pl",
        "ormandj/sglang-glm53-flash-sm120#11",
        power,
    ),
    Check(
        "throttle",
        "WARN",
        "reasons for lower clocks at this moment",
        "hardware slowdown, thermal, power brake",
        "cooling, power plugs",
        "ormandj/sglang-glm53-flash-sm120#11",
        throttle,
    ),
    Check(
        "persistence",
        "WARN",
        "each card's persistence mode",
        "off",
        "nvidia-persistenced",
        "NVML: nvmlDeviceGetPersistenceMode",
        persistence,
    ),
)
