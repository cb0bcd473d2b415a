"""Runs pip inside an environment that has none of its own. Touches processes.

Rules:
- pip comes from the Python that we run in, or from the Debian package's wheels; it runs by the environment's Python, so
  that it chooses wheels for that one.
- pip holds the lock of whoever installs too, and is killed with it: nobody writes into a folder that a second
  installation takes for its own.
- Downloads keep the operator's indexes, mirrors and certificates; installing asks nobody.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from appliance.engine.pip_fetch import last_error
from appliance.errors import MoeError

WATCH_S = 0.25
_ALWAYS = (
    *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
    *("--no-deps", "--only-binary", ":all:", "--require-hashes"),
)
_OFFLINE = ("--no-index", "--no-compile", "--no-warn-script-location", "--root-user-action=ignore")


@dataclass(frozen=True, slots=True)
class Pip:
    """pip for one environment. `python`: its interpreter; `program`: pip's own code; `lock_fd`: passed on."""

    python: Path
    program: Path
    lock_fd: int

    def download(self, requirements: str, folder: Path, on_tick: Callable[[], None]) -> str:
        """Fetch wheels into `folder`/got; what went wrong, "" = nothing. `on_tick` is called a few times a second.
        Raises OSError."""
        got, temp = folder / "got", folder / "tmp"
        for new in (folder, got, temp):
            new.mkdir()
        wanted = folder / "wanted"
        wanted.write_text(requirements)
        argv = ("download", *_ALWAYS, "--retries", "5", "--dest", str(got), "-r", str(wanted))
        return self.run(argv, os.environ | {"TMPDIR": str(temp)}, on_tick)

    def install(self, wanted: Path, wheels: Sequence[Path], on_tick: Callable[[], None]) -> str:
        """Install from folders of wheels; what went wrong, "" = nothing. Raises OSError."""
        links = [part for folder in wheels for part in ("--find-links", str(folder))]
        argv = ("--isolated", "install", *_ALWAYS, *_OFFLINE, *links, "-r", str(wanted))
        return self.run(argv, self._offline(), on_tick)

    def build(self, source: Path, environ: dict[str, str], on_tick: Callable[[], None]) -> str:
        """Build and install a source tree with what is in the environment; what went wrong, "" = nothing."""
        argv = ("--isolated", "install", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-input")
        return self.run((*argv, *_OFFLINE, str(source)), self._offline() | environ, on_tick)

    def run(self, arguments: Sequence[str], environ: dict[str, str], on_tick: Callable[[], None]) -> str:
        """Run pip to its end; its last error, "" when it had none. Interrupted, it ends with all that it started."""
        argv = [*_dies_with_us(), str(self.python), "-I", str(self.program), *arguments]
        with tempfile.TemporaryFile() as output:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environ,
                start_new_session=True,
                pass_fds=(self.lock_fd,),
            )
            try:
                while True:
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(WATCH_S)
                        break
                    on_tick()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            if child.returncode == 0:
                return ""
            output.seek(0)
            said = output.read().decode(errors="replace")
            return last_error(said) or f"pip ended with code {child.returncode}"

    def _offline(self) -> dict[str, str]:
        return os.environ | {"PIP_CONFIG_FILE": os.devnull}


def pip_program() -> Path:
    """pip's code. Raises MoeError when this Python has none."""
    spec = find_spec("pip")
    if spec is not None and spec.origin is not None:
        runner = Path(spec.origin).with_name("__pip-runner__.py")
        if runner.is_file():
            return runner
    packaged = sorted((Path(sys.prefix).parents[1] / "wheels").glob("pip-*.whl"))  # see packaging/make-venv
    if packaged:
        return packaged[-1] / "pip"
    raise MoeError(
        f"{sys.executable} has no pip (environments made by uv have none), or one older than 22.3",
        f"{sys.executable} -m ensurepip --upgrade",
    )


def _dies_with_us() -> tuple[str, ...]:
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()
