"""A gateway that dies or hangs is replaced; the engine and the public socket do not notice."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from appliance import gatewayproc
from appliance.board import Board
from appliance.gatewayproc import GatewayProcess
from appliance.listener import open_public
from gateway import logs
from gateway.settings import GatewaySettings, StaticEngine
from gateway.state import BoxState
from tests.e2e.box import Box, kill9, until
from tests.e2e.client import Call, chat_body, request_bytes
from tests.e2e.conftest import MakeBox

KILL_SERVED_S = 2.0
HANG_SERVED_S = 8.0
ABSENT_S = 3.0


def check_replaced(box: Box, old: list[Call], before: dict[str, Any], last_exit: str) -> None:
    """Old streams are cut, their sequences ended in the engine, there were never more than four; the engine was
    not touched, and the daemon counted."""
    for call in old:
        assert call.wait(5).cut, call.answer.told()
    until("the old sequences end in the engine", lambda: box.stats()["sequences"] == 0, 1.0)
    stats = box.stats()
    assert [record["outcome"] for record in stats["log"][-5:]] == ["aborted"] * 4 + ["completed"]
    now = box.state()
    assert now["engine"]["pid"] == before["engine"]["pid"]
    assert now["gateway"]["restarts"] == before["gateway"]["restarts"] + 1
    assert now["gateway"]["pid"] not in (None, before["gateway"]["pid"])
    assert now["gateway"]["last_exit"] == last_exit
    assert stats["peak_sequences"] == 4


def test_killed_gateway_is_replaced_within_two_seconds_and_the_engine_goes_on(shared_box: Box) -> None:
    box = shared_box
    before, old = box.state(), box.streams()
    killed_s = kill9(before["gateway"]["pid"])
    took_s, _ = box.served("a", KILL_SERVED_S)
    print(f"MEASURED served {took_s:.2f} s after kill -9 of the gateway")
    assert took_s < KILL_SERVED_S
    check_replaced(box, old, before, "signal 9")
    assert all((call.answer.ended_s or 0) - killed_s < 1.0 for call in old)


def test_who_comes_while_there_is_no_gateway_waits_for_the_next_one_and_is_served(shared_box: Box) -> None:
    """Not refused by a gateway that does not know yet that the engine serves."""
    for _ in range(3):
        kill9(shared_box.gateway_pid)
        answer = shared_box.chat("a")
        assert answer.status == 200, answer.told()
        assert answer.done
        shared_box.wait_ready()


def test_hung_gateway_is_killed_and_replaced_within_eight_seconds(shared_box: Box) -> None:
    box = shared_box
    before, old = box.state(), box.streams()
    os.kill(before["gateway"]["pid"], signal.SIGSTOP)
    took_s, _ = box.served("a", HANG_SERVED_S)
    print(f"MEASURED served {took_s:.2f} s after SIGSTOP of the gateway")
    assert took_s < HANG_SERVED_S
    check_replaced(box, old, before, "killed, it did not answer")
    assert box.log.count('"gateway.hung"') == 1


def test_without_a_gateway_the_daemon_answers_503_and_a_mended_gateway_serves(make_box: MakeBox) -> None:
    box = make_box().start().wait_ready()
    settings = box.runtime / "gateway.json"
    good = settings.read_bytes()
    settings.write_bytes(b"{broken")
    killed_s = time.monotonic()
    os.kill(box.gateway_pid, signal.SIGKILL)
    big = chat_body("x" * 1_500_000)
    first = box.call(request_bytes("POST", "/v1/chat/completions", box.keys["a"], big)).wait()
    took_s = time.monotonic() - killed_s
    print(f"MEASURED first 503 of the daemon {took_s:.2f} s after the gateway's end")
    for answer in (first, box.call(request_bytes("POST", "/v1/chat/completions", box.keys["a"], big)).wait()):
        assert (answer.status, answer.clean, answer.error) == (503, True, ""), answer.told()
        assert answer.headers["retry-after"] == "10"
        assert answer.headers["x-moe-reject-reason"] == "gateway_absent"
        assert answer.json["error"]["code"] == "gateway_absent"
    assert ABSENT_S - 0.1 < took_s < ABSENT_S + 2.0
    state = box.state()
    assert state["engine"]["phase"] == "ready"
    assert state["gateway"]["last_exit"] == "exit code 78"
    settings.write_bytes(good)
    took_s, _ = box.served("a", 5.0)
    print(f"MEASURED served {took_s:.2f} s after the gateway was mended")


def keeper(public: socket.socket, folder: Path) -> tuple[GatewayProcess, Board]:
    """What the daemon keeps a gateway alive with, in this process."""
    settings = GatewaySettings(
        seats_file=folder / "seats.toml",
        state_dir=folder,
        gateway_socket=folder / "gateway.sock",
        engine=StaticEngine(url="http://127.0.0.1:9"),
    )
    board = Board(BoxState())
    process = GatewayProcess(public, settings, folder, board, logs.configure("daemon", io.StringIO()))
    process.write_settings()
    return process, board


@pytest.mark.anyio
async def test_a_stop_that_comes_while_a_gateway_is_being_spawned_ends_it(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_public("127.0.0.1", 0) as public:
        gateway, board = keeper(public, short_folder)
        spawn, spawning = gateway._spawn, asyncio.Event()

        async def slow() -> asyncio.subprocess.Process:
            spawning.set()
            await asyncio.sleep(0.2)
            return await spawn()

        monkeypatch.setattr(gateway, "_spawn", slow)
        running = asyncio.create_task(gateway.run())
        await spawning.wait()
        await gateway.stop(0.0)
        await asyncio.wait_for(running, 5)
        assert board.state.gateway.pid is None


@pytest.mark.anyio
async def test_a_gateway_that_cannot_be_started_is_tried_again(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gatewayproc, "YOUNG_DELAY_S", 0.02)
    with open_public("127.0.0.1", 0) as public:
        gateway, board = keeper(public, short_folder)
        write, missing = gatewayproc.write_record, [True, True]

        def no_room(path: Path, pid: int) -> None:
            if missing and missing.pop():
                raise OSError(28, "No space left on device")
            write(path, pid)

        monkeypatch.setattr(gatewayproc, "write_record", no_room)
        running = asyncio.create_task(gateway.run())
        async with asyncio.timeout(10):
            while board.state.gateway.pid is None:
                assert not running.done()
                await asyncio.sleep(0.02)
            await gateway._live.wait()
        assert not missing
        await gateway.stop(0.0)
        await asyncio.wait_for(running, 5)
