"""Judges whether an environment is what its lock says and works here. Runs its Python; reads the sources it was built
from; writes `verified.json`."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from appliance.box import child
from appliance.checkpoint.faults import plain, typed
from appliance.engine.environments import build, sources, verify_child
from appliance.engine.environments.folders import Environment
from appliance.engine.environments.lock import Lock
from appliance.engine.environments.manifest import BuiltFrom
from appliance.engine.environments.sets import EngineSet, named
from appliance.errors import MoeError
from appliance.units import count
from gateway.files import read_small, replace_file
from gateway.state import Finding, Severity

DEADLINE_S = 300.0
"""For the imports of vLLM, from a cold disk. Source: 150 s for three processes at once on two loaded cores."""
VERIFIED = "verified.json"
BROKEN = frozenset({"environment.child", "environment.packages", "environment.imports", "environment.plugins"})
"""What no card and no driver can mend: with these, an environment does not become the current one."""
_MAX_BYTES = 1 << 20
_NAMED = 6
_CHILD = Path(verify_child.__file__)


@dataclass(frozen=True, slots=True)
class Verified:
    """What the last look said. `at_s`: seconds since the epoch; `failed`: ids of the findings that fail."""

    at_s: float
    failed: tuple[str, ...] = ()


_VERIFIED: TypeAdapter[Verified] = TypeAdapter(Verified)


def verify(environment: Environment, shipped: Lock, *, deadline_s: float = DEADLINE_S) -> tuple[Finding, ...]:
    """All that is wrong with an environment; INFO for what was seen. `shipped`: the lock that it would be made of now,
    which need not be the one it was made of."""
    wanted = named(environment.name)
    again = f"rm -r {typed(environment.folder)}; moe-appliance engine install {wanted.name}"
    question = json.dumps({"imports": wanted.imports, "device": wanted.device})
    environ = dict(os.environ) | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    try:
        answer = child.run([str(environment.python), "-I", str(_CHILD), question], environ, deadline_s)
    except OSError as error:
        return (_fail("child", "Its Python does not run", f"{environment.python}: {error.strerror}", "it runs", again),)
    said = _last(answer.out)
    found = [*_ended(said, answer, deadline_s, again)]
    if said is not None:
        found += _packages(said, environment.manifest.packages, wanted if environment.manifest.sources else None, again)
        found += _imports(said, wanted, again)
        found += _plugins(said, wanted, again)
        found += _compiler(said, wanted)
        if not said["next"]:
            found += _device(said, wanted)
    found += _sources(environment)
    if environment.manifest.lock_sha256 != shipped.sha256:
        title, required = "There is a newer set of packages for this engine", f"the lock {shipped.sha256[:12]}"
        observed = (
            f"made of the lock {environment.manifest.lock_sha256[:12]} by moe-appliance {environment.manifest.tool}"
        )
        remedy = f"moe-appliance engine install {wanted.name}"
        found.append(_finding("lock", Severity.WARN, title, observed, required, remedy))
    return tuple(found)


def keep(environment: Environment, findings: Iterable[Finding], at_s: float | None = None) -> None:
    """Note in the environment's folder that it was looked at, where that can be written."""
    failed = tuple(one.id for one in findings if one.severity is Severity.FAIL)
    seen = Verified(time.time() if at_s is None else at_s, failed)
    try:
        replace_file(environment.folder / VERIFIED, _VERIFIED.dump_json(seen), 0o640)
    except OSError:
        return  # who may only look has looked all the same


def last_look(environment: Environment) -> Verified | None:
    """When it was looked at last, and what failed; None = never."""
    try:
        return _VERIFIED.validate_json(read_small(environment.folder / VERIFIED, _MAX_BYTES))
    except (OSError, ValueError, ValidationError):
        return None


def _last(out: str) -> dict[str, Any] | None:
    for line in reversed(out.splitlines()):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "next" in said:
            return said
    return None


def _ended(said: dict[str, Any] | None, answer: child.Answer, deadline_s: float, again: str) -> Sequence[Finding]:
    if said is not None and not said["next"]:
        return ()
    where = f"at: {said['next']}" if said is not None else "at its start"
    lines = answer.err.strip().splitlines()
    end = f"it did not end within {deadline_s:.0f} s" if answer.code is None else f"it ended with code {answer.code}"
    observed = f"{end}, {where}" + (f": {plain(lines[-1])}" if lines else "")
    return (_fail("child", "Its Python did not get through the check", observed, "every step ends", again),)


def _packages(said: dict[str, Any], locked: dict[str, str], built: EngineSet | None, again: str) -> Sequence[Finding]:
    """`locked`: name -> version; `built`: the set, when sources of it were built beside them."""
    there, wanted = said["packages"], {name.replace(".", "-"): version for name, version in locked.items()}
    sources_of = {source.distribution for source in built.sources} if built is not None else set[str]()
    wrong = [
        f"{name} {there.get(name, 'is missing')}, locked {version}"
        for name, version in wanted.items()
        if there.get(name) != version
    ]
    wrong += [f"{name}, which was built, is missing" for name in sorted(sources_of - there.keys())]
    wrong += [f"{name} is not of it" for name in sorted(there.keys() - wanted.keys() - sources_of)]
    if not wrong:
        return ()
    observed = "; ".join(map(plain, wrong[:_NAMED]))
    observed += f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
    title = "Its packages are not those of the lock"
    return (_fail("packages", title, observed, f"{count(len(locked), 'package')} as locked", again),)


