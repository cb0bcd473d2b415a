"""What the daemon's own loop must not be held by."""

from __future__ import annotations

import asyncio
import io
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance import daemon as daemons
from appliance.config import load
from appliance.daemon import Daemon, stop_limit_s
from gateway import logs
from gateway.state import Pair


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


class Restarted:
    """An engine that can be asked for things; `wanted`: the pair that streams end for."""

    def __init__(self, wanted: Pair | None = None, *, supervised: bool = True) -> None:
        self.wanted, self.adapter = wanted, SimpleNamespace(supervised=supervised)
        self.asked: list[str] = []

    def restart(self) -> Pair | None:
        self.asked.append("restart")
        return self.wanted

    def start(self) -> None:
        self.asked.append("start")


async def asked(tmp_path: Path, engine: Restarted, verb: str, *, stopping: bool = False) -> tuple[int, str]:
    (tmp_path / "appliance.toml").touch()
    daemon = Daemon(*load(tmp_path / "appliance.toml", {}), logs.configure("daemon", io.StringIO()))
    daemon._engine = cast(Any, engine)
    if stopping:
        daemon.stop()
    status, said = await daemon._verbs()[verb]({})
    return status, str(said["said"])


@pytest.mark.anyio
@pytest.mark.parametrize("verb", ["restart", "start-engine", "use"])
async def test_nothing_is_started_any_more_while_the_box_drains_for_its_stop(tmp_path: Path, verb: str) -> None:
    engine = Restarted()
    status, said = await asked(tmp_path, engine, verb, stopping=True)
    assert (status, engine.asked) == (409, [])
    assert "the box is being stopped" in said


@pytest.mark.anyio
async def test_a_restart_says_what_it_brings_about(tmp_path: Path) -> None:
    assert await asked(tmp_path, Restarted(), "restart") == (202, "the engine is being restarted")
    external = Restarted(supervised=False)
    assert await asked(tmp_path, external, "restart") == (202, "the engine, which is not ours, is asked anew")
    changing = Restarted(Pair(environment="other"))
    status, said = await asked(tmp_path, changing, "restart")
    assert (status, changing.asked) == (202, ["restart"])
    assert said == "running streams are ended now, and the engine is restarted with environment other"


def test_the_longest_stop_counts_drain_and_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short, _ = load(None, {})
    (tmp_path / "appliance.toml").write_text(
        '[gateway]\ndrain_s = 600.0\n[engine]\nkind = "command"\ncommand = ["x", "{port}"]\ngrace_s = 100.0\n'
    )
    long, _ = load(tmp_path / "appliance.toml", {})
    assert stop_limit_s(short) > short.gateway.drain_s
    assert stop_limit_s(long) > 700
