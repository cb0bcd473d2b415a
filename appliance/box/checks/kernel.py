"""Checks of what the kernel's log says, and of the files and programs around the engine. Pure."""

from __future__ import annotations

from appliance.box.checks.check import Check
from appliance.box.facts import Facts
from appliance.box.host import Xid
from appliance.box.needs import Needs
from appliance.printable import printable
from gateway.state import Finding, Severity

_REBOOT = "reboot; if it comes back: nvidia-bug-report.sh, and ask the card's vendor"
XIDS = {
    48: ("memory error that ECC could not correct", "nvidia-smi --gpu-reset, or reboot; then check gpu.remap"),
    62: ("the card's controller halted", _REBOOT),
    79: ("the card fell off the bus", "power off, reseat the card and its power plug, then start again"),
    94: ("memory error, contained in one process", "nvidia-smi --gpu-reset when the card is free"),
    95: ("memory error, not contained", "nvidia-smi --gpu-reset, or reboot"),
    119: ("the card's firmware (GSP) stopped answering", _REBOOT),
    154: ("the driver asks for a recovery", "the line says which: reset (nvidia-smi --gpu-reset) or reboot"),
}
"""Number -> what it means, what to do. Others (13, 31, 43 ..) are mistakes of programs. Source: NVIDIA's list of Xids;
NVIDIA/open-gpu-kernel-modules#1111, #1045, #1151."""
_SHIMS = ("cuda", "vgpu", "nvml", "nvidia", "hami", "gemini", "bless")
"""What libraries that stand between a program and the driver are called. Source: Project-HAMi/HAMi#2641."""
_OTHERS_WRITE, _OTHERS_READ = 0o002, 0o004


def xid_history(facts: Facts, needs: Needs) -> Finding | None:
    """`xid.history`: a card that was in trouble since the boot may be so again."""
    found = facts.host.xids if facts.host is not None else None
    bad = sorted((xid for xid in found or () if xid.number in XIDS), key=lambda xid: (xid.number, xid.bus_id))
    if not bad:
        return None
    numbers = sorted({xid.number for xid in bad})
    return Finding(
        id="xid.history",
        severity=Severity.WARN,
        title="The kernel's log tells of trouble with a card",
        observed="; ".join(map(_xid, bad)),
        required=f"none of Xid {', '.join(map(str, XIDS))} since the boot",
        remedy="; ".join(dict.fromkeys(XIDS[number][1] for number in numbers)),
    )


def _xid(xid: Xid) -> str:
    said = printable(xid.line).partition("): ")[2] or str(xid.number)
    return f"{printable(xid.bus_id)}: Xid {xid.number}, {XIDS[xid.number][0]} ({said[:120]})"


def numactl(facts: Facts, needs: Needs) -> Finding | None:
    """`numactl`: engines bind their ranks to a node through it, and say nothing when it is missing."""
    if facts.host is None or facts.host.numactl is not False or len(facts.host.nodes) < 2:
        return None
    return Finding(
        id="numactl",
        severity=Severity.WARN,
        title="numactl is missing on a machine with several NUMA nodes",
        observed=f"{len(facts.host.nodes)} NUMA nodes with memory, no numactl on PATH",
        required="numactl: without it --numa-bind does nothing and says nothing",
        remedy="apt-get install numactl",
    )


def ld_preload(facts: Facts, needs: Needs) -> Finding | None:
    """`ld.preload`: a library in front of the driver's shows other cards and other memory than there are."""
    names = facts.host.preloads if facts.host is not None else ()
    if not names:
        return None
    shims = [name for name in names if any(word in name.rpartition("/")[2].lower() for word in _SHIMS)]
    return Finding(
        id="ld.preload",
        severity=Severity.WARN if shims else Severity.INFO,
        title="A library stands between programs and the driver" if shims else "A library is preloaded into programs",
        observed=", ".join(map(printable, shims or names)),
        required="0 libraries in /etc/ld.so.preload and LD_PRELOAD that stand in for CUDA or NVML",
        remedy="unset LD_PRELOAD, and look at /etc/ld.so.preload; on a rented machine ask for whole cards",
    )


def file_mode(facts: Facts, needs: Needs) -> Finding | None:
    """`file.mode`: who can write the seat file can let anybody in."""
    modes = facts.host.secret_modes if facts.host is not None else {}
    open_ = {path: mode for path, mode in modes.items() if mode & (_OTHERS_WRITE | _OTHERS_READ)}
    if not open_:
        return None
    writable = any(mode & _OTHERS_WRITE for mode in open_.values())
    return Finding(
        id="file.mode",
        severity=Severity.FAIL if writable else Severity.WARN,
        title="Every user of this machine can " + ("change who may come in" if writable else "read the key files"),
        observed=", ".join(f"{printable(path)}: mode {mode:04o}" for path, mode in sorted(open_.items())),
        required="mode 0640 or less: nothing for others",
        remedy="; ".join(f"chmod o= {printable(path)}" for path in sorted(open_)),
    )


CHECKS = (
    Check(
        "xid.history",
        "WARN",
        "lines `NVRM: Xid` in the kernel's log since the boot",
        "Xid 48, 62, 79, 94, 95, 119, 154",
        "reset or reboot; 154 says which",
        "NVIDIA/open-gpu-kernel-modules#1111, #1045, #1151",
        xid_history,
    ),
    Check(
        "numactl",
        "WARN",
        "numactl on PATH, where two NUMA nodes or more have memory",
        "missing",
        "apt-get install numactl",
        "vllm-project/vllm#55416",
        numactl,
    ),
    Check(
        "ld.preload",
        "WARN for stand-ins of CUDA or NVML, else INFO",
        "/etc/ld.so.preload and LD_PRELOAD",
        "any library",
        "take it out",
        "Project-HAMi/HAMi#2641",
        ld_preload,
    ),
    Check(
        "file.mode",
        "FAIL when others may write, WARN when they may read",
        "permissions of the seat file and the admin file",
        "anything for others",
        "chmod o=",
        "our own rule; the files hold digests of keys",
        file_mode,
    ),
)
