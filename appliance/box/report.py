"""A preflight as a value: what was seen, what is wrong with it, and both as JSON. Pure.

The file keeps the facts, so that they can be judged again for another plan. Mappings with pairs for keys are written
with texts: "0,1".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from appliance.box.facts import Facts
from appliance.box.gpu import Outcome
from appliance.errors import EXIT_CONFIG
from appliance.units import count
from gateway.state import Finding, Severity

SCHEMA = "moe-appliance.preflight/1"
_PAIRED = ("relations", "p2p")


@dataclass(frozen=True, slots=True)
class Preflight:
    """`at_s`: when, seconds since the epoch; `boot_id`: of the boot, "" = unknown; `findings`: forced ones already
    warnings; `notes`: sentences on what was not looked at."""

    at_s: float
    boot_id: str
    findings: tuple[Finding, ...]
    facts: Facts
    notes: tuple[str, ...] = ()
    schema: Literal["moe-appliance.preflight/1"] = "moe-appliance.preflight/1"


_PREFLIGHT = TypeAdapter(Preflight)


def to_json(preflight: Preflight) -> bytes:
    """For preflight.json."""
    return _PREFLIGHT.dump_json(preflight)


def from_json(raw: bytes) -> Preflight | None:
    """What preflight.json says; None when it is none of ours, or of another version of the program."""
    try:
        data = _ANY.validate_json(raw)
        gpus = data["facts"]["gpus"] if isinstance(data, dict) else None
        for name in _PAIRED:
            if gpus and gpus.get(name):
                gpus[name] = {tuple(key.split(",")): value for key, value in gpus[name].items()}
        return _PREFLIGHT.validate_python(data)
    except (ValidationError, KeyError, TypeError, AttributeError):
        return None


_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def exit_code(findings: Iterable[Finding]) -> int:
    """0 clean, 1 warnings, 78 failures; notes change nothing."""
    seen = {finding.severity for finding in findings}
    return EXIT_CONFIG if Severity.FAIL in seen else int(Severity.WARN in seen)


def verdict(preflight: Preflight) -> str:
    """One sentence: how many of what, and what the box is. A cause and what follows from it
    count once, as the worst of them."""
    causes = {finding.id: finding.depends_on for finding in preflight.findings}
    worst: dict[str, Severity] = {}
    for finding in preflight.findings:
        root = finding.id
        for _ in causes:
            root = cause if (cause := causes[root]) in causes and cause is not None else root
        worst[root] = min(worst.get(root, finding.severity), finding.severity, key=_ORDER.index)
    seen = Counter(worst.values())
    said = [count(seen[severity], word) for severity, word in _WORDS.items() if seen[severity]]
    if not seen[Severity.FAIL] and not seen[Severity.WARN]:
        said.insert(0, "clean")
    return f"{', '.join(said)}: {_box(preflight.facts)}"


_ORDER = (Severity.FAIL, Severity.WARN, Severity.INFO)
_WORDS = {Severity.FAIL: "failure", Severity.WARN: "warning", Severity.INFO: "note"}


def _box(facts: Facts) -> str:
    report = facts.gpus
    if report is None:
        return "nobody asked for cards"
    if report.outcome is Outcome.NO_DRIVER:
        return "no NVIDIA driver"
    if report.outcome is not Outcome.OK:
        return "the NVIDIA driver cannot be used"
    names = {gpu.name: sum(other.name == gpu.name for other in report.gpus) for gpu in report.gpus}
    cards = " and ".join(f"{many} x {name}" for name, many in names.items()) or "no card"
    return f"{cards}, driver {report.driver}"


def document(preflight: Preflight, forced_but_gone: Iterable[str] = ()) -> dict[str, Any]:
    """What `--json` prints. `forced_but_gone`: ids that are forced and did not occur."""
    report, host, deep = preflight.facts.gpus, preflight.facts.host, preflight.facts.deep
    relations = report.relations if report is not None and report.relations is not None else {}
    p2p = report.p2p if report is not None and report.p2p is not None else {}
    return {
        "verdict": verdict(preflight),
        "exit": exit_code(preflight.findings),
        "at": datetime.fromtimestamp(preflight.at_s, UTC).isoformat(timespec="seconds"),
        "boot_id": preflight.boot_id,
        "findings": [finding.model_dump(mode="json") for finding in preflight.findings],
        "forced_but_gone": list(forced_but_gone),
        "notes": list(preflight.notes),
        "driver": None
        if report is None
        else {"outcome": report.outcome, "version": report.driver, "cuda": report.cuda},
        "cards": [] if report is None else [asdict(gpu) for gpu in report.gpus],
        "pairs": [
            {"cards": list(pair), "relation": relations.get(pair), "p2p": p2p.get(pair)}
            for pair in sorted({*relations, *p2p})
        ],
        "nodes": [] if host is None else [asdict(node) for node in host.nodes],
        "deep": None if deep is None else asdict(deep),
    }
