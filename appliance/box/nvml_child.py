"""Asks NVIDIA's driver what there is and prints it as JSON; the one importer of pynvml, run by nvml.py.

`python -I -m appliance.box.nvml_child LIMIT_S` prints one document, shaped as `nvml_report.Answer`, and ends.
`... LIMIT_S --links` prints {"INDEX": [generation, lanes]} each time that one of them was higher than before, until
LIMIT_S are over. Touches the driver and its own pipes. Exit code 0 also when the driver refuses: the document says so.

Rules:
- nvmlShutdown is never called: under a query of another thread it crashes, and the end of the process does the same.
- Each call is named on stderr before it is made, so that who kills a hung child, or finds it dead, knows the call.
- What one call does not give is None. Only a card that the driver calls lost, or that tells no size, is left out.
- The process ends itself a second after LIMIT_S by SIGALRM, also inside the driver: nobody may be left to kill it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, TextIO

ASKING = "asking "
"""How a line on stderr begins that names a call."""
SAMPLE_S = 0.05
_LOST = frozenset({15, 16})
"""NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED. Source: pynvml's constants, as all numbers below."""
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML_TOPOLOGY_*; 0 is two GPUs of one board."""
_P2P = ("OK", "CNS", "GNS", "TNS", "DR", "NS", "U")
"""By NVML_P2P_STATUS_*, as `nvidia-smi topo -p2p r` spells them."""
_P2P_READ = 0
"""pynvml's own NVML_P2P_CAPS_INDEX_READ is the tuple (0,) by mistake."""
_NVLINKS = 36
_SWITCH = 2
_THROTTLE = {
    1: "idle",
    2: "application clocks",
    4: "power cap",
    8: "hardware slowdown",
    16: "sync boost",
    32: "thermal (software)",
    64: "thermal (hardware)",
    128: "power brake",
    256: "display clocks",
}


class _Lost(Exception):
    """The driver has lost this card."""


class _Driver:
    """pynvml, with every call announced and a refusal made None."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._count = 0
        self.memory_v2 = nvml.nvmlMemory_v2

    def ask(self, call: str, *args: Any, card: int | None = None) -> Any:
        """What `call` returns, or None. Raises _Lost when the driver has lost `card`."""
        os.write(2, f"{ASKING}{call}{'' if card is None else f' of card {card}'}\n".encode())
        try:
            return getattr(self._nvml, call)(*args)
        except self._nvml.NVMLError as error:
            if card is not None and error.value in _LOST:
                raise _Lost(str(error)) from None
        except (self._nvml.NVMLLibraryMismatchError, UnicodeDecodeError):  # an old driver; a name that is no text
            pass
        return None

    def start(self) -> tuple[int, str]:
        """NVML's code and words for nvmlInit, and for the count of cards; 0 = it can be asked."""
        os.write(2, f"{ASKING}nvmlInit\n".encode())
        try:
            self._nvml.nvmlInit()
            os.write(2, f"{ASKING}nvmlDeviceGetCount\n".encode())
            self._count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            return error.value, str(error)
        return 0, ""

    def cards(self) -> Iterator[tuple[int, Any, str]]:
        """Index, handle and, for a card without one, why there is none."""
        for index in range(self._count):
            os.write(2, f"{ASKING}nvmlDeviceGetHandleByIndex of card {index}\n".encode())
            try:
                yield index, self._nvml.nvmlDeviceGetHandleByIndex(index), ""
            except self._nvml.NVMLError as error:
                yield index, None, str(error)


