"""Pinned memory and copies of each card: what the child is told, and its answer. Touches processes and sysfs.

Never raises for what the cards, the driver or the child do: the answer carries it as text.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.box.child import Answer, run
from appliance.box.gpu import Gpu
from appliance.printable import printable

CHILD = Path(__file__).with_name("cuda_child.py")
BUFFER_BYTES = 1 << 30
"""One buffer in pinned memory and one on the card. Far above the processor's caches, so that memory is what is read."""
SECONDS = 1.5
"""Host-to-device copying a card and again of all together."""
ALARM_AFTER_S = 5.0
"""A child ends itself this long after the deadline, should nobody be left to end it."""


@dataclass(frozen=True, slots=True)
class Copies:
    """`rates`: kind (h2d, d2h, far, together) -> card index -> GB/s. `pin_s`: of the slowest card's allocation."""

    rates: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    pin_s: float | None = None
    pin_error: str = ""
    error: str = ""


def measure_copies(cards: Sequence[Gpu], environ: Mapping[str, str], deadline_s: float, root: Path) -> Copies:
    """Run the child on `cards`; at most `deadline_s` and 5 s more."""
    spec = {
        "cards": [_card(card, root) for card in cards],
        "bytes": BUFFER_BYTES,
        "seconds": SECONDS,
        "limit_s": deadline_s + ALARM_AFTER_S,
        "root": str(root),
    }
    # The cards are named by their addresses; what the engine may see is another matter.
    seen = {name: value for name, value in environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        answer = run([sys.executable, "-I", "-S", str(CHILD), json.dumps(spec)], seen, deadline_s)
    except OSError as error:
        return Copies(error=one_line(str(error)))
    return read_copies(answer, deadline_s)


def read_copies(answer: Answer, deadline_s: float) -> Copies:
    """What a child's events and its end come to; lines that are no events are passed over."""
    rates: dict[str, dict[int, float]] = {}
    pins: list[float] = []
    pin_errors: list[str] = []
    errors: list[str] = []
    step, done = "start", False
    for event in events(answer.out):
        match event:
            case {"event": "step", "text": str(text)}:
                step = one_line(text)
            case {"event": "rate", "kind": str(kind), "card": int(card), "gb_s": float(gb_s)}:
                rates.setdefault(kind, {})[card] = gb_s
            case {"event": "pinned", "s": float(pin_s)}:
                pins.append(pin_s)
            case {"event": "failed", "card": card, "call": str(call), "error": str(error)}:
                words = one_line(f"{call}: {error}" if card is None else f"card {card}: {call}: {error}")
                errors.append(words)
                if call == "cuMemHostAlloc":
                    pin_errors.append(words)
                done = done or card is None
            case {"event": "done"}:
                done = True
    if not done:
        errors.append(f"{ending(answer, deadline_s)} (at: {step})")
        if ": pinning " in step:
            pin_errors.append(errors[-1])
    return Copies(rates=rates, pin_s=max(pins, default=None), pin_error="; ".join(pin_errors), error="; ".join(errors))


def events(out: str) -> Iterator[Mapping[str, Any]]:
    """The lines of `out` that are JSON objects. Libraries write to the same pipe: everything else is theirs."""
    for line in out.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def ending(answer: Answer, deadline_s: float) -> str:
    """One line on a child that ended without saying why: HUNG, a signal by name, else the last words of stderr."""
    if answer.code is None:
        return f"HUNG: no end after {deadline_s:g} s"
    if answer.code < 0:
        number = -answer.code
        return f"ended by {signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'}"
    said = [line for line in answer.err.splitlines() if line.strip()]
    return f"no answer, exit code {answer.code}" + (f": {one_line(said[-1])}" if said else "")


def one_line(text: str) -> str:
    """`text` fit for a terminal, on one line, 300 characters at most."""
    return printable(" ".join(text.split()))


def _card(card: Gpu, root: Path) -> dict[str, Any]:
    """A card of the child's SPEC: with the node its memory is to come from, and the farthest other one."""
    found: dict[str, Any] = {"index": card.index, "bus_id": card.bus_id}
    if card.numa_node is None:
        return found
    folder = root / "sys/devices/system/node"
    found["near"] = {"node": card.numa_node, "cpus": _cpus(folder / f"node{card.numa_node}")}
    # Column n of a node's distances belongs to the n-th online node.
    online = _ranges(folder / "online")
    distances = _words(folder / f"node{card.numa_node}/distance")
    others = [
        (int(distance), node, cpus)
        for node, distance in zip(online, distances, strict=False)
        if node != card.numa_node and distance.isdigit() and (cpus := _cpus(folder / f"node{node}"))
    ]
    if others:
        _, node, cpus = max(others)
        found["far"] = {"node": node, "cpus": cpus}
    return found


def _cpus(node: Path) -> list[int]:
    return _ranges(node / "cpulist")


def _ranges(path: Path) -> list[int]:
    """The numbers of a kernel list such as 0-3,8; none when it cannot be read."""
    numbers: list[int] = []
    for word in ",".join(_words(path)).split(","):
        first, _, last = word.partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers += range(int(first), int(last or first) + 1)
    return numbers


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []
