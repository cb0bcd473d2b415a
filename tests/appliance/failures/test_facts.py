"""The failures that were found before any of this was written: those of vLLM when it was measured, by their row, and 27
complaints of others, by their number. What has no line in a log is listed with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from appliance.engine.failures import Context, Exit, OomKill, PlanFigures, VramHolder, diagnose, observed
from appliance.units import GIB
from gateway.state import Cause
from tests.appliance.failures.test_vllm_logs import lines

STARTED = "(APIServer pid=9) INFO:     Application startup complete."
CORE = "(EngineCore pid=7) ERROR 11-30 10:00:00 [core.py:1330] "
WORKER = "(Worker_TP0 pid=8) ERROR 11-30 10:00:00 [multiproc_executor.py:949] "
CORE_DEAD = (
    "(APIServer pid=9) ERROR 11-30 10:00:01 [async_llm.py:704] AsyncLLM output_handler failed.",
    "(APIServer pid=9) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace",
)
ECHO = (
    "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
MAKE = "moe-appliance plan make --checkpoint /m --out plan.json --overwrite"
FITS = PlanFigures(90 * GIB, 95 * GIB, 4_608, 15_360, 14 << 20, MAKE)
SHORT = PlanFigures(int(102.1 * GIB), int(95.6 * GIB), 0, 15_360, 14 << 20, MAKE)
PLANNED = Context(environment="vllm-exl3", model="/m", plan=FITS)


@dataclass(frozen=True)
class Row:
    """`id`, and parts of what is told. `log` under `exit`, or a cause that was `seen` by other means."""

    id: str
    title: str
    remedy: str
    retry: bool
    log: tuple[str, ...] = ()
    exit: Exit = field(default_factory=lambda: Exit(1, None))
    context: Context = PLANNED
    seen: Callable[[], Cause] | None = None

    def cause(self) -> Cause:
        return diagnose(self.exit, self.log, self.context) if self.seen is None else self.seen()


MEASURED = {
    "unknown flag": Row(
        "engine.flag_unknown", "--nope-flag", "[engine] args", False, lines("flag-unknown"), Exit(2, None)
    ),
    "model path missing, offline": Row(
        "engine.model_missing", "no checkpoint at /tmp/nothing-here", "[engine] model", False, lines("model-missing")
    ),
    "port in use": Row(
        "engine.port_taken",
        "Another program holds the engine's port.",
        "ss -ltnp",
        True,
        (
            "(APIServer pid=9) Traceback (most recent call last):",
            "(APIServer pid=9) OSError: [Errno 98] Address already in use",
        ),
    ),
    "KV too small": Row("engine.kv_small", "8192 tokens", "context_tokens = 1216", False, lines("kv-small")),
    "truncated safetensors": Row("engine.shard_cut", "cut off", "checkpoint verify /m", False, lines("shard-cut")),
    "--kv-offloading-size on CPU": Row(
        "engine.host_kv",
        "KV cache in host RAM",
        "host_kv_gib = 0",
        True,
        (CORE + "Exception: CPU Offloading is currently only supported on CUDA-alike and XPU GPUs", ECHO),
    ),
    "GPU OOM at load": Row(
        "engine.gpu_memory",
        "The plan leaves 102.1 GiB on a 95.6 GiB card.",
        f"move 476 more experts: {MAKE} --experts 476",
        False,
        lines("gpu-memory"),
        context=replace(PLANNED, plan=SHORT),
    ),
    "EngineCore kill -9 while serving": Row(
        "engine.core_died", "ended from outside", "journalctl -k", True, lines("core-killed"), Exit(0, None)
    ),
    "Worker kill -9 while serving": Row(
        "engine.worker_died",
        "VllmWorker-0",
        "journalctl -k",
        True,
        (STARTED, CORE + "Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down", *CORE_DEAD),
        Exit(0, None),
    ),
    "API server kill -9": Row("engine.killed", "SIGKILL", "oom", True, lines("api-killed"), Exit(None, 9)),
    "exit 0 that nobody asked for": Row(
        "engine.exit_unasked", "exit code 0", "moe-appliance status", True, (STARTED,), Exit(0, None)
    ),
}
"""facts/engine-vllm.md, section 3. SIGTERM, idle or after a drain, is no failure."""

COMPLAINTS = {
    1: Row(
        "engine.collective_hang",
        "0.6 GiB, 0.6 GiB on them, 100 % of a processor, and no line in the log for 121 s",
        "NCCL_P2P_DISABLE",
        True,
        seen=lambda: observed.collective_hang((615 << 20, 615 << 20), 100.0, 121.0, "joining the cards"),
    ),
    2: Row(
        "engine.collective_hang",
        "at 'warming up'",
        "FlashInfer's autotuning",
        True,
        seen=lambda: observed.collective_hang((1 << 30, 1 << 30), 100.0, 130.0, "warming up"),
    ),
    4: Row(
        "engine.vram_held",
        "not free 120 s after the engine's end; a process that is not ours holds it: process 77 (VLLM::Worker) 72,900",
        "ps -o pid,args -p 77",
        False,
        seen=lambda: observed.vram_held((VramHolder(77, "VLLM::Worker", 72_900 << 20),), 120.0),
    ),
    5: Row(
        "engine.ready_timeout",
        "took longer to load",
        "VLLM_ENGINE_READY_TIMEOUT_S",
        True,
        ("(APIServer pid=9) TimeoutError: Timed out waiting for engine core processes to start. This is often",),
    ),
    6: Row(
        "engine.kv_none",
        "the engine did not leave 4,608 experts in host RAM",
        "moe-appliance engine verify vllm-exl3",
        False,
        (CORE + "ValueError: No available memory for the cache blocks. Try increasing", ECHO),
    ),
    7: Row(
        "engine.oom_kill",
        "killed the engine's process 4711 (VLLM::Worker_TP) with 118.0 GiB: the machine ran out of memory",
        "--max-host-gib",
        True,
        (CORE + "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down", ECHO),
        Exit(0, None),
        replace(PLANNED, oom_killed=OomKill(4711, "VLLM::Worker_TP", 118 * GIB)),
    ),
    10: Row(
        "engine.page_size",
        "pages of its KV cache",
        "--block-size",
        False,
        (STARTED, WORKER + "RuntimeError: page size 64 is not supported by this kernel, expected 128", *CORE_DEAD),
        Exit(0, None),
    ),
    12: Row(
        "engine.image_request",
        "with an image",
        "--language-model-only",
        True,
        (STARTED, WORKER + '  File "/v.py", line 1, in _execute_mm_encoder', WORKER + "RuntimeError: no", *CORE_DEAD),
        Exit(0, None),
    ),
    21: Row(
        "engine.gpu_memory_serving",
        "while the engine served",
        "context_tokens (now 524288)",
        True,
        (STARTED, WORKER + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB.", *CORE_DEAD),
        Exit(0, None),
        replace(PLANNED, context_tokens=524_288),
    ),
    22: Row(
        "engine.gpu_memory_serving",
        "while the engine served",
        "kv_cache_gib",
        True,
        (WORKER + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB.", *CORE_DEAD),
        Exit(0, None),
        replace(PLANNED, served=True),
    ),
    24: Row(
        "engine.memlock",
        "lock as much memory",
        "LimitMEMLOCK=infinity",
        False,
        (CORE + "RuntimeError: cannot pin 81 GiB: RLIMIT_MEMLOCK is 8388608", ECHO),
    ),
    26: Row("engine.shard_missing", "model-00002-of-00002", "checkpoint verify", False, lines("shard-missing")),
}
"""facts/checkpoint-and-offload.md, section 5."""

SILENT = {
    3: "peer to peer says OK and moves nothing: found by preflight --deep before a start; as a hang it is 1",
    8: "the host wedges: nothing writes a log any more; the plan's peak is checked before a start",
    9: "the kernel kills other daemons, not the engine: its oom_score_adj is set",
    11: "slow, not dead: the pace at warm-up",
    13: "serves, without a prefix cache: the probe of the second pass",
    14: "serves, and long prefixes are evicted: the hit ratio by seat",
    15: "serves, and a partial answer is begun anew: the probe of continuation",
    16: "serves, and tool markup is in the text: counted in the stream",
    17: "a 400 to the client, from the dialect's field: passed on untouched",
    18: "serves, and thinking eats the answer: a seat's default",
    19: "serves slowly at first: the warm-up",
    20: "serves without graphs: the capture sizes are derived from the streams",
    23: "an idle link: judged by preflight under load alone",
    25: "a shim of the driver or the wrong pair of cards: found by preflight",
    27: "a variable that does not reach the engine: engine command shows its environment; as a hang it is 1",
}


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_of_vllm_is_told_so(name: str) -> None:
    assert_told(MEASURED[name])


@pytest.mark.parametrize("number", COMPLAINTS)
def test_what_others_complained_of_is_told_so(number: int) -> None:
    assert_told(COMPLAINTS[number])


def assert_told(row: Row) -> None:
    cause = row.cause()
    assert cause.id == row.id
    assert row.title in cause.title
    assert row.remedy in cause.remedy
    assert cause.retry is row.retry


def test_every_complaint_has_its_cause_or_the_reason_why_no_log_tells_it() -> None:
    assert sorted([*COMPLAINTS, *SILENT]) == list(range(1, 28))
