"""Makes a GpuReport of what the driver's child process wrote, or of how it ended. Pure.

Names and messages are the driver's and other people's processes' words: they are made printable here, and only here.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.box.gpu import Gpu, GpuProcess, GpuReport, Outcome, Relation
from appliance.engine.failures import signal_name
from appliance.printable import printable

_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12
_LIBRARY_MISMATCH = 18
"""NVML's codes. Source: pynvml's constants."""
_ASKING = "asking "


class Pair(BaseModel):
    """Two cards by index. `relation`: None when the driver did not say; `p2p`: "" likewise."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pair: tuple[int, int]
    relation: Relation | None = None
    p2p: str = ""


class Document(BaseModel):
    """What nvml_child.py prints. `code`: NVML's answer to nvmlInit, -1 = pynvml is missing; `library`: its version;
    `driver`: the version that the kernel module tells it; `lost`: index and the driver's words."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    code: int
    error: str = ""
    library: str = ""
    driver: str = ""
    cuda: str = ""
    confidential: bool | None = None
    cards: tuple[Gpu, ...] = ()
    lost: tuple[tuple[int, str], ...] = ()
    pairs: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """What the kernel says beside the driver. `present`: there are traces of a loaded module; `module`: its version;
    `registered`: PCI addresses of the cards that the module has taken; `numa_nodes`: by address, where known; `names`:
    of processes by pid."""

    present: bool = False
    module: str = ""
    registered: Sequence[str] = ()
    numa_nodes: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)


def document(text: str) -> Document | None:
    """What the child wrote, or None when that is no such document."""
    try:
        return Document.model_validate_json(text)
    except ValidationError:
        return None


def report(said: Document, kernel: Kernel) -> GpuReport:
    """The report for a child that answered."""
    outcome = _outcome(said, kernel)
    driver, module = printable(said.driver or said.library), printable(kernel.module)
    if outcome is not Outcome.OK:
        differ = f"the library is {driver or 'unknown'}, the kernel module {module or 'unknown'}"
        error = differ if outcome is Outcome.MISMATCH else printable(said.error)
        return GpuReport(outcome, error=error, driver=driver, module=module)
    return GpuReport(
        outcome=outcome,
        driver=driver,
        module=module,
        cuda=printable(said.cuda),
        gpus=tuple(_gpu(card, kernel) for card in said.cards),
        lost=_lost(said, kernel),
        relations={pair.pair: pair.relation for pair in said.pairs if pair.relation is not None},
        p2p={pair.pair: printable(pair.p2p) for pair in said.pairs if pair.p2p},
        confidential=said.confidential,
    )


def no_answer(code: int | None, written: str, module: str, deadline_s: float) -> GpuReport:
    """The report for a child that ended without a document. `code`: its exit code, minus the signal's number, None =
    killed at the deadline; `written`: its stderr."""
    lines = [line for line in written.splitlines() if line.strip()]
    calls = [line.removeprefix(_ASKING) for line in lines if line.startswith(_ASKING)]
    call = f" in {calls[-1]}" if calls else ""
    if code is None or code == -signal.SIGALRM:
        outcome, error = Outcome.HUNG, f"no answer within {deadline_s:g} s{call}"
    elif code < 0:
        outcome, error = Outcome.CRASHED, f"the process that asked died of {signal_name(-code)}{call}"
    else:
        last = next((line for line in reversed(lines) if not line.startswith(_ASKING)), "its answer is unreadable")
        outcome, error = Outcome.FAILED, f"the process that asked ended with code {code}{call}: {last}"
    return GpuReport(outcome, error=printable(error), module=printable(module))


def _outcome(said: Document, kernel: Kernel) -> Outcome:
    if said.code == 0:
        differ = bool(kernel.module and said.driver and kernel.module != said.driver)
        return Outcome.MISMATCH if differ else Outcome.OK
    if said.code == _LIBRARY_NOT_FOUND:
        return Outcome.NO_LIBRARY if kernel.present else Outcome.NO_DRIVER
    return {_DRIVER_NOT_LOADED: Outcome.NOT_LOADED, _LIBRARY_MISMATCH: Outcome.MISMATCH}.get(said.code, Outcome.FAILED)


def _gpu(card: Gpu, kernel: Kernel) -> Gpu:
    return replace(
        card,
        uuid=printable(card.uuid),
        name=printable(card.name),
        bus_id=printable(card.bus_id),
        processes=tuple(
            GpuProcess(process.pid, process.used_bytes, printable(kernel.names.get(process.pid, "")))
            for process in card.processes
        ),
        numa_node=kernel.numa_nodes.get(card.bus_id),
    )


def _lost(said: Document, kernel: Kernel) -> tuple[str, ...]:
    """The cards that the driver refuses, with their addresses where they can be told, and those that the kernel module
    has taken and the library does not count."""
    silent = sorted(set(kernel.registered) - {card.bus_id for card in said.cards})
    if len(silent) == len(said.lost):  # both are in the order of the bus
        return tuple(
            printable(f"card {index} at {bus_id}: {why}")
            for (index, why), bus_id in zip(said.lost, silent, strict=True)
        )
    refused = tuple(printable(f"card {index}: {why}") for index, why in said.lost)
    if said.lost:
        return refused
    return tuple(printable(f"{bus_id}: the kernel module has it, the library does not count it") for bus_id in silent)
