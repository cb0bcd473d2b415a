"""A runtime folder that is removed under a running box, and a state folder without room."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.box import Box, kill9, until
from tests.e2e.conftest import MakeBox

MENDED_S = 5.0


def check_whole(box: Box) -> None:
    """Both sockets answer, a seat is served, and the command line reaches gateway and daemon."""
    assert box.served("a", 5.0)[1].done
    shown = box.cli("status")
    assert shown.returncode == 0, shown.stderr
    assert "served" in shown.stdout, "the gateway did not answer"
    assert box.cli("reload").returncode == 0


def test_a_runtime_folder_that_was_removed_is_made_again(make_box: MakeBox) -> None:
    box = make_box().start().wait_ready()
    engine_pid, stream = box.engine_pid, box.streams(["b"])[0]
    shutil.rmtree(box.runtime)
    until("the sockets are back", lambda: all((box.runtime / f"{n}.sock").exists() for n in ("control", "gateway")), 5)
    assert box.runtime.stat().st_mode & 0o777 == 0o750
    check_whole(box)
    assert f"pid {box.pid}" in box.cli("run").stderr, "the new folder must be locked as the old one was"
    assert not stream.answer.ended_s
    kill9(box.gateway_pid)
    stream.wait(5)
    check_whole(box)
    assert box.engine_pid == engine_pid
    assert box.cli("restart").returncode == 0
    until("another engine", lambda: box.state()["engine"]["pid"] not in (None, engine_pid), 10)
    box.wait_ready(10)
    check_whole(box)
    assert box.stop() == 0
    assert "Traceback" not in box.log


def test_a_gateway_that_dies_without_its_folder_comes_back(make_box: MakeBox) -> None:
    box = make_box().start().wait_ready()
    gateway_pid = box.gateway_pid
    shutil.rmtree(box.runtime)
    kill9(gateway_pid)
    took_s, _ = box.served("a", MENDED_S)
    print(f"MEASURED served {took_s:.2f} s after folder and gateway were lost")
    until("the daemon's socket is back", (box.runtime / "control.sock").exists, 3)
    check_whole(box)
    assert box.stop() == 0


def test_a_folder_that_another_box_took_meanwhile_is_left_to_it(make_box: MakeBox) -> None:
    """Nothing of ours is put into it; the first box goes on serving whom it serves."""
    box, other = make_box().start().wait_ready(), make_box("other")
    text = other.config.read_text()
    other.config.write_text(text.replace(str(other.runtime), str(box.runtime)))
    shutil.rmtree(other.runtime)
    other.runtime = box.runtime
    os.kill(box.pid, 19)  # SIGSTOP: it must not be faster than the other
    shutil.rmtree(box.runtime)
    other.start()
    until("the other has its socket", (box.runtime / "control.sock").exists, 20)
    os.kill(box.pid, 18)
    other.wait_ready()
    until("the first has seen it", lambda: f"pid {other.pid}" in box.log, 5)
    assert other.state()["engine"]["phase"] == "ready"
    assert other.chat("a").done
    assert box.process is not None
    box.process.terminate()
    assert box.process.wait(15) == 0
    assert other.chat("a").done
    assert other.stop() == 0


@contextlib.contextmanager
def tiny(folder: Path) -> Iterator[None]:
    """`folder`, with what it holds, on a file system of its own that is full."""
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in ("lock", "run")}
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("only root of a machine of its own can mount")
    try:
        for name, data in kept.items():
            (folder / name).write_bytes(data)
        with contextlib.suppress(OSError):
            (folder / "fill").write_bytes(bytes(200_000))
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_state_folder_at_start_is_no_traceback(make_box: MakeBox) -> None:
    box = make_box().start().wait_ready()  # once: the gateway's cookie secret is made then
    assert box.stop() == 0
    with tiny(box.home / "state"):
        box.start().wait_ready()
        assert box.chat("a").done
        assert "pid unknown" in box.cli("run").stderr
        assert box.stop() == 0
    assert "Traceback" not in box.log


def test_a_full_runtime_folder_at_start_is_named(make_box: MakeBox) -> None:
    box = make_box()
    with tiny(box.runtime):
        done = box.cli("run")
    assert done.returncode == 78, done.stderr
    assert f"runtime_dir: the folder {box.runtime} cannot be used: No space left on device" in done.stderr
    assert f"df -h {box.runtime}" in done.stderr
    assert "Traceback" not in done.stderr
