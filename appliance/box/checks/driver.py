"""Checks of the driver: does it answer, for this user, with all its cards? Pure."""

from __future__ import annotations

from appliance.box.checks.check import Check
from appliance.box.facts import Facts
from appliance.box.gpu import GpuReport, Outcome
from appliance.box.needs import Needs
from appliance.printable import printable
from appliance.units import count
from gateway.state import Finding, Severity

EMBEDDED_LINES = '[engine]\nkind = "embedded"'
"""What makes the box serve without a card."""
_NOT_THERE = "No such file or directory"
"""What probe_host.py's child says for ENOENT."""
_LOG = "journalctl -k -b | grep -iE 'nvrm|xid'   says why; reboot if it does not mend"


def nvml_load(facts: Facts, needs: Needs) -> Finding | None:
    """`nvml.load`: without the driver's library there is no card."""
    report = facts.gpus
    if report is None or report.outcome in (Outcome.OK, Outcome.MISMATCH):
        return None
    if report.outcome is Outcome.NO_DRIVER:
        return _no_driver(facts, needs)
    observed, remedy = _trouble(report)
    said = printable(report.error)
    asked = report.outcome in (Outcome.HUNG, Outcome.CRASHED)
    return Finding(
        id="nvml.load",
        severity=Severity.FAIL,
        title="The NVIDIA driver does not answer",
        observed=said if said and asked else observed + (f": {said}" if said else ""),
        required="an answer of libnvidia-ml.so.1 within 5 s, and 2 s more for each card",
        remedy=remedy,
        depends_on="dev.nodes" if _closed(facts) else None,
    )


def _no_driver(facts: Facts, needs: Needs) -> Finding:
    there = facts.host.nvidia_pci if facts.host is not None else ()
    on_bus = f"; NVIDIA cards on the bus: {len(there)}, {printable(', '.join(there))}" if there else ""
    observed = f"neither a kernel module nor libnvidia-ml.so.1{on_bus}"
    if needs.gpus == 0:
        return Finding(
            id="nvml.load",
            severity=Severity.INFO,
            title="There is no NVIDIA driver",
            observed=observed,
            required="nothing, as long as the engine that is configured needs no card: [preflight] gpus says how many",
            remedy="nothing, while no engine needs a card; for cards: install NVIDIA's driver",
        )
    return Finding(
        id="nvml.load",
        severity=Severity.FAIL,
        title="There is no NVIDIA driver on this machine",
        observed=observed,
        required=f"a driver with {count(needs.gpus, 'card')}, for the engine that is configured",
        remedy=f"install NVIDIA's driver, then reboot; or serve without a card, in appliance.toml:\n{EMBEDDED_LINES}",
    )


def _trouble(report: GpuReport) -> tuple[str, str]:
    branch = report.module.partition(".")[0]
    match report.outcome:
        case Outcome.NO_LIBRARY:
            package = f"libnvidia-compute-{branch}" if branch.isdecimal() else "libnvidia-compute"
            return (
                f"the kernel module {report.module or 'of unknown version'} is loaded, libnvidia-ml.so.1 is not there",
                f"apt-get install libnvidia-ml1 (Debian) or {package} (Ubuntu), of the module's version",
            )
        case Outcome.NOT_LOADED:
            return "the library is there, the kernel module is not loaded", "modprobe nvidia; dmesg | grep -i nvrm"
        case Outcome.HUNG:
            return "the library gave no answer before the deadline and its process was killed", _LOG
        case Outcome.CRASHED:
            return "the process that asked the library died", _LOG
    return "the library answered with an error", f"nvidia-smi   shows it as well; {_LOG}"


def nvml_mismatch(facts: Facts, needs: Needs) -> Finding | None:
    """`nvml.mismatch`: after an upgrade of the packages the old module goes on until the next boot."""
    report = facts.gpus
    if report is None:
        return None
    differ = report.outcome is Outcome.OK and report.driver and report.module and report.driver != report.module
    if report.outcome is not Outcome.MISMATCH and not differ:
        return None
    return Finding(
        id="nvml.mismatch",
        severity=Severity.FAIL,
        title="The driver's library and kernel module are of different versions",
        observed=f"library {printable(report.driver) or 'unknown'}, "
        f"loaded kernel module {printable(report.module) or 'unknown'}",
        required="the same version of both",
        remedy="reboot; then keep unattended upgrades away from the driver: apt-mark hold 'nvidia-*' 'libnvidia-*'",
    )


