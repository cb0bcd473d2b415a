"""Which findings are shown and in which order: the box's own and those about the gateway's files. Pure.

Rules:
- Fail, warn, info; inside one severity the order in which they came.
- A finding whose `depends_on` is present is folded under the first cause of its chain, so that one cause is one
  line. A group stands where the worst of its members stands.
- Nothing is ever hidden: findings that blame each other in a circle stand alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from gateway.seats import counted
from gateway.snapshot import GatewaySnapshot
from gateway.state import Finding, Severity
from gateway.status.views import FileRow, FindingRow

KINDS = ("seats", "admins")
_RANK = {Severity.FAIL: 0, Severity.WARN: 1, Severity.INFO: 2}


def files_of(gateway: GatewaySnapshot | None) -> tuple[FileRow, ...]:
    """The files that the gateway reads, and whether it could. Its snapshot names them in the order of KINDS."""
    return tuple(
        FileRow(
            kind=kind,
            path=file.path,
            name=PurePath(file.path).name,
            state="broken" if file.error is not None else "missing" if file.missing else "ok",
            error=file.error,
        )
        for kind, file in zip(KINDS, gateway.files if gateway else (), strict=False)
    )


def raised(gateway: GatewaySnapshot | None) -> tuple[Finding, ...]:
    """What the gateway itself has to say: broken files, and that nobody can come in."""
    if gateway is None:
        return ()
    found = [*gateway.findings, *(_broken(row) for row in files_of(gateway) if row.error is not None)]
    if not any(seat.state == "active" for seat in gateway.seats):
        found.append(
            Finding(
                id="seats.none",
                severity=Severity.WARN,
                title="Nobody can come in: there is no active seat",
                observed=f"{counted(len(gateway.seats), 'seat')}, none active",
                required="one seat at least",
                remedy="moe-appliance seats add NAME",
                depends_on="seats.file_broken",
            )
        )
    return tuple(found)


def _broken(row: FileRow) -> Finding:
    return Finding(
        id=f"{row.kind}.file_broken",
        severity=Severity.WARN,
        title=f"{row.name} is broken; its last good version goes on",
        observed=row.error or "",
        required="a file without errors; it is looked at each second",
        remedy=f"${{EDITOR:-vi}} {row.path}",
    )


def arranged(findings: Iterable[Finding]) -> tuple[FindingRow, ...]:
    """Sorted and folded."""
    found = tuple(findings)
    by_id = {finding.id: finding for finding in reversed(found)}
    groups: dict[int, list[Finding]] = {id(f): [] for f in found}
    for finding in found:
        root = _root(finding, by_id)
        if root is not finding:
            groups[id(root)].append(finding)
    roots = [finding for finding in found if _root(finding, by_id) is finding]
    roots.sort(key=lambda f: min(_RANK[x.severity] for x in (f, *groups[id(f)])))
    return tuple(_row(f, groups[id(f)]) for f in roots)


def _root(finding: Finding, by_id: dict[str, Finding]) -> Finding:
    seen = {finding.id}
    at = finding
    while at.depends_on is not None and at.depends_on in by_id:
        if at.depends_on in seen:
            return finding
        at = by_id[at.depends_on]
        seen.add(at.id)
    return at


def _row(finding: Finding, folded: list[Finding]) -> FindingRow:
    return FindingRow(
        id=finding.id,
        severity=finding.severity,
        title=finding.title,
        observed=finding.observed,
        required=finding.required,
        remedy=finding.remedy,
        forced=finding.forced,
        folded=tuple(_row(f, []) for f in sorted(folded, key=lambda f: _RANK[f.severity])),
    )
