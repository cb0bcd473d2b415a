"""What the daemon's own loop must not be held by."""

from __future__ import annotations

import asyncio
import io
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from appliance import daemon as daemons
from appliance.config import load
from appliance.daemon import Daemon, stop_limit_s
from gateway import logs


class HungFolder:
    """A lock on a folder whose disk does not answer."""

    def __init__(self) -> None:
        self.folder = Path("/state")
        self.asked, self.answers = threading.Event(), threading.Event()
        self.times = 0

    def renew(self) -> bool:
        self.times += 1
        self.asked.set()
        assert self.answers.wait(10)
        return False


class Engine:
    """No engine."""

    def keep_key(self) -> None:
        pass


@pytest.mark.anyio
async def test_a_folder_that_hangs_holds_neither_the_loop_nor_more_than_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemons, "KEEP_S", 0.0)
    monkeypatch.chdir(tmp_path)
    daemon, hung = Daemon(*load(None, {}), logs.configure("daemon", io.StringIO())), HungFolder()
    keeping = asyncio.create_task(daemon._keep_folders(cast(Any, Engine()), cast(Any, [hung])))
    assert await asyncio.to_thread(hung.asked.wait, 5)
    for _ in range(50):
        await asyncio.sleep(0)
    assert hung.times == 1
    keeping.cancel()
    await asyncio.wait([keeping], timeout=1)
    assert keeping.done(), "the end does not wait for the disk either"
    hung.answers.set()


def test_the_longest_stop_counts_drain_and_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short, _ = load(None, {})
    (tmp_path / "appliance.toml").write_text(
        '[gateway]\ndrain_s = 600.0\n[engine]\nkind = "command"\ncommand = ["x", "{port}"]\ngrace_s = 100.0\n'
    )
    long, _ = load(tmp_path / "appliance.toml", {})
    assert stop_limit_s(short) > short.gateway.drain_s
    assert stop_limit_s(long) > 700
