"""The sources that an operator supplies for a set: the file that names them, and whether they are what it says. Touches
the file and the sources; runs git.

    [plugin]                     # and [exllamav3]
    path = "/srv/src/vllm-exl3"  # a folder or a .tar.gz
    commit = "d3cfd394..."
    sha256 = "..."               # of the archive; of a folder: of its names and contents
    [patch]
    path = "/srv/src/ours.patch"
    sha256 = "..."
    to = "plugin"

Rules:
- Nothing of them is in our package. They are read where they lie, copied, and never changed.
- Of an archive the commit is what the file says; of a folder with .git it is asked of git.
- A folder's hash leaves .git out; links count as where they point to, not as what is there.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.box import child
from appliance.checkpoint.faults import plain, typed
from appliance.engine.environments.manifest import BuiltFrom
from appliance.engine.environments.sets import EngineSet
from appliance.errors import MoeError

PATCH = "patch"
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".tar.xz")
_ASK_S = 60.0
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Given:
    """The sources, each with the hash that it has now, in the order in which they are built; the patch last."""

    sources: tuple[BuiltFrom, ...]

    @property
    def hashes(self) -> tuple[str, ...]:
        """What tells one environment from another: key, hash and aim of each."""
        return tuple(f"{one.key} {one.sha256} {one.to}" for one in self.sources)


def read(file: Path | None, wanted: EngineSet) -> Given:
    """The sources of a set, checked. Raises MoeError naming the file and the key."""
    if not wanted.sources:
        if file is not None:
            raise MoeError(f"--sources: {wanted.name} is made of wheels alone", "leave --sources out")
        return Given(())
    if file is None:
        keys = ", ".join(f"[{source.key}]" for source in wanted.sources)
        raise MoeError(
            f"{wanted.name} is built from sources that you supply: {keys} and [{PATCH}]",
            "write a TOML file that has path, sha256 and commit for each, of the patch path, sha256 and to (what it is "
            f"for), then: moe-appliance engine install {wanted.name} --sources FILE",
        )
    tables = _tables(file, wanted)
    in_order = (*(source.key for source in wanted.sources), PATCH)
    return Given(tuple(_checked(file, key, tables[key], wanted) for key in in_order))


def problem(one: BuiltFrom) -> str:
    """Why a source is no longer what it was; "" = it is. Raises OSError when it cannot be read."""
    path = Path(one.path)
    now = sha256_of(path)
    if now != one.sha256:
        return f"its SHA-256 is {now}, and it was {one.sha256}"
    return _commit_problem(path, one.commit)


def sha256_of(path: Path) -> str:
    """Of a file, or of a folder's names, modes and contents without .git. Raises OSError."""
    digest = hashlib.sha256()
    if not path.is_dir():
        _add(digest, path)
        return digest.hexdigest()
    for parent, folders, files in os.walk(path, onerror=_raise):
        folders[:] = sorted(name for name in folders if name != ".git")
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        for name in sorted({*files, *links} - {".git"}):  # a file in work trees and submodules
            entry = Path(parent) / name
            mode = entry.lstat().st_mode
            kind = "link" if stat.S_ISLNK(mode) else "run" if mode & stat.S_IXUSR else "file"
            digest.update(f"{kind} {entry.relative_to(path)}\0".encode(errors="surrogateescape"))
            if kind == "link":
                digest.update(os.fsencode(entry.readlink()) + b"\0")
            elif stat.S_ISREG(mode):
                digest.update(f"{entry.lstat().st_size}\0".encode())
                _add(digest, entry)
    return digest.hexdigest()


def _raise(error: OSError) -> None:
    raise error


def _add(digest: Any, path: Path) -> None:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)


def _tables(file: Path, wanted: EngineSet) -> dict[str, dict[str, Any]]:
    try:
        said = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise MoeError(f"--sources {plain(file)}: {why}", f"correct it: {typed(file)}") from error
    keys = {*(source.key for source in wanted.sources), PATCH}
    wrong = keys ^ said.keys() or {key for key in keys if not isinstance(said[key], dict)}
    if wrong:
        names = ", ".join(f"[{plain(key)}]" for key in sorted(wrong))
        raise MoeError(
            f"{plain(file)}: {names} is missing, unknown or no table",
            f"let it have the tables {', '.join(f'[{key}]' for key in sorted(keys))} and no other",
        )
    return said


