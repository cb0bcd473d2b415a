"""A booted systemd in a container, to run commands in.

Touches namespaces, mounts, cgroups and processes; needs root and the package systemd-container. Rules:
- Everything is in a mount and a process namespace that end with one process of ours, and that one ends with us: a
  SIGKILL of systemd-nspawn alone would leave its container running.
- Nothing is waited for without a limit. Only pids that were started here are ever signalled.
- The container has loopback and no other network. Each writes its own view of the tree, which ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BOOT_LIMIT_S = 300.0
"""Until the container runs, seconds: with what apt may have to fetch first. Without that it takes 2."""
OFF_LIMIT_S = 20.0
NEEDED = "systemd-sysv, dbus, man-db, procps"
"""What the tests themselves want of the container, beside what the package wants."""
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd")
ENVIRON = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    command: str
    code: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """All that it wrote."""
        return self.out + self.err

    def ok(self) -> str:
        """Its standard output. Fails unless it exited with 0."""
        assert self.code == 0, f"{self.command} exited with {self.code}\n{self.told}"
        return self.out


class Machine:
    """One container over `tree`. `depends` is in the form of a package's Depends field; `folder` gets its console."""

    def __init__(self, tree: Path, folder: Path, depends: str = "") -> None:
        name = f"moe-{os.getpid()}-{os.urandom(3).hex()}"
        self._console = folder / f"{name}.console"
        self.cgroups = {kind: parent / name for kind, parent in own_cgroups().items()}
        for made in (folder / name, *self.cgroups.values()):
            made.mkdir()
        script = Path(__file__).with_name("boot")
        wanted = ", ".join(filter(None, (NEEDED, depends)))
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]
        argv += ["--pid", "--fork", "--kill-child", "--mount-proc", "--"]
        argv += [str(script), str(tree), str(folder / name), wanted, *map(str, self.cgroups.values())]
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
            )
        try:
            self.leader = self._booted()
        except BaseException:
            self.close()
            raise

    # Start and end

    def _booted(self) -> int:
        """The host's pid of the container's first process, once all units are up."""
        give_up_s = time.monotonic() + BOOT_LIMIT_S
        while time.monotonic() < give_up_s:
            assert self._process.poll() is None, f"the container ended: {self.console}"
            for nspawn in children(self._process.pid):
                for leader in children(nspawn):
                    if name_of(nspawn) != "systemd-nspawn" or name_of(leader) != "systemd":
                        continue
                    self.leader = leader
                    state = self.run("systemctl is-system-running", limit_s=10).out.strip()
                    if state in ("running", "degraded"):
                        return leader
            time.sleep(0.05)
        raise AssertionError(f"no running system within {BOOT_LIMIT_S:g} s: {self.console}")

    @property
    def console(self) -> str:
        """What the container wrote to its console, its end."""
        return self._console.read_text(errors="replace")[-3000:]

    def power_off(self) -> None:
        """Shut down in order. Fails when that takes too long."""
        os.kill(self.leader, signal.SIGRTMIN + 4)
        self._process.wait(OFF_LIMIT_S)

    def close(self) -> None:
        """End it, in order if it will, and remove its cgroups. Twice does nothing."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, AttributeError, subprocess.TimeoutExpired):
                self.power_off()
            self._process.kill()
            self._process.wait(10)
        for cgroup in self.cgroups.values():
            remove_cgroup(cgroup)

    # What runs in it

    def run(self, command: str, *, limit_s: float = 60.0, stdin: str = "") -> Ran:
        """A shell command as the container's root, to its end."""
        argv = ["nsenter", f"--target={self.leader}", *NAMESPACES, "--", "env", "--ignore-environment", *ENVIRON]
        done = subprocess.run(
            [*argv, "sh", "-c", command], input=stdin, capture_output=True, text=True, timeout=limit_s, check=False
        )
        return Ran(command, done.returncode, done.stdout, done.stderr)

    def path(self, inside: str) -> Path:
        """Where a file of the container is found from here. An absolute symbolic link in it would lead astray."""
        return Path(f"/proc/{self.leader}/root") / inside.removeprefix("/")

    def copy_in(self, source: Path, inside: str) -> str:
        """Copy a file or a folder in; returns `inside`."""
        self.path(inside).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, self.path(inside), ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, self.path(inside))
        return inside

    def host_pid(self, inside: int) -> int:
        """The pid that a process of the container has out here."""
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                pids = status.read_text().partition("NSpid:")[2].partition("\n")[0].split()
                if pids[-1:] == [str(inside)] and self._holds(int(pids[0])):
                    return int(pids[0])
        raise AssertionError(f"the container has no process {inside}")

    def _holds(self, pid: int) -> bool:
        return Path(f"/proc/{pid}/ns/pid").readlink() == Path(f"/proc/{self.leader}/ns/pid").readlink()

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile are in the container's network, and stay there."""
        with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{self.leader}/ns/net") as theirs:
            _enter(theirs.fileno())
            try:
                yield
            finally:
                _enter(ours.fileno())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def children(pid: int) -> list[int]:
    """Its children's pids, [] when it is gone."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def name_of(pid: int) -> str:
    """The name of its program, "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def own_cgroups() -> dict[str, Path]:
    """Where this process is, by hierarchy: "" = the unified one, "name=systemd" and "memory" where they are mounted."""
    found = {}
    mounts = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controller, inside = line.split(":", 2)
        for before, after in mounts:
            kind, _, options = after.split(" ", 2)
            same = kind == "cgroup2" if controller == "" else kind == "cgroup" and controller in options.split(",")
            if same and controller in ("", "name=systemd", "memory"):
                found[controller] = Path(before.split()[4]) / inside.lstrip("/")
    return found


def remove_cgroup(cgroup: Path, limit_s: float = 5.0) -> None:
    """Remove it and those below, as soon as the kernel has seen that they are empty."""
    give_up_s = time.monotonic() + limit_s
    while cgroup.exists():
        for folder, _, _ in os.walk(cgroup, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        assert time.monotonic() < give_up_s, f"{cgroup} cannot be removed"
        time.sleep(0.02)
