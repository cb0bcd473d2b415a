"""Whether this user can use a path that somebody named, and the command that lets it. Touches the file system, by
looking only.

Rule: Path.exists, is_file and is_dir raise PermissionError below a folder that may not be entered. What is named in a
configuration is looked at with these, which raise nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from appliance.printable import printable


@dataclass(frozen=True, slots=True)
class Barred:
    """Why a path cannot be used. `remedy`: the command that lets this user use it; "" = none does, for it is not there
    or is something else."""

    why: str
    remedy: str = ""


def file_barred(path: Path) -> Barred | None:
    """Why it is no file that can be read; None = it is one."""
    return _barred(path, stat.S_ISREG, "it is no file", os.R_OK, "a+r")


def program_barred(path: Path) -> Barred | None:
    """Why it is no file that can be run; None = it is one."""
    return _barred(path, stat.S_ISREG, "it is no file", os.X_OK, "a+rx")


def folder_barred(path: Path) -> Barred | None:
    """Why it is no folder whose files can be listed and opened; None = it is one."""
    return _barred(path, stat.S_ISDIR, "it is no folder", os.R_OK | os.X_OK, "-R a+rX")


def _barred(path: Path, is_meant: Callable[[int], bool], other: str, need: int, opens: str) -> Barred | None:
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return _denied("a+x", _closed(path))
    except OSError as error:
        return Barred(error.strerror or str(error))
    except ValueError as error:  # a NUL
        return Barred(str(error))
    if not is_meant(mode):
        return Barred(other)
    return None if os.access(path, need) else _denied(opens, path)


def _denied(opens: str, path: Path) -> Barred:
    shown = quote(printable(str(path)))
    return Barred(os.strerror(errno.EACCES), f"sudo chmod {opens} {shown}   lets the user that runs moe-appliance in")


def _closed(path: Path) -> Path:
    """The first folder on the way there, links followed, that may not be entered."""
    real = path.resolve()
    return next((folder for folder in reversed(real.parents) if not os.access(folder, os.X_OK)), real.parent)
