"""What a process and everything below it used: with real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.engine import tree
from appliance.engine.stall import Usage
from appliance.engine.tree import Tree, start_of, watch

CHILD = """
import subprocess, sys
below = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=subprocess.PIPE, text=True,
                         stdout=subprocess.PIPE, start_new_session=True)
below.stdout.readline()
print(below.pid, flush=True)
for line in sys.stdin:
    if line == "work\\n":
        sum(range(3_000_000))
        with open(sys.argv[1], "rb") as file:
            while file.read(1 << 16):
                pass
    print("done", flush=True)
below.communicate("x")
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "big").write_bytes(bytes(4 << 20))
    argv = [sys.executable, "-c", CHILD, str(tmp_path / "big")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def ask(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{word}\n")
    child.stdin.flush()
    assert child.stdout.readline() == "done\n"


def test_everything_below_is_seen_also_in_sessions_of_its_own(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    seen = Tree(os.getpid()).look()
    assert {child.pid, grandchild} <= seen.pids.keys()
    assert os.getpid() not in seen.pids
    assert seen.pids[grandchild] == start_of(grandchild)
    assert Tree(child.pid).look().pids.keys() == {grandchild}


def test_work_and_bytes_are_counted_and_what_ended_stays_counted(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    child.stdout.readline()
    mine = Tree(os.getpid())
    before = mine.look()
    ask(child, "work")
    after = mine.look()
    assert after.read_bytes - before.read_bytes >= 4 << 20
    assert after.cpu_s > before.cpu_s
    child.communicate()
    ended = mine.look()
    assert child.pid not in ended.pids
    assert ended.read_bytes >= after.read_bytes
    assert ended.cpu_s >= after.cpu_s


def test_a_process_that_waits_to_be_reaped_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_of(child.pid) is None
    child.wait()
    assert start_of(child.pid) is None


def test_a_tree_whose_root_is_gone_has_nobody(tmp_path: Path) -> None:
    assert Tree(1, proc=tmp_path).look() == Usage()


@pytest.mark.anyio
async def test_a_look_that_hangs_starts_no_second_one_and_the_last_figures_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []

    async def never(look: object) -> Usage:
        looks.append(look)
        return await asyncio.Future[Usage]()

    monkeypatch.setattr(tree, "unwaited", never)
    monkeypatch.setattr(tree, "LOOK_LIMIT_S", 0.01)
    told: list[Usage] = []
    three = asyncio.Event()

    def tell(usage: Usage) -> None:
        told.append(usage)
        if len(told) == 3:
            three.set()

    watching = asyncio.create_task(watch(Tree(os.getpid()), lambda: 0.0, tell))
    async with asyncio.timeout(10):
        await three.wait()
    watching.cancel()
    await asyncio.wait([watching])
    assert len(looks) == 1
    assert told[:3] == [Usage(), Usage(), Usage()]
