"""Finds the Python that an environment is made with. Touches PATH; runs the Pythons that it finds."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from appliance.box import child
from appliance.checkpoint.faults import plain
from appliance.engine.environments.sets import GLIBC, EngineSet
from appliance.errors import MoeError

_ASK_S = 20.0
_ASK = (
    "import json, platform, sys, sysconfig, venv; print(json.dumps([sys.version_info[:2], platform.python_version(), "
    "sys.implementation.name, platform.machine(), platform.libc_ver(), sys._base_executable]))"
)


@dataclass(frozen=True, slots=True)
class Python:
    """`executable`: not a shim, and not of a virtual environment; `version`: `3.12.1`."""

    executable: Path
    version: str


def choose(wanted: EngineSet, given: Path | None) -> Python:
    """The Python for a set: `given`, or the first of its series that runs. Raises MoeError with the remedy."""
    if given is not None:
        found = _asked(given, wanted)
        if isinstance(found, str):
            raise MoeError(f"--python {plain(given)}: {found}", _remedy(wanted))
        return found
    name = f"python{wanted.series}"
    own = [Path(sys._base_executable)] if sys.version_info[:2] == wanted.python else []  # type: ignore[attr-defined]
    here = [shutil.which(name), f"/usr/bin/{name}", f"/usr/local/bin/{name}"]
    refused = []
    for path in dict.fromkeys((*own, *(Path(one) for one in here if one))):
        if path.exists():
            found = _asked(path, wanted)
            if isinstance(found, Python):
                return found
            refused.append(f"{plain(path)}: {found}")
    tried = "; ".join(refused) or f"there is no {name} in PATH, /usr/bin or /usr/local/bin"
    raise MoeError(f"the environment {wanted.name} needs Python {wanted.series}: {tried}", _remedy(wanted))


def _remedy(wanted: EngineSet) -> str:
    name = f"python{wanted.series}"
    return (
        f"apt-get install {name} {name}-venv {name}-dev, or: uv python install {wanted.series}; then: "
        f"moe-appliance engine install {wanted.name} --python $(command -v {name} || uv python find {wanted.series})"
    )


def _asked(path: Path, wanted: EngineSet) -> Python | str:
    """The Python, or why it does not do."""
    try:
        answer = child.run([str(path.absolute()), "-I", "-c", _ASK], dict(os.environ), _ASK_S)
        series, version, kind, machine, (libc, libc_version), executable = json.loads(answer.out)
    except OSError as error:
        return f"it cannot be run: {error.strerror or error}"
    except ValueError:
        late = f"not within {_ASK_S:g} s" if answer.code is None else "it says nothing, so it is no Python"
        said = answer.err.strip().splitlines() or [late]
        return f"it does not run: {plain(said[-1] if said[0].startswith('Traceback') else said[0])}"
    if tuple(series) != wanted.python:
        return f"it is Python {version}, and the locked packages are for {wanted.series}"
    if kind != "cpython" or machine != "x86_64":
        return f"it is {kind} on {machine}, and the locked packages are for CPython on x86_64"
    if libc != "glibc" or tuple(map(int, libc_version.split(".")[:2])) < GLIBC:
        return f"it runs on {libc or 'another C library'} {libc_version}; glibc {GLIBC[0]}.{GLIBC[1]} is the oldest"
    return Python(Path(executable), version)
