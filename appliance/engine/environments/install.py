"""Makes an engine's environment: checks, wheels, venv, packages, a look whether it works; then it is the current one.

Touches `<state_dir>/engines` (see folders.py); runs Python, pip and, for sources, a compiler. Rules:
- What is there goes on serving until the new one is whole and works; then one link is replaced.
- A kill at any moment costs what was being downloaded or unpacked, and nothing that was there before.
- Of older ones the last is kept, to go back to, any that is in use, any that was chosen, and a trial's way back.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import appliance
from appliance.checkpoint.faults import plain, typed
from appliance.checkpoint.space import amount, file_system, free_bytes
from appliance.engine import pairs_kept
from appliance.engine.environments import build, folders, manifest, pythons, sources, verify, wheels
from appliance.engine.environments.folders import Environment
from appliance.engine.environments.lock import Lock, identity, parse
from appliance.engine.environments.manifest import Manifest
from appliance.engine.environments.pip import Pip, pip_program
from appliance.engine.environments.sets import EngineSet
from appliance.engine.environments.sources import Given
from appliance.engine.environments.wheels import OnProgress, Progress
from appliance.errors import MoeError
from appliance.files import FOLDER_MODE, HeldError, locked, make_folder
from appliance.units import gib
from gateway.environment import MARK
from gateway.files import replace_file
from gateway.state import Finding

LOCKS = Path(__file__).with_name("locks")
RESERVE_BYTES = 1 << 30
"""What stays free: other programs write to the same disk meanwhile."""
LOCK_WAIT_S = 2.0
"""For the pip of an installation that was killed, which the kernel ends with it."""


@dataclass(frozen=True, slots=True)
class Installed:
    """How an installation ended. `again`: it was there already; `findings`: what the look at it said; `removed`: ids of
    older ones that are gone."""

    environment: Environment
    findings: tuple[Finding, ...]
    again: bool = False
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Job:
    wanted: EngineSet
    lock_file: Path
    lock: Lock
    given: Given
    folder: Path
    engines: Path
    offline: Path | None
    on_progress: OnProgress

    @property
    def wheel_folder(self) -> Path:
        return self.engines / folders.WHEELS


def lock_of(wanted: EngineSet, locks: Path = LOCKS) -> Lock:
    """The lock of a set."""
    return parse((locks / wanted.lock).read_text(encoding="utf-8"))


def install(
    wanted: EngineSet,
    state_dir: Path,
    on_progress: OnProgress,
    *,
    python: Path | None = None,
    offline: Path | None = None,
    sources_file: Path | None = None,
    locks: Path = LOCKS,
) -> Installed:
    """Make the set's environment, or go on making it, and let the engine's name mean it. Raises MoeError."""
    lock = lock_of(wanted, locks)
    given = sources.read(sources_file, wanted)
    chosen = pythons.choose(wanted, python)
    nvcc = build.compiler(os.environ) if given.sources else None
    _ours(state_dir, wanted.name)
    state_dir = state_dir.resolve()
    engines = state_dir / folders.ENGINES
    make_folder(engines, "state_dir")
    folder = engines / f"{wanted.name}-{identity(lock, given.hashes)}"
    job = _Job(wanted, locks / wanted.lock, lock, given, folder, engines, offline, on_progress)
    with _alone(engines) as lock_fd, _disk_errors(engines):
        there = folders.find(state_dir, folder.name)
        if there is not None:
            folders.make_current(there)
            return Installed(there, verify.verify(there, lock), again=True)
        _remove_half(folder, on_progress)
        missing = _missing(job)
        _need_space(job, missing)
        started_s = time.monotonic()
        pip = _make_venv(folder, chosen, lock_fd)
        if missing:
            wheels.fetch(job.wheel_folder, lock.wheels, pip, on_progress)
        _fill(job, pip)
        if nvcc is not None:
            build.build(given, folder / "sources", nvcc, pip, partial(_building, job))
            shutil.rmtree(folder / "sources")
        _compile(job, pip)
        return _finish(job, chosen.version, time.monotonic() - started_s)


def _missing(job: _Job) -> int:
    """Bytes of wheels that must come."""
    if job.offline is not None:
        wheels.supplied(job.offline, job.lock.wheels, job.lock_file, job.on_progress)
        return 0
    job.wheel_folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
    there = sum(
        wheel.size_bytes
        for wheel in job.lock.wheels
        if (path := job.wheel_folder / wheel.file).is_file() and path.stat().st_size == wheel.size_bytes
    )
    return max(1, job.lock.total_bytes - there)


def _make_venv(folder: Path, chosen: pythons.Python, lock_fd: int) -> Pip:
    program = pip_program()
    folder.mkdir(mode=FOLDER_MODE)
    argv = [str(chosen.executable), "-I", "-m", "venv", "--without-pip", str(folder / "venv")]
    made = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        said = (made.stderr or made.stdout).strip().splitlines()
        raise MoeError(
            f"{plain(chosen.executable)} could not make a virtual environment: {plain(said[-1] if said else '')}",
            f"apt-get install python{'.'.join(chosen.version.split('.')[:2])}-venv, or another one: --python P",
        )
    return Pip(folder / "venv" / "bin" / "python", program, lock_fd)


def _fill(job: _Job, pip: Pip) -> None:
    total_bytes, total = job.lock.total_bytes, len(job.lock.wheels)
    by_start = {
        f"{wheel.name}-{wheel.version}".replace("-", "_").lower(): wheel.size_bytes for wheel in job.lock.wheels
    }
    packages = _packages(job.folder)

    def tick() -> None:
        names = [path.parent.stem.replace("-", "_").lower() for path in packages.glob("*.dist-info/RECORD")]
        done_bytes = sum(by_start.get(name, 0) for name in names)
        job.on_progress(Progress("unpacking", done_bytes, total_bytes, len(names), total))

    tick()
    where = job.offline if job.offline is not None else job.wheel_folder
    failed = pip.install(job.lock_file, (where.absolute(),), tick)
    if failed:
        raise MoeError(
            f"pip could not install the wheels: {plain(failed)}",
            f"see to what is said (df -h {typed(job.engines)}), then run the same command again",
        )


def _building(job: _Job, key: str) -> Callable[[], None]:
    def tick() -> None:
        job.on_progress(Progress(f"building {key}", 0, 0, 0, 0))

    return tick


def _compile(job: _Job, pip: Pip) -> None:
    """Byte code, which whoever runs the engine may not be allowed to write. Files that are no Python of this version
    (templates, tests) are left out, so its exit code says nothing."""
    packages = len(job.lock.wheels)
    job.on_progress(Progress("compiling", 0, 0, packages, packages))
    argv = [str(pip.python), "-I", "-m", "compileall", "-q", "-q", "-j", "0", str(_packages(job.folder))]
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _finish(job: _Job, python: str, took_s: float) -> Installed:
    known = Manifest(
        set=job.wanted.name,
        identity=job.folder.name.rpartition("-")[2],
        lock_sha256=job.lock.sha256,
        python=python,
        packages={wheel.name: wheel.version for wheel in job.lock.wheels},
        installed_at_s=time.time(),
        took_s=round(took_s, 1),
        size_bytes=folders.size_bytes(job.folder),
        tool=appliance.__version__,
        sources=job.given.sources,
    )
    environment = Environment(job.wanted.name, job.folder, known)
    job.on_progress(Progress("trying it", 0, 0, len(job.lock.wheels), len(job.lock.wheels)))
    findings = verify.verify(environment, job.lock)
    broken = [one for one in findings if one.id in verify.BROKEN]
    if broken:
        raise MoeError(
            f"the environment was made and does not work: {broken[0].title}: {broken[0].observed}",
            f"{broken[0].remedy}; what ran before is unchanged",
        )
    (job.folder / "venv" / MARK).touch()
    os.sync()
    replace_file(job.folder / manifest.MANIFEST, manifest.to_json(known), 0o640)
    verify.keep(environment, findings)
    before = folders.make_current(environment)
    state_dir = job.engines.parent
    spared = pairs_kept.environments(state_dir) | ({before.id} if before is not None else set())
    removed = folders.remove_old(state_dir, job.wanted.name, spared)
    shutil.rmtree(job.wheel_folder, ignore_errors=True)
    return Installed(environment, findings, removed=tuple(removed))


def _remove_half(folder: Path, on_progress: OnProgress) -> None:
    """What a killed installation unpacked: which of its files are whole is not known."""
    if folder.exists():
        on_progress(Progress("removing what was left unfinished", 0, 0, 0, 0))
        shutil.rmtree(folder)


def _packages(folder: Path) -> Path:
    return next((folder / "venv" / "lib").glob("python3*")) / "site-packages"


def _need_space(job: _Job, missing_bytes: int) -> None:
    needed, free = missing_bytes + job.wanted.installed_bytes + RESERVE_BYTES, free_bytes(job.engines)
    if free >= needed:
        return
    raise MoeError(
        f"{plain(job.engines)} has {amount(free)} free on {file_system(job.engines)}; {job.wanted.name} needs "
        f"{amount(missing_bytes)} for wheels, ~{gib(job.wanted.installed_bytes)} unpacked, and "
        f"{amount(RESERVE_BYTES)} stay free",
        f"free {amount(needed - free)} more there (df -h {typed(job.engines)}; du -xsh {typed(job.engines)}/*), "
        "or set state_dir to a folder on another disk",
    )


def _ours(state_dir: Path, name: str) -> None:
    """What is made belongs to whoever runs this, and the daemon must be able to read it and to take it away."""
    if not state_dir.exists():
        make_folder(state_dir, "state_dir")
    owner = state_dir.stat().st_uid
    if owner != os.geteuid():
        try:
            user = pwd.getpwuid(owner).pw_name
        except KeyError:
            user = f"#{owner}"
        raise MoeError(
            f"the state folder {plain(state_dir)} belongs to {user}, and so must what is made in it",
            f"sudo -u {typed(user)} moe-appliance engine install {name}",
        )


@contextmanager
def _alone(engines: Path) -> Iterator[int]:
    until_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fd = locked(engines / folders.LOCK)
            break
        except HeldError as held:
            if time.monotonic() >= until_s:
                raise _taken(engines, held) from None
            time.sleep(0.1)
    try:
        yield fd
    finally:
        os.close(fd)


def _taken(engines: Path, held: HeldError) -> MoeError:
    who = f"pid {held.pid}" if held.pid is not None else "a process that does not say which"
    return MoeError(
        f"an engine is being installed in {plain(engines)} already ({who}, or the pip that it left)",
        f"wait for it; fuser -v {typed(engines / folders.LOCK)}   shows who it is",
    )


@contextmanager
def _disk_errors(engines: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MoeError(
            f"{plain(error.filename or engines)}: {error.strerror or error}",
            f"df -h {typed(engines)}; ls -ld {typed(engines)}; then run the same command again",
        ) from error
