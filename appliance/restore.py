"""Brings a backup back, whole or not at all. Touches files; the box must not run.

Order: 1. every member of the archive is read and compared with the manifest; 2. the configuration in it says where the
others go; 3. each is checked by whoever will read it; 4. both folders of the box are locked; 5. what is there moves to
`NAME.before-restore-DATE`, and the new file takes its place. When 5 fails in the middle, what was done is undone.

Rules:
- Nothing is unpacked: names are looked up, and links, folders, devices and names that are not ours are refused.
- A file takes the owner and mode of the one that it replaces, else the owner of its folder and the group of the state
  folder: what lies elsewhere is the operator's, and whoever runs the box reads it as that group.
- The ledger's log of writes moves away with it: it belongs to the old file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from appliance.backup_members import (
    ADMINS,
    CONFIG,
    FORMAT,
    LEDGER,
    MANIFEST,
    PLAN,
    PLANS,
    SEATS,
    SMALL_MAX_BYTES,
    Manifest,
    Member,
    is_known,
    target,
)
from appliance.config import Config, Paths, parsed
from appliance.errors import ConfigError, MoeError
from appliance.files import FolderLock, make_folder
from appliance.plan import planfile
from gateway.keyfile import parse_admins, parse_seats
from gateway.ledger import reading

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """One file that is brought back; `replaces`: whether one is there."""

    name: str
    path: Path
    bytes: int
    replaces: bool


@dataclass(frozen=True, slots=True)
class Restored:
    """What was, or would be, done. `left_out`: members that this configuration has no place for."""

    manifest: Manifest
    steps: tuple[Step, ...]
    left_out: tuple[str, ...]
    suffix: str


def restore(
    archive: Path,
    config_file: Path,
    found: Callable[[], tuple[Config, Paths]],
    environ: Mapping[str, str],
    *,
    dry_run: bool = False,
) -> Restored:
    """Bring the files of an archive back. `config_file`: where appliance.toml goes; `found`: what holds on this box
    when the archive has none. Raises MoeError, and then nothing was changed."""
    try:
        with tempfile.TemporaryDirectory(prefix="moe-restore-") as folder:
            manifest, files = _read(archive, Path(folder))  # 1
            has_own = CONFIG in files
            config, paths = parsed(config_file, files[CONFIG].read_bytes(), environ) if has_own else found()  # 2
            _check(archive, files)  # 3
            places = {name: target(name, config_file, config, paths) for name in files}
            moves = {name: path for name, path in places.items() if path is not None}
            steps = tuple(
                Step(name, path, files[name].stat().st_size, os.path.lexists(path)) for name, path in moves.items()
            )
            suffix = datetime.fromtimestamp(time.time(), UTC).strftime(".before-restore-%Y-%m-%dT%H%M%SZ")
            if not dry_run:
                with _locked(paths):  # 4
                    if any(path.parent == paths.state_dir / PLANS for path in moves.values()):
                        _make_plans(paths.state_dir)
                    _replace({path: files[name] for name, path in moves.items()}, paths.state_dir, suffix)  # 5
            return Restored(manifest, steps, tuple(places.keys() - moves.keys()), suffix)
    except (tarfile.TarError, EOFError, OSError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise MoeError(f"{archive} cannot be restored: {said}", f"ls -l {archive}; tar -tzf {archive}") from error


# 1


def _read(archive: Path, folder: Path) -> tuple[Manifest, dict[str, Path]]:
    """The members as files in `folder`, each as the manifest says."""
    with tarfile.open(archive, mode="r|gz", tarinfo=_PlainInfo) as tar:
        manifest: Manifest | None = None
        wanted: dict[str, Member] = {}
        files: dict[str, Path] = {}
        for number, info in enumerate(tar):
            data = tar.extractfile(info) if info.isreg() else None
            if data is None:
                raise _refused(archive, f"{info.name!r} in it is no plain file")
            if manifest is None:
                manifest = _manifest(archive, info, data)
                wanted = {member.name: member for member in manifest.members}
                _check_room(archive, folder, sum(member.bytes for member in manifest.members))
                continue
            member = wanted.pop(info.name, None)
            if member is None or info.size != member.bytes:
                raise _refused(archive, f"{info.name!r} in it is not what its manifest names")
            files[member.name] = folder / str(number)
            if _copied(data, files[member.name]) != member.sha256:
                raise _refused(archive, f"{member.name} in it is damaged: its SHA-256 differs")
    if manifest is None or wanted:
        raise _refused(archive, f"{', '.join(wanted) or MANIFEST} is missing in it")
    return manifest, files


class _PlainInfo(tarfile.TarInfo):
    """One member's header. What says more in further blocks is read into memory whole, and `backup` writes none."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _PlainInfo:
        """The header of 512 bytes. Raises tarfile.ReadError for one that is not whole in them."""
        made = super().frombuf(buf, encoding, errors)
        if made.type in _IN_FURTHER_BLOCKS:
            raise tarfile.ReadError("it has headers that no backup has")
        return made


_IN_FURTHER_BLOCKS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.GNUTYPE_SPARSE,
)


def _check_room(archive: Path, folder: Path, wanted_bytes: int) -> None:
    """Raises MoeError before anything is written that does not fit."""
    if wanted_bytes > shutil.disk_usage(folder).free:
        raise MoeError(
            f"{archive} holds {wanted_bytes} bytes, more than {folder.parent} has room for; nothing was changed",
            f"df -h {folder.parent}; or with room elsewhere: TMPDIR=/var/tmp moe-appliance restore {archive}",
        )


