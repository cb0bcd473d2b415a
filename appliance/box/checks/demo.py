"""Checks of the embedded engine and of the configuration. Pure.

A check says nothing about a fact that could not be read. Ids are stable: documentation and scripts use them.
"""

from __future__ import annotations

from appliance.box.checks.check import Check
from appliance.box.facts import Facts
from appliance.errors import DEMO_EXTRA
from appliance.units import gib
from gateway.state import Finding, Severity

MB = 1_000_000
CPU_NEEDS = ("avx2", "fma", "f16c", "bmi2")
"""What the xllamacpp wheel for x86_64 is compiled for. Source: its get_system_info()."""
_X86 = frozenset({"x86_64", "amd64"})


def kept(*results: Finding | None) -> tuple[Finding, ...]:
    """The findings among the results of checks, in their order."""
    return tuple(result for result in results if result is not None)


def cpu_avx2(facts: Facts) -> Finding | None:
    """`cpu.avx2`: an older CPU would end the embedded engine with an illegal instruction."""
    if facts.machine.lower() not in _X86 or not facts.cpu_flags:
        return None
    missing = [flag for flag in CPU_NEEDS if flag not in facts.cpu_flags]
    if not missing:
        return None
    return Finding(
        id="cpu.avx2",
        severity=Severity.FAIL,
        title="This CPU cannot run the embedded engine",
        observed=f"the CPU lacks {', '.join(missing)}",
        required=f"x86_64 with {', '.join(CPU_NEEDS)} (Intel since 2013, AMD since 2015), or aarch64",
        remedy='use another machine, or an engine built for this CPU: [engine] kind = "command"',
    )


def lib_gomp(facts: Facts) -> Finding | None:
    """`lib.gomp`: the embedded engine links OpenMP's runtime, which slim images leave out."""
    return _lib(facts, "lib.gomp", "libgomp.so.1", "libgomp1")


def lib_stdcxx(facts: Facts) -> Finding | None:
    """`lib.stdcxx`: the embedded engine links the C++ runtime, which slim images leave out."""
    return _lib(facts, "lib.stdcxx", "libstdc++.so.6", "libstdc++6")


def _lib(facts: Facts, check: str, library: str, package: str) -> Finding | None:
    if facts.libs.get(library, True):
        return None
    return Finding(
        id=check,
        severity=Severity.FAIL,
        title=f"The shared library {library} is missing",
        observed=f"the loader does not find {library}",
        required=f"{library}, which the embedded engine links",
        remedy=f"apt-get install {package}",
    )


def engine_package(facts: Facts, module: str = "xllamacpp") -> Finding | None:
    """`engine.package`: the Python package with the embedded engine is an extra."""
    if facts.modules.get(module, True):
        return None
    return Finding(
        id="engine.package",
        severity=Severity.FAIL,
        title="The embedded engine is not installed",
        observed=f"the Python package {module} cannot be imported",
        required=f"{module}, part of the extra `demo`",
        remedy=DEMO_EXTRA,
    )


def mem_free(facts: Facts, needed_bytes: int) -> Finding | None:
    """`mem.free`: below this the kernel would kill the engine while it loads."""
    free = facts.mem_available_bytes
    if free is None or free >= needed_bytes:
        return None
    return Finding(
        id="mem.free",
        severity=Severity.FAIL,
        title="Too little free memory for the engine",
        observed=f"{gib(free)} available",
        required=gib(needed_bytes),
        remedy="stop what else runs here, or raise the container's or unit's memory limit",
    )


def disk_free(facts: Facts, needed_bytes: int) -> Finding | None:
    """`disk.free`: room for the model while it is fetched; `needed_bytes` 0 = nothing is to be fetched."""
    free = facts.disk_free_bytes
    if free is None or free >= needed_bytes:
        return None
    return Finding(
        id="disk.free",
        severity=Severity.FAIL,
        title="Too little free disk space to fetch the model",
        observed=f"{free / MB:,.0f} MB free on the state folder's file system",
        required=f"{needed_bytes / MB:,.0f} MB",
        remedy="free some space, or give a model that is on this machine already: --model FILE",
    )


def admission_streams(asked: int, allowed: int, *, declared: bool) -> Finding | None:
    """`admission.streams`: more than the engine runs; the rest of the setting does nothing. `declared`: `[engine]
    streams` says how many the engine runs."""
    if asked <= allowed:
        return None
    more = f", or {asked} to [engine] streams if the engine can run that many" if declared else ""
    return Finding(
        id="admission.streams",
        severity=Severity.WARN,
        title="Fewer streams are served than [admission] asks for",
        observed=f"{asked} asked, the engine's profile allows {allowed}",
        required=f"[admission] streams of {allowed} at most, or 0: as many as the engine allows",
        remedy=f"set [admission] streams to {allowed}{more}",
    )


def listen_plain(facts: Facts) -> Finding | None:
    """`listen.plain`: keys and code would cross the network in the clear."""
    if facts.listen_loopback:
        return None
    return Finding(
        id="listen.plain",
        severity=Severity.WARN,
        title="Seat keys and prompts cross the network unencrypted",
        observed=f"plain HTTP on {facts.listen_host or 'all addresses'}",
        required="TLS in front of any address that other machines reach",
        remedy='put TLS in front (nginx, HAProxy, Caddy), set listen = "127.0.0.1:8000" and public_url = "https://NAME"',
    )


CHECKS = (
    Check(
        "cpu.avx2",
        "FAIL",
        "flags of the CPU (x86_64)",
        "avx2, fma, f16c or bmi2 missing",
        "another machine or engine",
        "xllamacpp: get_system_info()",
    ),
    Check("lib.gomp", "FAIL", "the loader", "no libgomp.so.1", "apt-get install libgomp1", "ldd xllamacpp.abi3.so"),
    Check(
        "lib.stdcxx", "FAIL", "the loader", "no libstdc++.so.6", "apt-get install libstdc++6", "ldd xllamacpp.abi3.so"
    ),
    Check("engine.package", "FAIL", "Python's packages", "no xllamacpp", DEMO_EXTRA, "the engine"),
    Check(
        "mem.free",
        "FAIL",
        "MemAvailable and what each control group still allows",
        "less than the embedded engine takes",
        "stop what else runs, raise the limit",
        "measured: 0.9 GB with the demo model",
    ),
    Check(
        "mem.host_kv",
        "FAIL; WARN when only the spare part is missing",
        "MemAvailable and what each control group still allows, where no plan counts the nodes' memory",
        "less than [engine] host_kv_gib; WARN: and 30 % of it, and twice as much where vLLM rounds it up",
        "a smaller [engine] host_kv_gib; VLLM_USE_SIMPLE_KV_OFFLOAD=1",
        "our own rule: it is pinned and never given back",
    ),
    Check(
        "disk.free",
        "FAIL",
        "free bytes where the state folder is",
        "less than the model that is to be fetched",
        "free some space, --model FILE",
        "the model's size",
    ),
    Check(
        "forced.file",
        "WARN",
        "forced.json in the state folder",
        "it cannot be read, or is broken: nothing is forced then",
        "rm forced.json; sudo",
        "our own rule",
    ),
    Check(
        "admission.streams",
        "WARN",
        "[admission] streams against what the engine runs",
        "more",
        "[admission] streams",
        "the engine's profile",
    ),
    Check(
        "listen.plain",
        "WARN",
        "the address that is listened on",
        "not loopback, and no TLS here",
        "TLS in front",
        "our own rule",
    ),
)
