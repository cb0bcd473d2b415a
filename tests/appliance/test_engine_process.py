"""EngineProcess with real processes, on both event loops."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.process import EngineProcess, Exit, LogRing, read_record

pytestmark = pytest.mark.anyio
LIMIT_S = 10.0


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "engine.json"


Start = Callable[..., Awaitable[EngineProcess]]


@pytest.fixture
async def start(record: Path, tmp_path: Path) -> AsyncIterator[Start]:
    runs: list[EngineProcess] = []

    async def _start(*argv: str, grace_s: float = 5.0, log: LogRing | None = None) -> EngineProcess:
        env = {"PATH": os.environ["PATH"]}
        run = await EngineProcess.start(argv, env=env, cwd=tmp_path, record=record, grace_s=grace_s, log=log)
        runs.append(run)
        return run

    yield _start
    for run in runs:
        await run.stop()


def sh(script: str) -> tuple[str, str, str]:
    return "/bin/sh", "-c", script


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def exists(path: Path) -> bool:
    return path.exists()


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


async def lines(log: LogRing, count: int) -> list[str]:
    """The first `count` lines, as they come."""
    found = list(log.tail())
    came = asyncio.Event()

    def take(line: str) -> None:
        found.append(line)
        came.set()

    end = log.subscribe(take)
    async with asyncio.timeout(LIMIT_S):
        while len(found) < count:
            came.clear()
            await came.wait()
    end()
    return found


async def test_a_run_is_started_followed_and_stopped(start: Start, record: Path) -> None:
    run = await start(*sh("echo out; echo err >&2; exec sleep 60"))
    assert await lines(run.log, 2) == ["out", "err"]
    assert run.pid is not None
    assert run.pid == run.pgid
    found = read_record(record)
    assert found is not None
    assert (found.pid, found.start_ticks) == (run.pid, start_ticks(run.pid))
    assert run.ended is None
    assert await run.stop() == Exit(None, signal.SIGTERM, killed_by_us=True)
    assert not alive(run.pid)
    assert not exists(record)
    assert await run.stop() == await run.wait() == await run.wait_ended() == run.ended


async def test_an_exit_nobody_asked_for_says_so_and_the_log_is_complete(start: Start) -> None:
    run = await start(*sh("seq 1 300; printf last; exit 3"))
    assert await run.wait() == Exit(3, None)
    assert run.log.tail(2) == ("300", "last")


async def test_the_end_is_known_before_the_leftovers_are_gone(start: Start) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('f', 'w').write('1'); signal.pause()"
    run = await start(*sh(f'mkfifo f; setsid {sys.executable} -c "{code}" & echo $!; read x < f; exit 0'))
    assert await run.wait_ended() == Exit(0, None)
    child = int((await lines(run.log, 1))[0])
    assert alive(child)  # it ignores SIGTERM: one second until SIGKILL
    assert await run.wait() == Exit(0, None)
    assert not alive(child)


async def test_a_command_that_cannot_be_run_is_a_value(start: Start, tmp_path: Path) -> None:
    run = await start("no-such-engine")
    assert run.pid is None
    assert await run.wait() == Exit(127, None, "exec", "No such file or directory", 2)
    plain = tmp_path / "plain"
    plain.write_text("x")
    run = await start(str(plain))
    assert (await run.wait()).errno == 13


async def test_a_killed_guard_is_replaced_by_a_sweep(start: Start, record: Path) -> None:
    run = await start(*sh("sleep 60 & echo $!; wait"))
    child = int((await lines(run.log, 1))[0])
    assert run.guard_pid is not None
    os.kill(run.guard_pid, signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        assert await run.wait() == Exit(None, None, "guard", "SIGKILL")
    assert run.pid is not None
    assert not alive(run.pid)
    assert not alive(child)
    assert not exists(record)


async def test_a_guard_that_hangs_is_killed_and_swept_after(
    start: Start, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.engine.process.STOP_MARGIN_S", 0.2)
    run = await start("sleep", "60", grace_s=0.1)
    assert run.guard_pid is not None
    os.kill(run.guard_pid, signal.SIGSTOP)
    assert (await run.stop()).stage == "guard"
    assert run.pid is not None
    assert not alive(run.pid)
    assert not exists(record)


async def test_a_start_that_is_cancelled_leaves_nothing(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = asyncio.Event()
    give_back = EngineProcess._give_back

    def given_back(run: EngineProcess) -> None:
        give_back(run)
        gone.set()

    monkeypatch.setattr(EngineProcess, "_give_back", given_back)
    monkeypatch.setattr(EngineProcess, "_on_status", lambda *_: None)  # so that start is still waiting
    log = LogRing()
    command = sh("echo $$; exec sleep 60")
    env = {"PATH": os.environ["PATH"]}
    task = asyncio.ensure_future(EngineProcess.start(command, env=env, cwd=tmp_path, record=record, grace_s=1, log=log))
    pid = int((await lines(log, 1))[0])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(LIMIT_S):
        await gone.wait()
    assert not exists(record)
    assert not alive(pid)


async def test_the_lifeline_does_not_leak_into_other_children(start: Start) -> None:
    run = await start("sleep", "60")
    other = await asyncio.create_subprocess_exec("sleep", "60", close_fds=False)
    try:
        async with asyncio.timeout(LIMIT_S):
            assert (await run.stop()).signal == signal.SIGTERM
    finally:
        other.kill()
        await other.wait()


async def test_a_stop_may_be_shorter_than_the_grace_of_the_run(start: Start) -> None:
    # given an engine that ignores SIGTERM, with a long grace
    run = await start(*sh("trap '' TERM; echo up; while :; do sleep 60 & wait; done"), grace_s=60.0)
    until = asyncio.get_running_loop().time() + LIMIT_S
    while run.log.tail() != ("up",):
        assert asyncio.get_running_loop().time() < until
        await asyncio.sleep(0.01)
    # when, then
    async with asyncio.timeout(LIMIT_S):
        exit_ = await run.stop(0.1)
    assert (exit_.signal, exit_.killed_by_us) == (signal.SIGKILL, True)
    assert not run.stuck
