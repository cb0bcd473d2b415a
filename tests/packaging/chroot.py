"""A view of this machine's root that can be installed into: no network, processes of its own, gone at the end.

Touches mounts and namespaces of its own; needs root. No systemd runs in it (tests/systemd has machines that boot).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 180.0
ENVIRON = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
_MAKE = """
set -e
mount -t tmpfs -o size={size_mib}m tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
ip link set lo up
echo ready
exec sleep infinity
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    told: str


class Chroot:
    """The view; `folder` is where it hangs, inside its own mount namespace only."""

    def __init__(self, folder: Path, size_mib: int = 768) -> None:
        self._root = folder / "root"
        apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        argv = [*apart, "sh", "-c", _MAKE.format(size_mib=size_mib), "sh", str(folder)]
        self._holder = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            raise AssertionError("no view of the root could be made: this needs root, and overlayfs")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self._inside = children.read_text().split()[0]

    def argv(self, script: str) -> list[str]:
        """What runs a bash script in it."""
        enter = ["nsenter", "--target", self._inside, "--mount", "--net", "--pid", "--"]
        return [*enter, "chroot", str(self._root), "bash", "-c", script]

    def run(self, script: str) -> Ran:
        """Run a bash script to its end."""
        ran = subprocess.run(
            self.argv(script), env=ENVIRON, cwd="/", capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        return Ran(ran.returncode, ran.stdout + ran.stderr)

    def ok(self, script: str) -> str:
        """Run a bash script that must exit with 0; all that it wrote."""
        ran = self.run(script)
        assert ran.code == 0, f"{script}: exit code {ran.code}\n{ran.told}"
        return ran.told

    @contextlib.contextmanager
    def running(self, script: str) -> Iterator[str]:
        """Run a bash script in the background, from its first line, which is yielded, until its input ends."""
        pipe = subprocess.PIPE
        with subprocess.Popen(self.argv(script), env=ENVIRON, cwd="/", stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            yield process.stdout.readline()

    def put(self, source: Path, path: str) -> None:
        """Copy a file into it, to the full `path`."""
        with source.open("rb") as file:
            subprocess.run(self.argv(f"cat >{path}"), env=ENVIRON, cwd="/", stdin=file, check=True)

    def close(self) -> None:
        """End everything in it."""
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()


def other_python(series: str) -> Path | None:
    """An interpreter of another series that this machine has, outside /usr/bin."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return next(iter(sorted(versions.glob(f"{series}.*/bin/python{series}"))), None)
