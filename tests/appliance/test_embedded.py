"""appliance/engine/embedded.py and the child program; the real engine where package and model are there.

The model comes from tests/model.py; without one those tests skip.
Speeds are not asserted: they vary thirtyfold with the load of the box.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.box.facts import Facts
from appliance.engine import model
from appliance.engine.embedded import CHILD, MEMORY_BYTES, EmbeddedEngine, automatic_threads
from appliance.engine.promise import usual
from appliance.engine.settings import EmbeddedSettings
from appliance.engine.warmup import warm_up
from appliance.errors import ModelError
from gateway.state import EngineAbilities, Verdict
from tests.model import demo_wheel

FACTS = Facts(
    machine="x86_64",
    cpu_flags=frozenset({"avx2", "fma", "f16c", "bmi2"}),
    cores=2,
    mem_available_bytes=MEMORY_BYTES,
    disk_free_bytes=model.FETCH_BYTES,
    python=(3, 11, 0),
    euid=0,
    listen_host="127.0.0.1",
    libs={"libgomp.so.1": True, "libstdc++.so.6": True},
    modules={"xllamacpp": True},
)


def ids(engine: EmbeddedEngine, **changes: Any) -> list[str]:
    values = {name: getattr(FACTS, name) for name in FACTS.__slots__} | changes
    return [found.id for found in engine.findings(Facts(**values))]


def test_the_profile_is_a_demo(tmp_path: Path) -> None:
    engine = EmbeddedEngine(EmbeddedSettings(), state_dir=tmp_path)
    assert engine.profile.name == "SmolLM2-135M (demo)"
    assert engine.profile.demo
    assert (engine.served_model, engine.context_tokens) == ("moe-appliance-demo", 8192)
    own = EmbeddedEngine(EmbeddedSettings(model_file=Path("/m/Big-7B.gguf")), state_dir=tmp_path)
    assert (own.served_model, own.context_tokens, own.profile.demo) == ("Big-7B", None, False)


def test_findings_cover_cpu_libraries_package_memory_and_disk(tmp_path: Path) -> None:
    engine = EmbeddedEngine(EmbeddedSettings(), state_dir=tmp_path)
    assert ids(engine) == []
    worst = {
        "cpu_flags": frozenset({"sse"}),
        "libs": {"libgomp.so.1": False, "libstdc++.so.6": False},
        "modules": {"xllamacpp": False},
        "mem_available_bytes": MEMORY_BYTES - 1,
        "disk_free_bytes": model.FETCH_BYTES - 1,
    }
    expected = ["engine.package", "cpu.avx2", "lib.gomp", "lib.stdcxx", "mem.free", "disk.free"]
    assert ids(engine, **worst) == expected


def test_a_model_of_ones_own_needs_no_disk_but_its_size_in_memory(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF" * 100)
    engine = EmbeddedEngine(EmbeddedSettings(model_file=own), state_dir=tmp_path)
    assert ids(engine, disk_free_bytes=0, mem_available_bytes=MEMORY_BYTES + 400) == []
    assert ids(engine, mem_available_bytes=MEMORY_BYTES + 399) == ["mem.free"]


@pytest.mark.parametrize(("cpus", "threads"), [(1, 1), (2, 2), (3, 2), (5, 4), (64, 4)])
def test_automatic_threads(cpus: int, threads: int) -> None:
    assert automatic_threads(cpus) == threads


@pytest.mark.anyio
async def test_launch_passes_the_key_as_a_path_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def made(*_: object) -> Path:
        return tmp_path / "m.gguf"

    monkeypatch.setattr(model, "ensure_model", made)
    engine = EmbeddedEngine(EmbeddedSettings(threads=3), state_dir=tmp_path)
    await engine.prepare(lambda step, fraction: None)
    launch = engine.launch(4711, tmp_path / "key")
    assert launch.argv[:3] == (sys.executable, "-P", str(CHILD))
    assert str(tmp_path / "key") in launch.argv
    assert launch.env["OMP_WAIT_POLICY"] == "passive"
    assert launch.env["OMP_NUM_THREADS"] == "3"
    assert (launch.url, launch.key_file) == ("http://127.0.0.1:4711", tmp_path / "key")


@pytest.mark.anyio
async def test_prepare_passes_errors_on(tmp_path: Path) -> None:
    engine = EmbeddedEngine(EmbeddedSettings(model_file=tmp_path / "gone.gguf"), state_dir=tmp_path)
    with pytest.raises(ModelError, match="is not a file"):
        await engine.prepare(lambda step, fraction: None)


# -- the child ---------------------------------------------------------------------------------------------


def child_argv(tmp_path: Path, *more: str) -> list[str]:
    (tmp_path / "key").write_text("sk-test\n")
    argv = [sys.executable, "-m", "appliance.engine.embedded_child", "--model", str(tmp_path / "none.gguf")]
    return [*argv, "--port", "0", "--key-file", str(tmp_path / "key"), "--slots-dir", str(tmp_path / "slots"), *more]


def test_a_missing_library_is_the_loaders_line_and_code_1(tmp_path: Path) -> None:
    fake = tmp_path / "path" / "xllamacpp.py"
    fake.parent.mkdir()
    line = "libgomp.so.1: cannot open shared object file: No such file or directory"
    fake.write_text(f"import os\nassert os.environ['OMP_WAIT_POLICY'] == 'passive'\nraise ImportError({line!r})\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        child_argv(tmp_path), env=env | {"PYTHONPATH": str(fake.parent)}, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (1, f"{line}\n")


def test_an_empty_key_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    argv = child_argv(tmp_path)
    (tmp_path / "key").write_text("\n")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (1, f"{tmp_path / 'key'} holds no key\n")


def test_a_model_that_is_not_there_ends_the_child_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    done = subprocess.run(child_argv(tmp_path), capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "failed to open GGUF file" in done.stderr


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    url: str
    key: str
    state_dir: Path
    engine: EmbeddedEngine
    log: Path


def wait_ready(running: Running) -> None:
    transport = httpx.HTTPTransport(retries=3)
    with httpx.Client(transport=transport, trust_env=False) as client:
        for _ in range(600):
            assert running.process.poll() is None, running.log.read_text()
            try:
                if client.get(f"{running.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            try:
                running.process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
    raise AssertionError("not ready after 60 s")


@contextmanager
def started(engine: EmbeddedEngine, state_dir: Path) -> Iterator[Running]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key_file = state_dir / "key"
    key_file.touch(0o600)
    key_file.write_text("sk-test")
    launch = engine.launch(port, key_file)
    log = state_dir / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(launch.argv, env=os.environ | dict(launch.env), stderr=output, stdout=output)
    running = Running(process, launch.url, "sk-test", state_dir, engine, log)
    try:
        wait_ready(running)
        yield running
    finally:
        process.kill()
        process.wait()


def prepared(tmp_path: Path) -> EmbeddedEngine:
    pytest.importorskip("xllamacpp")
    engine = EmbeddedEngine(EmbeddedSettings(model_file=demo_wheel()), state_dir=tmp_path)
    asyncio.run(engine.prepare(lambda step, fraction: None))
    return engine


def ask(running: Running, number: int) -> dict[str, Any]:
    body = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 8,
        "messages": [{"role": "user", "content": f"Tell me about the number {number}."}],
    }
    headers = {"Authorization": f"Bearer {running.key}"}
    answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    usage: dict[str, Any] = json.loads(events[-2])["usage"]
    return usage


def test_the_real_engine_serves_four_streams_warms_up_and_stops(tmp_path: Path) -> None:
    engine = prepared(tmp_path)
    old = tmp_path / "slots" / "old.bin"
    old.parent.mkdir()
    old.write_text("what a user wrote")
    with started(engine, tmp_path) as running:
        assert not old.exists()
        assert old.parent.stat().st_mode & 0o777 == 0o700
        assert httpx.get(f"{running.url}/v1/models", trust_env=False).status_code == 401
        headers = {"Authorization": f"Bearer {running.key}"}
        slots = httpx.get(f"{running.url}/slots", headers=headers, trust_env=False).json()
        assert [slot["n_ctx"] for slot in slots] == [8192] * 4

        with ThreadPoolExecutor(4) as pool:
            usages = list(pool.map(lambda number: ask(running, number), range(4)))
        assert all(0 < usage["completion_tokens"] <= 8 for usage in usages)

        promise = usual(engine.kind, engine.profile, 180.0)
        result = asyncio.run(
            warm_up(running.url, running.key, engine.served_model, lambda step, fraction: None, promise=promise)
        )
        verdicts = {row.id: row.verdict for row in result.results if row.id != "pace"}
        assert {name for name, verdict in verdicts.items() if verdict is not Verdict.OK} == {
            "tools",
            "json_object",
            "json_schema",
        }
        assert Verdict.FAILED not in verdicts.values()
        assert result.models == ("moe-appliance-demo",)
        assert result.context_tokens == 8192
        assert result.cached_tokens_ok is True
        chat, messages = "/v1/chat/completions", "/v1/messages"
        assert result.abilities == EngineAbilities(
            dialects=(chat, "/v1/completions", "/v1/responses", messages),
            counters={
                chat: f"{chat}/input_tokens",
                "/v1/responses": "/v1/responses/input_tokens",
                messages: f"{messages}/count_tokens",
            },
            continuation=(chat, messages, f"{chat}#continue_final_message"),
            images=False,
        )
        assert result.notes == ()

        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(10) == 0
    steps = [step for line in running.log.read_text().splitlines() if (step := engine.phase_of(line))]
    assert [step.name for step in dict.fromkeys(steps)] == [
        "loading the model",
        "warming the model",
        "making room for the streams",
        "listening",
    ]


@pytest.mark.slow
def test_the_template_carries_tools_and_a_prefill_forces_a_call(tmp_path: Path) -> None:
    engine = prepared(tmp_path)
    function = {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    body = {
        "max_tokens": 48,
        "temperature": 0,
        "tool_choice": "required",
        "tools": [{"type": "function", "function": function}],
        "messages": [
            {"role": "user", "content": "What is the weather in Paris?"},
            {"role": "assistant", "content": "<tool_call>\n"},
        ],
    }
    with started(engine, tmp_path) as running:
        headers = {"Authorization": f"Bearer {running.key}"}
        answer = httpx.post(
            f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=60, trust_env=False
        ).json()
    call = answer["choices"][0]["message"]["tool_calls"][0]["function"]
    assert call["name"] == "weather"
    assert json.loads(call["arguments"]) == {"city": "Paris"}