def _document(driver: _Driver) -> dict[str, Any]:
    code, error = driver.start()
    document: dict[str, Any] = {
        "code": code,
        "error": error,
        "library": _library_version(driver),
        "driver": "",
        "cuda": "",
        "confidential": None,
        "cards": [],
        "lost": [],
        "pairs": [],
    }
    if code != 0:
        return document
    handles = {}
    for index, handle, why in driver.cards():
        try:
            if why:
                raise _Lost(why)
            document["cards"].append(_card(driver, index, handle))
            handles[index] = handle
        except _Lost as lost:
            document["lost"].append([index, str(lost)])
    cuda = driver.ask("nvmlSystemGetCudaDriverVersion_v2")
    state = driver.ask("nvmlSystemGetConfComputeState")
    document["driver"] = driver.ask("nvmlSystemGetDriverVersion") or ""
    document["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
    document["confidential"] = None if state is None else bool(state.ccFeature)
    document["pairs"] = list(_pairs(driver, handles, {card["index"]: card["bus_id"] for card in document["cards"]}))
    return document


def _library_version(driver: _Driver) -> str:
    """NVML's version is that of CUDA's major release and the driver's: 13.580.95.05."""
    return str(driver.ask("nvmlSystemGetNVMLVersion") or "").partition(".")[2]


def _card(driver: _Driver, index: int, handle: Any) -> dict[str, Any]:
    def ask(call: str, *args: Any) -> Any:
        return driver.ask(call, handle, *args, card=index)

    memory = ask("nvmlDeviceGetMemoryInfo", driver.memory_v2)
    if memory is None:
        memory = ask("nvmlDeviceGetMemoryInfo")
    pci = ask("nvmlDeviceGetPciInfo")
    if memory is None or pci is None:
        raise _Lost("it tells neither its memory nor its PCI address")
    bar1 = ask("nvmlDeviceGetBAR1MemoryInfo")
    mig = ask("nvmlDeviceGetMigMode")
    ecc = ask("nvmlDeviceGetEccMode")
    rows = ask("nvmlDeviceGetRemappedRows")
    persistence = ask("nvmlDeviceGetPersistenceMode")
    return {
        "index": index,
        "uuid": ask("nvmlDeviceGetUUID") or "",
        "name": ask("nvmlDeviceGetName") or "",
        "bus_id": _bus_id(pci),
        "total_bytes": memory.total,
        "reserved_bytes": getattr(memory, "reserved", None),
        "used_bytes": memory.used,
        "capability": ask("nvmlDeviceGetCudaComputeCapability"),
        "processes": list(_processes(ask)),
        "cpus": _ranges(ask("nvmlDeviceGetCpuAffinity", _cpu_words()) or ()),
        "link": {
            "gen_now": ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            "gen_max": ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            "width_now": ask("nvmlDeviceGetCurrPcieLinkWidth"),
            "width_max": ask("nvmlDeviceGetMaxPcieLinkWidth"),
            "replays": ask("nvmlDeviceGetPcieReplayCounter"),
        },
        "bar1_bytes": None if bar1 is None else bar1.bar1Total,
        "mig": None if mig is None else [bool(mode) for mode in mig],
        "ecc": None if ecc is None else bool(ecc[0]),
        "remap_pending": None if rows is None else bool(rows[2]),
        "remap_failed": None if rows is None else bool(rows[3]),
        "persistence": None if persistence is None else bool(persistence),
        "power_limit_w": _watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
        "power_default_w": _watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        "throttle": _reasons(ask("nvmlDeviceGetCurrentClocksEventReasons") or 0),
    }


def _bus_id(pci: Any) -> str:
    """As sysfs spells it: four digits of domain, lower case."""
    text = str(pci.busId).lower()
    domain, colon, rest = text.partition(":")
    return f"{domain[-4:]}{colon}{rest}"


def _processes(ask: Any) -> Iterator[dict[str, Any]]:
    held: dict[int, int | None] = {}
    for kind in ("Compute", "Graphics"):
        for process in ask(f"nvmlDeviceGet{kind}RunningProcesses") or ():
            held[process.pid] = process.usedGpuMemory
    yield from ({"pid": pid, "used_bytes": used} for pid, used in sorted(held.items()))


def _cpu_words() -> int:
    return -(-(os.sysconf("SC_NPROCESSORS_CONF")) // 64)


def _ranges(words: Sequence[int]) -> str:
    """The set bits as the kernel writes lists of CPUs: 0-31,64-95."""
    cpus = {64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1}
    starts = sorted(cpu for cpu in cpus if cpu - 1 not in cpus)
    ends = sorted(cpu for cpu in cpus if cpu + 1 not in cpus)
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _reasons(mask: int) -> list[str]:
    return [name for bit, name in _THROTTLE.items() if mask & bit]


def _pairs(driver: _Driver, handles: dict[int, Any], bus_ids: dict[int, str]) -> Iterator[dict[str, Any]]:
    far_ends = {index: _far_ends(driver, index, handle) for index, handle in handles.items()}
    for a, b in combinations(sorted(handles), 2):
        try:
            ancestor = driver.ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b], card=a)
            p2p = driver.ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], _P2P_READ, card=a)
        except _Lost:
            continue
        nvlinks = far_ends[a][bus_ids[b]] or min(far_ends[a]["switch"], far_ends[b]["switch"])
        yield {
            "pair": [a, b],
            "relation": "NV" if nvlinks else _ANCESTORS.get(ancestor),
            "p2p": _P2P[p2p] if p2p is not None and p2p < len(_P2P) else "",
        }


def _far_ends(driver: _Driver, index: int, handle: Any) -> Counter[str]:
    """Active NVLinks by their far end: a PCI address, or `switch`. NVML's common ancestor knows PCIe only."""
    ends: Counter[str] = Counter()
    try:
        for link in range(_NVLINKS):
            active = driver.ask("nvmlDeviceGetNvLinkState", handle, link, card=index)
            if active is None:
                break
            if active:
                kind = driver.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, card=index)
                pci = driver.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link, card=index)
                if kind == _SWITCH or pci is not None:
                    ends["switch" if kind == _SWITCH else _bus_id(pci)] += 1
    except _Lost:
        ends.clear()
    return ends


def _links(driver: _Driver, limit_s: float, out: TextIO) -> int:
    code, error = driver.start()
    if code != 0:
        sys.stderr.write(f"{error}\n")
        return 1
    handles = {index: handle for index, handle, why in driver.cards() if not why}
    most: dict[int, list[int]] = {}
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        before = {index: list(link) for index, link in most.items()}
        for index, handle in handles.items():
            seen = most.setdefault(index, [0, 0])
            for place, what in enumerate(("Generation", "Width")):
                try:
                    now = driver.ask(f"nvmlDeviceGetCurrPcieLink{what}", handle, card=index)
                except _Lost:
                    now = None
                seen[place] = max(seen[place], now or 0)
        if most != before:
            print(json.dumps(most), file=out, flush=True)
        time.sleep(SAMPLE_S)
    return 0


def main(argv: Sequence[str]) -> int:
    """`argv`: LIMIT_S and perhaps --links. Returns the exit code."""
    limit_s = float(argv[0])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s + 1.0)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what the library itself prints is no part of the answer
        try:
            import pynvml
        except ImportError as error:
            json.dump({"code": -1, "error": str(error)}, out)
            return 0
        driver = _Driver(pynvml)
        if "--links" in argv:
            return _links(driver, limit_s, out)
        json.dump(_document(driver), out)
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # not sys.exit: a driver can also hang in its destructors
