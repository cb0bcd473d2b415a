"""Asks NVIDIA's driver about the cards, through a child process under a deadline. Touches processes, /proc and /sys.

Blocks for up to twice its deadline: call it in a thread. This process never loads NVML, so a driver that hangs or
crashes takes nothing with it.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from appliance.box import nvml_report, topology
from appliance.box.child import OneChild
from appliance.box.gpu import GpuReport, Outcome
from appliance.box.nvml_report import Document, Kernel
from appliance.printable import printable

DEADLINE_S = 15.0
"""For eight cards. Without the persistence daemon the driver wakes each card first, which takes a second or two; a
card whose firmware hangs answers nothing for 45 s. Source: NVIDIA/open-gpu-kernel-modules#1111 for the latter."""
TOPO_DEADLINE_S = 5.0
_VERSION = re.compile(r"(?<![\w.])\d+\.\d+(?:\.\d+)?(?![\w.])")
_NVML, _TOPO = OneChild(), OneChild()


def gather(
    root: Path = Path("/"),
    deadline_s: float = DEADLINE_S,
    environ: Mapping[str, str] | None = None,
    *,
    child: OneChild = _NVML,
    with_topo: bool = True,
) -> GpuReport:
    """Everything the driver says, at most `deadline_s` and, for `nvidia-smi topo -m`, TOPO_DEADLINE_S from now.
    `with_topo` False: nvidia-smi is not asked.

    `root`: where /proc, /sys and /dev are found. `environ`: the child's whole environment, None = this process's.
    """
    module = _module_version(root)
    try:
        answer = child.ask(_argv(deadline_s), os.environ if environ is None else environ, deadline_s)
    except OSError as error:
        return GpuReport(Outcome.FAILED, error=printable(f"{sys.executable} cannot be started: {error}"), module=module)
    if answer.refused:
        return GpuReport(Outcome.HUNG, error=answer.refused, module=module)
    said = nvml_report.document(answer.out) if answer.code == 0 else None
    if said is None:
        return nvml_report.no_answer(answer.code, answer.err, module, deadline_s)
    report = nvml_report.report(said, _kernel(root, module, said))
    if not report.relations or not with_topo:
        return report
    text = topo_text(min(deadline_s, TOPO_DEADLINE_S), environ)
    return replace(report, topo_text_disagrees=topology.disagreement(report.relations, topology.parse(text or "")))


def topo_text(deadline_s: float, environ: Mapping[str, str] | None = None, *, child: OneChild = _TOPO) -> str | None:
    """What `nvidia-smi topo -m` prints, or None: it is not installed, failed, or took longer than `deadline_s`."""
    environ = os.environ if environ is None else environ
    program = shutil.which("nvidia-smi", path=environ.get("PATH", os.defpath))
    if program is None:
        return None
    try:
        answer = child.ask([program, "topo", "-m"], environ, deadline_s)
    except OSError:
        return None
    return answer.out if answer.code == 0 else None


class Links:
    """Watches the cards' PCIe links while something copies: `with Links(10) as links: copy()`, then `links.seen`.

    `seen`: index -> (generation, lanes), the most that was seen of each; empty when the driver did not answer.
    It watches for `seconds` at most, every 50 ms, and from before the body begins unless the driver takes longer than
    `deadline_s` for its first answer.
    """

    def __init__(
        self, seconds: float, environ: Mapping[str, str] | None = None, *, deadline_s: float = DEADLINE_S
    ) -> None:
        self.seen: Mapping[int, tuple[int, int]] = {}
        self._deadline_s = deadline_s
        self._argv = [*_argv(seconds + deadline_s), "--links"]
        self._environ = dict(os.environ if environ is None else environ)
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Links:
        self._child = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environ,
            start_new_session=True,
        )
        assert self._child.stdout is not None
        select.select([self._child.stdout], [], [], self._deadline_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        child = self._child
        assert child is not None and child.stdout is not None  # noqa: PT018 - for mypy
        with child.stdout as pipe:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0.5)
            os.set_blocking(pipe.fileno(), False)
            lines = (pipe.read() or b"").splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        with suppress(ValueError, TypeError, AttributeError, IndexError):  # none, or something else wrote there
            self.seen = {int(index): (gen, width) for index, (gen, width) in json.loads(whole[-1]).items()}


def _argv(limit_s: float) -> list[str]:
    return [sys.executable, "-I", "-m", "appliance.box.nvml_child", f"{limit_s:g}"]


def _module_version(root: Path) -> str:
    """Of the loaded kernel module, "" when none is."""
    first = _read(root / "proc/driver/nvidia/version").partition("\n")[0]
    found = _VERSION.search(first)
    return found[0] if found else ""


def _kernel(root: Path, module: str, said: Document) -> Kernel:
    driver = root / "proc/driver/nvidia"
    pids = {process.pid for card in said.cards for process in card.processes}
    return Kernel(
        present=driver.exists() or (root / "dev/nvidiactl").exists(),
        module=module,
        registered=_names_in(driver / "gpus"),
        numa_nodes=_numa_nodes(root, (card.bus_id for card in said.cards)),
        names={pid: _read(root / f"proc/{pid}/comm").strip() for pid in pids},
    )


def _numa_nodes(root: Path, bus_ids: Iterable[str]) -> Mapping[str, int]:
    """The kernel says -1 for a card of which it does not know: that is left out."""
    texts = {bus_id: _read(root / f"sys/bus/pci/devices/{bus_id}/numa_node").strip() for bus_id in bus_ids}
    return {bus_id: int(text) for bus_id, text in texts.items() if text.isdecimal()}


def _names_in(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name.lower() for entry in folder.iterdir()))
    except OSError:
        return ()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
