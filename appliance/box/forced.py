"""Which failures an operator goes on in spite of, and why. Touches forced.json in the state folder.

Rules:
- Nothing is forced without a reason, and no id that no check has.
- A forced failure is a warning that carries the reason. One that no longer occurs stays until it is taken back.
- What is about a plan's bytes is forced for that plan only: another plan is another risk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from appliance.box.checks import IDS
from appliance.box.kept import keep, read
from appliance.errors import ConfigError, MoeError
from appliance.printable import printable
from gateway.state import Finding, Severity

NAME = "forced.json"
MODE = 0o600
REASON_CHARS = 200
OF_A_PLAN = ("plan.", "vram.total", "mem.node", "mem.cgroup", "mem.region")


class Forced(BaseModel):
    """One of them. `at_s`: seconds since the epoch; `by`: the user who said so; `plan_id`: the plan that it was said
    about, "" where the check is not about a plan's bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    reason: Annotated[str, Field(min_length=1)]
    at_s: float
    by: str = ""
    plan_id: str = ""


_FILE = TypeAdapter(tuple[Forced, ...])


def load(state_dir: Path) -> tuple[Forced, ...]:
    """What is forced, by id. Raises ConfigError when the file cannot be read or is broken."""
    path = state_dir / NAME
    try:
        raw = read(path)
        return () if raw is None else _FILE.validate_json(raw)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", f"sudo, or: ls -l {path}") from error
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"])) or "the file"
        raise ConfigError(f"{path}: {where}: {printable(fault['msg'])}", f"rm {path}; then force again") from error


def force(
    state_dir: Path, id_: str, reason: str, *, at_s: float, by: str, plan_id: str = "", known: Collection[str] = IDS
) -> tuple[Forced, ...]:
    """Remember that `id_` is forced, in place of an earlier reason; returns all of them. `plan_id`: of the plan of this
    box.

    Raises MoeError for an id that no check has, for no reason, and when the file cannot be written.
    """
    said = " ".join(reason.split())
    if id_ not in known:
        raise MoeError(
            f"no check has the id {printable(id_)}{_close(id_, known)}", "moe-appliance preflight   shows ids"
        )
    if not said or len(said) > REASON_CHARS:
        wanted = f"1 to {REASON_CHARS} characters that whoever sees the warning understands"
        raise MoeError(f"{id_} is not forced without a reason: {wanted}", f"... --force {id_} --reason TEXT")
    about = plan_id if id_.startswith(OF_A_PLAN) else ""
    new = Forced(id=id_, reason=printable(said), at_s=at_s, by=printable(by), plan_id=about)
    others = (one for one in load(state_dir) if one.id != id_)
    return _write(state_dir, (*others, new))


def unforce(state_dir: Path, id_: str) -> tuple[Forced, ...]:
    """Take it back; returns what is left. Raises MoeError when it is not forced."""
    now = load(state_dir)
    left = tuple(one for one in now if one.id != id_)
    if len(left) == len(now):
        ids = ", ".join(one.id for one in now) or "nothing"
        raise MoeError(
            f"{printable(id_)} is not forced; forced: {ids}", "moe-appliance preflight   shows what is forced"
        )
    return _write(state_dir, left)


def apply(findings: Iterable[Finding], forced: Iterable[Forced], plan_id: str = "") -> tuple[Finding, ...]:
    """The findings with forced failures made warnings; `plan_id`: of the plan of this box. Pure."""
    reasons = {one.id: one.reason for one in forced if one.plan_id == (plan_id if one.id.startswith(OF_A_PLAN) else "")}
    return tuple(
        finding.model_copy(update={"severity": Severity.WARN, "forced": reasons[finding.id]})
        if finding.severity is Severity.FAIL and finding.id in reasons
        else finding
        for finding in findings
    )


def unusable(error: ConfigError) -> Finding:
    """What is told when the file cannot be used: failures stay failures. Pure."""
    return Finding(
        id="forced.file",
        severity=Severity.WARN,
        title="What is forced is not known: failures stay failures",
        observed=error.message,
        required=f"a readable {NAME}, or none",
        remedy=error.remedy,
    )


def _close(id_: str, known: Collection[str]) -> str:
    close = get_close_matches(id_, sorted(known), 3)
    return f"; did you mean {', '.join(close)}?" if close else ""


def _write(state_dir: Path, forced: tuple[Forced, ...]) -> tuple[Forced, ...]:
    path = state_dir / NAME
    kept = tuple(sorted(forced, key=lambda one: one.id))
    try:
        keep(path, _FILE.dump_json(kept, indent=2, exclude_defaults=True) + b"\n", MODE)
    except OSError as error:
        raise MoeError(f"{path} cannot be written: {error.strerror}", f"sudo, or: ls -ld {state_dir}") from error
    return kept
