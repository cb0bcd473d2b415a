"""Looks at the box and judges it: the same for the daemon and for `moe-appliance preflight`.

Touches /proc, /sys, /dev, the driver (through children), and preflight.json in the state folder. Blocks for a second or
two, at most for its deadlines: call it in a thread.

Rules:
- Each probe has a deadline of its own; one that does not come back leaves its facts unknown and the others whole.
- What `--deep` measured and the first error counters are kept until the next boot, and judged again each time.
- The file is a convenience: that it cannot be read or written is a note.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from appliance.box import checks, forced, nvml, probe_pci
from appliance.box.facts import Counters, Facts
from appliance.box.gpu import DeepReport, Gpu, GpuReport, Outcome
from appliance.box.kept import keep, read
from appliance.box.needs import Needs, Wants
from appliance.box.probe import probe
from appliance.box.probe_host import probe_host
from appliance.box.probe_pci import text
from appliance.box.report import Preflight, from_json, to_json
from appliance.errors import ConfigError
from gateway.state import Finding

NAME = "preflight.json"
MODE = 0o640
PROBE_S = 5.0
WAKE_S = 2.0
"""More for each card: a driver without the persistence daemon wakes one after the other. Source: nvml.DEADLINE_S."""
HOST_S = 8.0
"""For /proc, /sys and /dev, where device nodes and the journal may take 3.5 s each."""
_LATE_S = 1.0

Deep: TypeAlias = Callable[[Sequence[Gpu]], DeepReport]
Wanted: TypeAlias = Needs | Callable[[Facts], Wants]
"""What is needed of the box; a plan's bytes on each node depend on which cards hang there."""
T = TypeVar("T")


