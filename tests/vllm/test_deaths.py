"""Each process of the real vLLM killed or stopped: noticed, cleaned up, started anew, and the cause is named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.box import alive, kill9, until
from tests.e2e.client import Call
from tests.vllm.conftest import MakeVllm
from tests.vllm.vllm_box import Death, VllmBox, died

pytestmark = pytest.mark.vllm

CORE, RANK = "VLLM::EngineCore", "VLLM::Worker"
HANG_S, IDLE_S, CANARY_S = 20.0, 15.0, 5.0
SOON: dict[str, float | str] = {
    "appliance.engine.progress_watch.HANG_MIN_S": HANG_S,
    "appliance.engine.progress_watch.PREFILLS": 0.0,
    "appliance.engine.progress_watch.IDLE_S": IDLE_S,
}
"""A box waits three times as long before it calls an engine hung, and longer where its prompts are long."""

Transcript = Callable[..., None]


@pytest.fixture(scope="module")
def box(make_vllm: MakeVllm, tiny_moe: Path, transcript: Transcript) -> VllmBox:
    """Random weights write no JSON worth the name, so that the engine may lack what agents need."""
    box = make_vllm(
        patches=SOON, model=str(tiny_moe), allow_degraded=True, hang_s=HANG_S, canary_s=CANARY_S, context_tokens=8192
    )
    box.start()
    boot = box.boot()
    transcript(f"first boot, a random Qwen3-MoE: {boot.told()}", "", "", boot.took_s, "")
    return box


def stream(box: VllmBox) -> Call:
    """A long one, past its first tokens."""
    call = box.post("a", max_tokens=6000, text="write on")
    call.wait_bytes(b'"content":"', 30)
    return call


def cut(call: Call) -> None:
    """The client is told, in words and by how it ends."""
    answer = call.wait(60)
    assert answer.status == 200
    assert answer.cut, answer.told()
    assert b'"error"' in answer.raw[-2000:], answer.told()


def noted(transcript: Transcript, what: str, death: Death) -> None:
    """A row of the table."""
    cause = death.cause
    transcript(what, death.noticed_s, death.gone_s, death.ready_s, f"{cause['id']}: {cause['title']}")


@pytest.mark.parametrize(
    ("who", "id_", "words"),
    [
        (RANK, "engine.worker_died", "The engine's process VllmWorker-0 was ended from outside or crashed"),
        (CORE, "engine.core_died", "The engine's core process was ended from outside or crashed"),
        ("", "engine.killed", "killed by SIGKILL"),
    ],
    ids=["worker", "core", "server"],
)
def test_a_process_that_is_killed_ends_the_streams_and_is_named(
    box: VllmBox, transcript: Transcript, who: str, id_: str, words: str
) -> None:
    # given
    victim, call = box.named(who) if who else box.engine_pid, stream(box)
    # when
    death = died(box, lambda: kill9(victim))
    # then
    noted(transcript, f"kill -9 of {who or 'the API process'}, a stream runs", death)
    assert death.cause["id"] == id_, death.log
    assert words in death.cause["title"]
    assert death.noticed_s < 5
    cut(call)
    assert box.chat("a").status == 200


@pytest.mark.parametrize("used", [True, False], ids=["while a stream runs", "idle"])
def test_a_core_that_stands_still_is_started_anew(box: VllmBox, transcript: Transcript, used: bool) -> None:
    # given
    core, call = box.named(CORE), stream(box) if used else None
    # when
    death = died(box, lambda: stop(core))
    # then
    noted(transcript, f"SIGSTOP of {CORE}, {'a stream runs' if used else 'idle'}", death)
    assert death.cause["id"] == "engine.hung"
    assert ("a stream runs" if used else "idle") in death.cause["title"]
    limit_s = HANG_S + CANARY_S if used else IDLE_S + 2 * CANARY_S
    assert death.noticed_s < limit_s + 20
    if call is not None:
        cut(call)
    assert box.chat("a").status == 200


def stop(pid: int) -> float:
    """SIGSTOP; returns when, on the monotonic clock."""
    os.kill(pid, signal.SIGSTOP)
    return time.monotonic()


def test_a_daemon_that_is_killed_leaves_nothing_and_the_next_one_serves(box: VllmBox, transcript: Transcript) -> None:
    # given
    tree, call, daemon = box.left(), stream(box), box.process
    assert daemon is not None
    # when
    at_s = kill9(daemon.pid)
    # then
    until("nothing of the box is left", lambda: not any(map(alive, tree)), 30)
    gone_s = time.monotonic() - at_s
    assert not box.left(), box.told_left()
    assert call.wait(30).cut
    daemon.wait(5)
    # when
    box.start()
    boot = box.boot()
    # then
    transcript("kill -9 of the daemon, a stream runs; then started anew", "", gone_s, gone_s + boot.took_s, "")
    assert box.chat("a").status == 200