def _imports(said: dict[str, Any], wanted: EngineSet, again: str) -> Sequence[Finding]:
    first = next(((name, said["errors"][name]) for name in wanted.imports if name in said["errors"]), None)
    if first is None:
        return ()
    observed = f"{first[0]}: {plain(first[1])}"
    return (_fail("imports", "The engine cannot be imported", observed, f"{', '.join(wanted.imports)} import", again),)


def _plugins(said: dict[str, Any], wanted: EngineSet, again: str) -> Sequence[Finding]:
    missing = [name for name in wanted.plugins if name not in said["plugins"]]
    if not missing:
        return ()
    there = ", ".join(map(plain, said["plugins"])) or "none"
    title = "The engine would not find its plugin"
    required = f"{', '.join(missing)} in {verify_child.GROUP}"
    return (_fail("plugins", title, f"entry points there: {there}", required, again),)


def _compiler(said: dict[str, Any], wanted: EngineSet) -> Sequence[Finding]:
    lacking = said["no_compiler"] if wanted.device == "cuda" else []
    if not lacking:
        return ()
    title = "The engine could not compile its kernels at its start"
    required = f"gcc, and the headers of Python {wanted.series}"
    remedy = f"apt-get install gcc libc6-dev python{wanted.series}-dev"
    return (_fail("compiler", title, f"missing: {', '.join(map(plain, lacking))}", required, remedy),)


def _device(said: dict[str, Any], wanted: EngineSet) -> Sequence[Finding]:
    found = []
    if wanted.device == "cuda":
        found += _cuda(said["cuda"])
    if said["platform"] != wanted.device and not found and not said["errors"]:
        seen = plain(said["platform"]) or "none"
        title = "vLLM takes this machine for another kind"
        found.append(
            _fail("platform", title, f"platform {seen}", f"platform {wanted.device}", "moe-appliance preflight")
        )
    return found


def _cuda(cuda: dict[str, Any]) -> list[Finding]:
    if "error" in cuda or not cuda["cards"]:
        observed = (
            plain(cuda["error"]) if "error" in cuda else f"torch for CUDA {plain(cuda['built_for'])} sees no card"
        )
        return [_fail("cuda", "The engine sees no card", observed, "one card or more", "moe-appliance preflight")]
    codes = {int(code.removeprefix("sm_").rstrip("af")) // 10 for code in cuda["codes"] if code.startswith("sm_")}
    old = [f"{plain(name)} {major}.{minor}" for name, (major, minor) in cuda["cards"] if codes and major not in codes]
    if old:
        title = "torch has no code for a card"
        required = f"one of {', '.join(map(plain, cuda['codes']))}"
        return [_fail("cuda", title, "; ".join(old), required, "moe-appliance engine list   shows other engines")]
    cards = ", ".join(f"{plain(name)} ({major}.{minor})" for name, (major, minor) in cuda["cards"])
    return [
        Finding(
            id="environment.cuda",
            severity=Severity.INFO,
            title="The engine sees its cards",
            observed=cards,
            required="one card or more",
            remedy="none",
        )
    ]


def _sources(environment: Environment) -> list[Finding]:
    """The operator's sources, as they are now, against what was built."""
    found = []
    built = {one.key: one for one in environment.manifest.sources}
    for key, one in built.items():
        remedy = f"put back what was built, or: moe-appliance engine install {environment.name} --sources FILE"
        try:
            wrong = sources.problem(one) or (_patch_problem(one, built[one.to]) if one.to else "")
        except (OSError, MoeError) as error:
            title, wanted = f"The source [{key}] cannot be read any more", f"{plain(one.path)} as it was built"
            found.append(_finding("sources", Severity.WARN, title, plain(error), wanted, remedy))
            continue
        if wrong:
            title, wanted = f"The source [{key}] is not what was built", f"{plain(one.path)} as it was built"
            found.append(_fail("sources", title, wrong, wanted, remedy))
    return found


def _patch_problem(patch: BuiltFrom, target: BuiltFrom) -> str:
    if Path(target.path).is_dir():
        return build.patch_problem(Path(patch.path), Path(target.path))
    with tempfile.TemporaryDirectory() as folder:
        return build.patch_problem(Path(patch.path), build.copied(target, Path(folder) / target.key))


def _fail(id_: str, title: str, observed: str, required: str, remedy: str) -> Finding:
    return _finding(id_, Severity.FAIL, title, observed, required, remedy)


def _finding(id_: str, severity: Severity, title: str, observed: str, required: str, remedy: str) -> Finding:
    return Finding(
        id=f"environment.{id_}", severity=severity, title=title, observed=observed, required=required, remedy=remedy
    )
