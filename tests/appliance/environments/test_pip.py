"""appliance/engine/environments/pip.py: what it starts does not outlive who started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from appliance.engine.environments.pip import Pip
from appliance.files import HeldError, locked

STUCK = """
    import pathlib, signal, sys
    pathlib.Path(sys.argv[1]).touch()
    signal.pause()
"""
RUNS = """
    import os, pathlib, sys
    from appliance.engine.environments.pip import Pip
    from appliance.files import locked
    home = pathlib.Path(sys.argv[1])
    pip = Pip(pathlib.Path(sys.executable), home / "stuck.py", locked(home / "lock"))
    pip.run([str(home / "started")], dict(os.environ), lambda: None)
"""


def stuck(home: Path) -> Path:
    """A pip that never ends."""
    (home / "stuck.py").write_text(textwrap.dedent(STUCK))
    return home / "stuck.py"


def wait_for(path: Path) -> None:
    until = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="without setpriv the lock is held until pip has ended")
def test_pip_ends_with_an_installation_that_is_killed(tmp_path: Path) -> None:
    stuck(tmp_path)
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(RUNS), str(tmp_path)])
    wait_for(tmp_path / "started")
    with pytest.raises(HeldError):
        locked(tmp_path / "lock")
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until = time.monotonic() + 10
    while True:
        try:
            os.close(locked(tmp_path / "lock"))
            break
        except HeldError:
            assert time.monotonic() < until, "pip lives and holds the lock"
            time.sleep(0.01)


def test_interrupted_it_ends_pip(tmp_path: Path) -> None:
    fd = locked(tmp_path / "lock")

    def interrupt() -> None:
        if (tmp_path / "started").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pip(Path(sys.executable), stuck(tmp_path), fd).run([str(tmp_path / "started")], dict(os.environ), interrupt)
    os.close(fd)
    os.close(locked(tmp_path / "lock"))


def test_what_pip_says_last_is_the_reason(tmp_path: Path) -> None:
    fd = locked(tmp_path / "lock")
    (tmp_path / "pip.py").write_text("import sys; print('ERROR: a'); sys.exit('ERROR: it is full')")
    assert Pip(Path(sys.executable), tmp_path / "pip.py", fd).run([], dict(os.environ), lambda: None) == "it is full"
    (tmp_path / "pip.py").write_text("import sys; sys.exit(3)")
    said = Pip(Path(sys.executable), tmp_path / "pip.py", fd).run([], dict(os.environ), lambda: None)
    assert said == "pip ended with code 3"
    os.close(fd)
