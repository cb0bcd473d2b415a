"""vLLM 0.26.0's own logs, one failure each: the cause, what to type, whether to try again, and the line that says so.

The excerpts in tests/data/vllm-0.26.0 are of runs on a GPU machine, as the supervisor's ring held them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.engine.failures import Context, Exit, diagnose
from gateway.state import Cause

DATA = Path(__file__).parents[2] / "data/vllm-0.26.0"


@dataclass(frozen=True)
class Told:
    """What one log must become. Parts of title, remedy and evidence."""

    id: str
    title: str
    remedy: str
    evidence: str
    retry: bool = False
    code: int | None = 1
    signal: int | None = None


LOGS = {
    "flag-unknown": Told(
        "engine.flag_unknown",
        "does not know the flag --nope-flag.",
        "moe-appliance engine command",
        "error: unrecognized arguments: --nope-flag",
        code=2,
    ),
    "flag-choice": Told(
        "engine.flag_value",
        "does not take 'nvfp9' for --kv-cache-dtype.",
        "one of 'auto', 'bfloat16'",
        "invalid choice: 'nvfp9'",
        code=2,
    ),
    "flag-value": Told(
        "engine.flag_value",
        "1 validation error for AttentionConfig: nope: Unexpected keyword argument",
        "[engine] args",
        "error: argument --attention-config/-ac",
        code=2,
    ),
    "model-missing": Told(
        "engine.model_missing",
        "There is no checkpoint at /tmp/nothing-here.",
        "[engine] model, or fetch it: moe-appliance checkpoint fetch",
        "HFValidationError: Repo id must be",
    ),
    "shard-cut": Told(
        "engine.shard_cut",
        "cut off or damaged",
        "moe-appliance checkpoint verify /models/m x",
        "SafetensorError: Error while deserializing header: incomplete metadata",
    ),
    "shard-missing": Told(
        "engine.shard_missing",
        "names files that are not there: '/tmp/gone/model-00002-of-00002.safetensors'.",
        "moe-appliance checkpoint verify",
        "Weight files referenced in index but missing",
    ),
    "kv-small": Told(
        "engine.kv_small",
        "One context of 8192 tokens needs 0.06 GiB of KV cache, and there are 0.01 GiB.",
        "set [engine] context_tokens = 1216",
        "ValueError: To serve at least one request",
    ),
    "block-size": Told(
        "engine.block_size",
        "KV blocks of 3 tokens",
        "--block-size",
        "ValueError: No valid attention backend",
    ),
    "gpu-memory": Told(
        "engine.gpu_memory",
        "2.00 GiB more were wanted, 665.56 MiB of 139.80 GiB are free on card 0; process 1686 holds 722.00 MiB of it.",
        "ps -o pid,args -p 1686",
        "torch.OutOfMemoryError: CUDA out of memory. Tried",
        retry=True,
    ),
    "quantization-unknown": Told(
        "engine.plugin_missing",
        "does not know the quantization exl3: the plugin",
        "moe-appliance engine verify vllm-exl3",
        "Value error, Unknown quantization method: exl3.",
    ),
    "gpu-taken": Told(
        "engine.gpu_taken",
        "Card cuda:0 has 138.58 of 139.8 GiB free, and the engine wants 139.66 GiB: 1.08 GiB are missing.",
        "[engine] gpu_memory_utilization = 0.99",
        "ValueError: Free memory on device cuda:0",
        retry=True,
    ),
    "tool-parser": Told(
        "engine.tool_parser",
        "no tool call parser nope.",
        "set [engine] tool_call_parser to one of apertus,",
        "KeyError: 'invalid tool call parser: nope",
    ),
    "reasoning-parser": Told(
        "engine.reasoning_parser",
        "no reasoning parser deepseek_v41.",
        "set [engine] reasoning_parser to one of cohere_command3,",
        "Reasoning parser 'deepseek_v41' not found",
    ),
    "cards-few": Told(
        "engine.cards_few",
        "told to use 2 cards and sees 1.",
        "set [engine] tensor_parallel = 1",
        "Value error, World size (2)",
    ),
    "context-beyond-model": Told(
        "engine.context_beyond_model",
        "A context of 99999999 tokens was asked for, and the model was made for 32768.",
        "set [engine] context_tokens = 32768",
        "Value error, User-specified max_model_len",
    ),
    "architecture-unknown": Told(
        "engine.architecture_unknown",
        "does not know this kind of model: nope.",
        "[engine] environment",
        "Value error, The checkpoint you are trying to load",
    ),
    "cards-none": Told(
        "engine.cards_none",
        "sees no card.",
        "moe-appliance preflight",
        "AssertionError: DP adjusted local rank 0 is out of bounds for 0 devices.",
        retry=True,
    ),
    "socket-folder": Told(
        "engine.socket_folder",
        "folder of the engine's socket",
        "moe-appliance restart",
        "FileNotFoundError: [Errno 2]",
        retry=True,
    ),
    "batch-small": Told(
        "engine.batch_small",
        "A step of 2 tokens is too small for 4 streams.",
        "[engine] max_batched_tokens, or lower [engine] streams",
        "Value error, max_num_batched_tokens (2)",
    ),
    "host-kv": Told(
        "engine.host_kv",
        "The host RAM of the KV tier cannot be pinned.",
        "lower [engine] host_kv_gib",
        "torch.AcceleratorError: CUDA error: out of memory",
        retry=True,
    ),
    "core-killed": Told(
        "engine.core_died",
        "The engine's core process was ended from outside or crashed",
        "journalctl -k -b",
        "EngineDeadError",
        retry=True,
        code=0,
    ),
    "core-killed-loading": Told(
        "engine.core_died",
        "The engine's core process was ended from outside or crashed",
        "journalctl -k -b",
        "Engine core initialization failed",
        retry=True,
    ),
    "plugin-failed": Told(
        "engine.plugin_failed",
        "plugin badplug did not load: “ModuleNotFoundError: No module named 'nothing_like_this'”.",
        "moe-appliance engine verify vllm-exl3",
        "ModuleNotFoundError: No module named 'nothing_like_this'",
    ),
    "request-failed": Told("engine.exit_unasked", "exit code 0", "moe-appliance status", "", retry=True, code=0),
    "api-killed": Told("engine.killed", "killed by SIGKILL", "oom", "", retry=True, code=None, signal=9),
}
CONTEXT = Context(environment="vllm-exl3", model="/models/m x")


def lines(name: str) -> tuple[str, ...]:
    return tuple((DATA / f"{name}.log").read_text().splitlines())


def told(name: str) -> Cause:
    want = LOGS[name]
    return diagnose(Exit(want.code, want.signal), lines(name), CONTEXT)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_a_real_run_becomes_its_cause(name: str) -> None:
    want, cause = LOGS[name], told(name)
    assert cause.id == want.id
    assert want.title in cause.title
    assert want.remedy.replace("/models/m x", "'/models/m x'") in cause.remedy
    assert want.evidence in cause.evidence
    assert bool(want.evidence) == bool(cause.evidence)
    assert cause.retry is want.retry


def test_every_excerpt_has_its_cause() -> None:
    assert {path.stem for path in DATA.glob("*.log")} == set(LOGS)


@pytest.mark.parametrize("name", LOGS)
def test_an_excerpt_is_as_the_ring_holds_it_and_short(name: str) -> None:
    assert 3 <= len(lines(name)) <= 18
    assert all(line.strip() and "\r" not in line for line in lines(name))


@pytest.mark.parametrize("name", sorted(set(LOGS) - {"core-killed", "core-killed-loading"}))
def test_what_only_follows_is_never_the_evidence(name: str) -> None:
    evidence = told(name).evidence
    assert "Engine core initialization failed" not in evidence
    assert "EngineDeadError" not in evidence


def test_a_plugin_that_did_not_load_explains_a_quantization_that_is_not_known() -> None:
    cause = diagnose(Exit(1, None), (*lines("plugin-failed"), *lines("quantization-unknown")), CONTEXT)
    assert cause.id == "engine.plugin_failed"
    assert "plugin badplug did not load: “ModuleNotFoundError: No module named 'nothing_like_this'”." in cause.title
    assert cause.remedy == "moe-appliance engine verify vllm-exl3"
    assert not cause.retry


def test_a_plugin_that_did_not_load_is_not_blamed_for_what_has_its_own_reason() -> None:
    assert diagnose(Exit(1, None), (*lines("plugin-failed"), *lines("kv-small")), CONTEXT).id == "engine.kv_small"


def test_an_error_of_one_request_is_not_the_cause_of_a_later_end() -> None:
    died = "(APIServer pid=612) ERROR 11-30 10:54:33 [multiproc_executor.py:285] Worker proc VllmWorker-1 died"
    cause = diagnose(Exit(0, None), (*lines("request-failed"), f"{died} unexpectedly (exit code: -9), so"), CONTEXT)
    assert cause.id == "engine.worker_died"
    assert "VllmWorker-1" in cause.title
    assert "SIGKILL" in cause.title
