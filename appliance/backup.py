"""Writes a backup: one archive, 0600, of what an operator cannot make again. Touches files; the box may run.

See backup_members.py for what is in it. The ledger is copied through SQLite, so that the copy is whole while a gateway
writes; the other files are replaced at once by whoever writes them, so that each is whole by itself.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from appliance import __version__
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
    is_learned,
)
from appliance.config import Config, Paths
from appliance.errors import MoeError
from appliance.files import NotRegularError, read_regular
from gateway.ledger import reading
from gateway.ledger.writing import NAME as LEDGER_NAME


def backup(to: Path, config_file: Path | None, config: Config, paths: Paths) -> Manifest:
    """Write the archive `to`, which must not exist yet. Raises MoeError; then there is none."""
    if os.path.lexists(to):
        raise MoeError(f"{to} exists already", "name another file, or remove it")
    try:
        with tempfile.TemporaryDirectory(prefix=".moe-backup-", dir=to.absolute().parent) as folder:
            return _written(to, Path(folder), config_file, config, paths)
    except OSError as error:
        raise MoeError(f"{to} cannot be written: {error.strerror or error}", f"df -h {to.absolute().parent}") from error


def _written(to: Path, folder: Path, config_file: Path | None, config: Config, paths: Paths) -> Manifest:
    small = dict(_small(config_file, config, paths))
    members = [
        Member(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in small.items()
    ]
    ledger = paths.state_dir / LEDGER_NAME
    copied = folder / "ledger.db"
    if ledger.is_file():
        reading.copy(ledger, copied)
        members.append(Member(name=LEDGER, bytes=copied.stat().st_size, sha256=_sum_of(copied)))
    made_at = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    manifest = Manifest(format=FORMAT, version=__version__, made_at=made_at, members=tuple(members))
    whole = folder / "archive"
    fd = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz", format=tarfile.GNU_FORMAT, compresslevel=6) as archive:
            _add(archive, MANIFEST, manifest.model_dump_json(indent=1).encode())
            for name, data in small.items():
                _add(archive, name, data)
            if copied.exists():
                with copied.open("rb") as data_file:
                    archive.addfile(_info(LEDGER, members[-1].bytes), data_file)
        file.flush()
        os.fsync(file.fileno())
    os.close(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # never over a file that came
    whole.replace(to)  # no link: memory sticks know none
    return manifest


def _small(config_file: Path | None, config: Config, paths: Paths) -> Iterator[tuple[str, bytes]]:
    """The small files that there are, each once."""
    named = {CONFIG: config_file, SEATS: paths.seats_file, ADMINS: paths.admins_file, PLAN: config.plan.file}
    taken = {path.resolve() for path in named.values() if path is not None}
    plans = paths.state_dir / PLANS
    there = sorted((*paths.state_dir.glob("*"), *(() if plans.is_symlink() else plans.glob("*"))))
    by_name = {f"state/{path.relative_to(paths.state_dir)}": path for path in there}
    learned = {name: path for name, path in by_name.items() if is_learned(name)}
    for name, path in (named | learned).items():
        if path is None or (name in learned and (path.resolve() in taken or path.is_symlink())):
            continue
        try:
            data = read_regular(path, SMALL_MAX_BYTES)
        except FileNotFoundError:
            continue
        except NotRegularError as error:
            raise MoeError(f"{path} is not a file", f"ls -l {path}") from error
        if len(data) > SMALL_MAX_BYTES:
            raise MoeError(f"{path} has more than {SMALL_MAX_BYTES} bytes; it is none of ours", f"ls -l {path}")
        yield name, data


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    archive.addfile(_info(name, len(data)), io.BytesIO(data))


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(time.time())
    return info


def _sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