class _Asked(Generic[T]):
    """A question that is asked in a thread of its own, which nobody waits for at the end of the process."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._answer: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error

    def answer(self, deadline_s: float) -> T | None:
        """What came of it; None when nothing did in time."""
        self._thread.join(deadline_s)
        if self._error is not None:
            raise self._error
        return self._answer


def gather(
    state_dir: Path,
    listen_host: str = "127.0.0.1",
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    secret_files: Sequence[Path] = (),
    deadline_s: float | None = None,
) -> Facts:
    """The box with its cards and all around them. `root`: where /proc, /sys and /dev are; `deadline_s`: for the
    driver, None = 5 s and 2 s more for each card."""
    environ = os.environ if environ is None else environ
    limit_s = deadline_s if deadline_s is not None else PROBE_S + WAKE_S * len(probe_pci.cards(root))
    cards = _Asked(lambda: nvml.gather(root, limit_s, environ))
    host = _Asked(lambda: probe_host(root, environ, secret_files))
    facts = probe(state_dir, listen_host, root=root)
    around = host.answer(HOST_S)
    report = cards.answer(limit_s + nvml.TOPO_DEADLINE_S + _LATE_S)
    if report is None:
        report = GpuReport(Outcome.HUNG, error=f"no answer within {limit_s:g} s")
    return replace(facts, gpus=report, host=around)


def run(
    state_dir: Path,
    needs: Wanted,
    *,
    listen_host: str = "127.0.0.1",
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    secret_files: Sequence[Path] = (),
    deadline_s: float | None = None,
    deep: Deep | None = None,
    clock: Callable[[], float] = time.time,
) -> Preflight:
    """Look, measure with `deep` when it is given, judge, and keep it."""
    facts = gather(state_dir, listen_host, root=root, environ=environ, secret_files=secret_files, deadline_s=deadline_s)
    boot_id = facts.host.boot_id if facts.host is not None else ""
    earlier, notes = _earlier(state_dir)
    at_s = clock()
    first = _counters(facts, at_s)
    if earlier is not None and boot_id and earlier.boot_id == boot_id:
        first = earlier.facts.first or first
    kept, note = _still_true(earlier, facts, boot_id)
    if note:
        notes.append(note)
    wants = _wants(needs, facts)
    if deep is not None:
        measured = deep(checks.used_of(facts, wants.needs))
        notes += _skipped(measured)
        kept = kept if measured.bandwidth_skipped and kept is not None else measured
    if facts.host is None:
        notes.append(f"/proc and /sys gave no answer within {HOST_S:g} s: memory and kernel were not looked at")
    facts = replace(facts, deep=kept, first=first)
    seen = _judged(state_dir, wants, Preflight(at_s, boot_id, (), facts, tuple(notes)))
    try:
        keep(state_dir / NAME, to_json(seen), MODE)
    except OSError as error:
        if deep is not None or os.path.lexists(state_dir):
            note = f"{state_dir / NAME} was not written ({error.strerror}): nothing of this is kept; "
            remedy = f"make {state_dir} a folder that this user may write to, or run it as one who may"
            return replace(seen, notes=(*seen.notes, note + remedy))
    return seen


def run_small(state_dir: Path, needs: Wanted, *, listen_host: str, root: Path) -> Preflight:
    """Look at what an engine without cards needs, and judge it. What is kept of a whole look stays."""
    facts = probe(state_dir, listen_host, root=root)
    return _judged(state_dir, _wants(needs, facts), Preflight(time.time(), "", (), facts))


def cached(state_dir: Path, needs: Wanted, *, root: Path = Path("/")) -> Preflight | None:
    """The last look of this boot, judged again; None when there was none. Raises OSError when it cannot be read."""
    raw = read(state_dir / NAME)
    seen = from_json(raw) if raw is not None else None
    if seen is None or seen.boot_id != (text(root / "proc/sys/kernel/random/boot_id") or ""):
        return None
    return _judged(state_dir, _wants(needs, seen.facts), seen)


def gone(state_dir: Path, seen: Preflight) -> tuple[str, ...]:
    """Ids that are forced and did not occur this time; none when forced.json cannot be used."""
    here = {finding.id for finding in seen.findings}
    return tuple(one.id for one in _forced(state_dir)[0] if one.id not in here)


def _wants(needs: Wanted, facts: Facts) -> Wants:
    return Wants(needs) if isinstance(needs, Needs) else needs(facts)


def _judged(state_dir: Path, wants: Wants, seen: Preflight) -> Preflight:
    found = checks.linked((*checks.judge(seen.facts, wants.needs), *wants.findings))
    known, trouble = _forced(state_dir)
    return replace(seen, findings=(*forced.apply(found, known, wants.needs.plan_id), *trouble))


def _forced(state_dir: Path) -> tuple[tuple[forced.Forced, ...], tuple[Finding, ...]]:
    """What is forced, and what is wrong with the file."""
    try:
        return forced.load(state_dir), ()
    except ConfigError as error:
        return (), (forced.unusable(error),)


def _earlier(state_dir: Path) -> tuple[Preflight | None, list[str]]:
    try:
        raw = read(state_dir / NAME)
    except OSError as error:
        return None, [f"{state_dir / NAME} cannot be read ({error.strerror}): what --deep measured is not known"]
    return (from_json(raw) if raw is not None else None), []


def _still_true(earlier: Preflight | None, facts: Facts, boot_id: str) -> tuple[DeepReport | None, str]:
    """What `--deep` measured earlier, or why it counts no longer. It stays while the driver does not answer."""
    deep = earlier.facts.deep if earlier is not None else None
    if earlier is None or deep is None:
        return None, ""
    if not boot_id or earlier.boot_id != boot_id:
        return None, "what --deep measured before the reboot is not used: moe-appliance preflight --deep"
    report = facts.gpus
    now = {(gpu.index, gpu.uuid) for gpu in report.gpus} if report is not None else set()
    if report is not None and report.outcome is Outcome.OK and not now.issuperset(deep.cards):
        return None, "what --deep measured is of other cards than these: moe-appliance preflight --deep"
    return deep, ""


def _counters(facts: Facts, at_s: float) -> Counters:
    cards = facts.gpus.gpus if facts.gpus is not None else ()
    ports = facts.host.aer if facts.host is not None else ()
    return Counters(
        at_s=at_s,
        replays={gpu.bus_id: gpu.link.replays for gpu in cards if gpu.link.replays is not None},
        corrected={port.bus_id: port.correctable for port in ports},
    )


def _skipped(deep: DeepReport) -> list[str]:
    if deep.bandwidth_skipped:
        return [f"--deep measured nothing: {deep.bandwidth_skipped}"]
    return [f"NCCL was not tried: {deep.nccl_skipped}"] if deep.nccl_skipped else []