def _checked(file: Path, key: str, table: dict[str, Any], wanted: EngineSet) -> BuiltFrom:
    pinned = next((source.commit for source in wanted.sources if source.key == key), "")
    fields = ("path", "sha256", "to") if key == PATCH else ("path", "sha256", "commit")
    wrong = sorted(set(fields) ^ table.keys() or {name for name in fields if not isinstance(table[name], str)})
    if wrong:
        raise MoeError(
            f"{plain(file)}: [{key}] {plain(wrong[0])} is missing, unknown or no text",
            f"let [{key}] have {', '.join(fields)}",
        )
    path = file.parent.absolute() / table["path"]
    commit, to = table.get("commit", ""), table.get("to", "")
    if not commit.startswith(pinned):
        raise MoeError(
            f"{plain(file)}: [{key}] commit is {plain(commit)!r}, and the one that is known to work is {pinned}",
            f"git -C {typed(path)} checkout {pinned}",
        )
    if key == PATCH and to not in {source.key for source in wanted.sources}:
        keys = " or ".join(source.key for source in wanted.sources)
        raise MoeError(f"{plain(file)}: [{key}] to is {plain(to)!r}", f"let it be {keys}: what the patch is for")
    return _as_said(file, BuiltFrom(key, str(path), table["sha256"], commit, to))


def _as_said(file: Path, one: BuiltFrom) -> BuiltFrom:
    path = Path(one.path)
    try:
        if not path.exists():
            raise MoeError(
                f"{plain(file)}: [{one.key}] path: there is no {plain(path)}", f"correct path in {typed(file)}"
            )
        if one.key != PATCH and path.is_file() and not path.name.endswith(ARCHIVES):
            raise MoeError(
                f"{plain(file)}: [{one.key}] path: {plain(path)} is neither a folder nor an archive",
                f"name a folder, or one of {', '.join(ARCHIVES)}",
            )
        now, moved = sha256_of(path), _commit_problem(path, one.commit)
    except OSError as error:
        raise MoeError(f"{plain(error.filename or path)}: {error.strerror}", f"ls -ld {typed(path)}") from error
    if moved:
        raise MoeError(f"{plain(file)}: [{one.key}]: {moved}", f"git -C {typed(path)} checkout {plain(one.commit)}")
    if now != one.sha256:
        raise MoeError(
            f"{plain(file)}: [{one.key}] sha256 is {plain(one.sha256)!r}, and {plain(path)} has {now}",
            f'look at what is there; if it is what you want, write into {typed(file)}: sha256 = "{now}"',
        )
    return one


def _commit_problem(path: Path, commit: str) -> str:
    """Why a git tree is not the commit; "" = it is, or it is no git tree."""
    if not commit or not (path / ".git").exists():
        return ""
    environ = dict(os.environ) | {"GIT_OPTIONAL_LOCKS": "0"}
    git = ["git", "-c", f"safe.directory={path.resolve()}", "-c", "core.fsmonitor=false", "-C", str(path)]
    try:
        head = child.run([*git, "rev-parse", "HEAD"], environ, _ASK_S)
        changed = child.run([*git, "status", "--porcelain", "--untracked-files=all"], environ, _ASK_S)
    except OSError as error:
        return f"git cannot be run: {error.strerror or error}"
    if head.code != 0 or changed.code != 0:
        return f"git cannot read {plain(path)}: {plain((head.err or changed.err).strip())}"
    if not head.out.strip().startswith(commit):
        return f"{plain(path)} is at commit {plain(head.out.strip()[:12])}, and commit says {plain(commit)}"
    if changed.out.strip():
        return f"{plain(path)} has changes that are in no commit: {plain(changed.out.strip().splitlines()[0])}"
    return ""