def _manifest(archive: Path, info: tarfile.TarInfo, data: IO[bytes]) -> Manifest:
    if info.name != MANIFEST or info.size > PIECE_BYTES:
        raise _refused(archive, "it does not begin with a manifest")
    try:
        manifest = Manifest.model_validate_json(data.read())
    except ValidationError as error:
        raise _refused(archive, "its manifest cannot be read") from error
    if manifest.format != FORMAT:
        raise MoeError(
            f"{archive} is of format {manifest.format}, made by version {manifest.version}",
            "restore it with that version of moe-appliance",
        )
    names = [member.name for member in manifest.members]
    for member in manifest.members:
        small = member.name == LEDGER or member.bytes <= SMALL_MAX_BYTES
        if not is_known(member.name) or not small or names.count(member.name) > 1 or member.bytes < 0:
            raise _refused(archive, f"its manifest names {member.name!r}, which is none of ours")
    return manifest


def _copied(data: IO[bytes], to: Path) -> str:
    summed = hashlib.sha256()
    with to.open("xb") as file:
        while piece := data.read(PIECE_BYTES):
            summed.update(piece)
            file.write(piece)
    return summed.hexdigest()


def _refused(archive: Path, why: str) -> MoeError:
    return MoeError(f"{archive} is refused: {why}", "nothing was changed; try another one: moe-appliance restore FILE")


# 3


def _check(archive: Path, files: Mapping[str, Path]) -> None:
    """Each by whoever will read it. Raises MoeError that names the member."""
    readers: dict[str, Callable[[Path], object]] = {
        SEATS: lambda path: parse_seats(Path(SEATS), path.read_bytes()),
        ADMINS: lambda path: parse_admins(Path(ADMINS), path.read_bytes()),
        PLAN: lambda path: planfile.parse(Path(PLAN), path.read_bytes()),
        LEDGER: reading.check,
    }
    for name in readers.keys() & files.keys():
        try:
            readers[name](files[name])
        except MoeError as error:
            raise _refused(archive, f"{name} in it cannot be used: {error.message}") from error


# 4


@contextlib.contextmanager
def _locked(paths: Paths) -> Iterator[None]:
    """Hold both folders, as a running box does. Raises AlreadyRunning."""
    if not paths.state_dir.exists():
        make_folder(paths.state_dir, "state_dir")
        _give(paths.state_dir, paths.state_dir.parent.stat())
    folders = {folder.resolve() for folder in (paths.state_dir, paths.runtime_dir) if folder.exists()}
    with contextlib.ExitStack() as stack:
        for folder in sorted(folders):
            stack.enter_context(contextlib.closing(FolderLock(folder)))
            _give(folder / "lock", folder.stat())  # the box may run as somebody else
        yield


def _make_plans(state_dir: Path) -> None:
    """Raises MoeError: a link would lead our writing elsewhere."""
    folder = state_dir / PLANS
    if folder.is_symlink():
        raise MoeError(f"{folder} is a link; nothing was changed", f"ls -ld {folder}; rm {folder}")
    if not folder.exists():
        make_folder(folder, "state_dir")
        _give(folder, state_dir.stat())


# 5


def _replace(moves: Mapping[Path, Path], state_dir: Path, suffix: str) -> None:
    """`moves`: where a file goes -> where it is now. All or none. Raises MoeError."""
    fresh: list[tuple[Path, Path]] = []
    done: list[tuple[Path, Path]] = []
    try:
        for path, source in moves.items():
            fresh.append((_beside(path, source, state_dir), path))
        for new, path in fresh:
            for old in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm") if path.suffix == ".db")):
                if os.path.lexists(old):
                    aside = old.with_name(old.name + suffix)
                    old.rename(aside)
                    done.append((aside, old))
            new.rename(path)
            done.append((path, new))
    except BaseException as error:
        for now, before in reversed(done):
            with contextlib.suppress(OSError):
                now.rename(before)
        if not isinstance(error, OSError):
            raise
        said = f"{error.filename or 'a file'} cannot be written: {error.strerror or error}; nothing was changed"
        raise MoeError(said, f"df -h {error.filename or '.'}; or sudo moe-appliance restore FILE") from error
    finally:
        for new, _ in fresh:
            new.unlink(missing_ok=True)


def _beside(path: Path, source: Path, state_dir: Path) -> Path:
    """A copy of `source` in the folder of `path`, with the owner and mode that it will have."""
    if not path.parent.exists():
        raise ConfigError(f"the folder {path.parent} does not exist", f"sudo install -d -m 0750 {path.parent}")
    like = path.stat() if path.exists() else None
    by_group = path.suffix == ".toml" or not path.parent.resolve().is_relative_to(state_dir.resolve())
    new = path.with_name(f".{path.name}.restored")
    new.unlink(missing_ok=True)
    mode = like.st_mode & 0o777 if like is not None else 0o640 if by_group else 0o600
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file, source.open("rb") as data:
        shutil.copyfileobj(data, file, PIECE_BYTES)
        file.flush()
        os.fchmod(fd, mode)
        os.fsync(fd)
    if like is not None:
        _give(new, like)
    else:
        folder = path.parent.stat()
        _give(new, folder, state_dir.stat().st_gid or folder.st_gid)
    return new


def _give(path: Path, like: os.stat_result, gid: int | None = None) -> None:
    """Give a file the owner and the group of another, or the group `gid`, as far as we may."""
    for uid in (like.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.chown(path, uid, like.st_gid if gid is None else gid, follow_symlinks=False)
            return