def dev_nodes(facts: Facts, needs: Needs) -> Finding | None:
    """`dev.nodes`: a sandbox or a missing node hides the cards from the engine."""
    if facts.host is None:
        return None
    outcome = facts.gpus.outcome if facts.gpus is not None else Outcome.OK
    cause = "nvml.mismatch" if outcome is Outcome.MISMATCH else "nvml.load"
    hidden = _hidden(facts)
    shut = {path: why for path, why in facts.host.device_nodes.items() if why and path not in hidden}
    if not shut:
        return None
    count = len(facts.host.device_nodes) - len(hidden)
    return Finding(
        id="dev.nodes",
        severity=Severity.FAIL,
        title="Device nodes of the driver cannot be opened",
        observed=", ".join(f"{printable(path)}: {printable(why)}" for path, why in sorted(shut.items())),
        required=f"all {count} open for reading and writing as the user with id {facts.euid}",
        remedy="systemctl enable --now nvidia-persistenced; nvidia-modprobe -u -c=0; in a unit: "
        "PrivateDevices=no, DeviceAllow=char-nvidia rw, DeviceAllow=char-nvidiactl rw, DeviceAllow=char-nvidia-uvm rw",
        depends_on=None if outcome is Outcome.OK or _closed(facts) else cause,
    )


def _hidden(facts: Facts) -> frozenset[str]:
    """Nodes of cards that the kernel module has and that are not here, while the driver answers with others: a
    container was given some of the machine's cards. A card that answers has its node, since the driver opens it."""
    if facts.gpus is None or facts.gpus.outcome is not Outcome.OK or facts.host is None:
        return frozenset()
    nodes = facts.host.device_nodes.items()
    return frozenset(path for path, why in nodes if why == _NOT_THERE and path.removeprefix("/dev/nvidia").isdecimal())


def _closed(facts: Facts) -> bool:
    """Whether a node is there and shut: then the library fails because of it."""
    nodes = facts.host.device_nodes.values() if facts.host is not None else ()
    return any("permitted" in why or "denied" in why for why in nodes)


def gpu_lost(facts: Facts, needs: Needs) -> Finding | None:
    """`gpu.lost`: a card that the bus knows and the driver cannot talk to."""
    report = facts.gpus
    if report is None or not report.lost:
        return None
    enough = len(report.gpus) >= needs.gpus
    if len(_hidden(facts)) == len(report.lost):
        return Finding(
            id="gpu.lost",
            severity=Severity.INFO if enough else Severity.FAIL,
            title="Some of the machine's cards are not given to this container",
            observed=f"{len(report.gpus)} of {len(report.gpus) + len(report.lost)} cards have a device node here",
            required=f"{needs.gpus} for the engine" if needs.gpus else "any number",
            remedy="to have more: docker run --gpus all, or all of them from the provider; on a machine of your own: "
            "nvidia-modprobe -c=1   makes the node of card 1",
        )
    return Finding(
        id="gpu.lost",
        severity=Severity.WARN if enough else Severity.FAIL,
        title="A card is there and does not answer",
        observed="; ".join(map(printable, report.lost)),
        required=f"an answer of all {len(report.gpus) + len(report.lost)} cards",
        remedy="reboot; if it is lost again: power off, reseat the card and its power plug, then nvidia-bug-report.sh",
    )


CHECKS = (
    Check(
        "nvml.load",
        "FAIL; INFO where no card is needed",
        "NVML's initialisation, in a child process that is killed at the deadline",
        "any error, no answer within 5 s and 2 s more for each card, or a dead child",
        "install the driver or load its module; without a driver, the embedded engine",
        "NVML: nvmlInit_v2",
        nvml_load,
    ),
    Check(
        "nvml.mismatch",
        "FAIL",
        "the library's version and /proc/driver/nvidia/version",
        "they differ, or NVML says so (code 18)",
        "reboot; hold the driver's packages out of unattended upgrades",
        "oddmario/NVIDIA-Ubuntu-Driver-Guide#4, lyulyul/shine-cluster#30",
        nvml_mismatch,
    ),
    Check(
        "dev.nodes",
        "FAIL",
        "opening /dev/nvidiactl, /dev/nvidia-uvm and each /dev/nvidiaN as the service's user",
        "any that is missing or shut; a card's that a container was not given does not count",
        "nvidia-persistenced, or DeviceAllow in the unit",
        "NixOS/nixpkgs#331069, apptainer/singularity#1441",
        dev_nodes,
    ),
    Check(
        "gpu.lost",
        "FAIL; WARN when enough cards answer, INFO where a container was given enough",
        "cards that the kernel module or the driver's count knows, against those that answer",
        "any that does not answer",
        "reboot; reseat the card",
        "NVIDIA/open-gpu-kernel-modules#1111",
        gpu_lost,
    ),
)
