"""Each row of the tables, from the lines that it is for. What no run of ours has shown is worded as vLLM, torch, NCCL,
CUDA and the kernel word it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.engine.failures import PATTERNS, Context, Exit, diagnose, from_log, rows_general
from appliance.engine.failures.from_log import _moment
from appliance.engine.failures.log_lines import read, statements
from appliance.engine.failures.pattern import Pattern

STARTED = "(APIServer pid=9) INFO:     Application startup complete."
CAPTURING = "Capturing CUDA graphs (decode, FULL):  25%|##5       | 1/4 [00:00<00:01,  2.91it/s]"
ECHO = (
    "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
CUDA_OOM = "RuntimeError: CUDA error: out of memory"


@dataclass(frozen=True)
class Case:
    """What a Worker says as it ends, after `before`; `frame`: the file of its traceback's last frame."""

    says: str
    id: str
    title: str
    remedy: str
    retry: bool
    frame: str = "v1/worker/gpu_worker.py"
    function: str = "run"
    before: str = ""

    @property
    def log(self) -> tuple[str, ...]:
        head = "(Worker_TP1 pid=33) "
        logged = head + "ERROR 11-30 10:00:00 [multiproc_executor.py:949] "
        said = (
            "WorkerProc hit an exception.",
            "Traceback (most recent call last):",
            f'  File "/venv/vllm/{self.frame}", line 12, in {self.function}',
            "    self.go()",
            *self.says.splitlines(),
        )
        return (*filter(None, [self.before]), *(logged + line for line in said), ECHO)


CASES = (
    Case(OOM, "engine.gpu_memory", "GPU has not enough free memory", "nvidia-smi", True),
    Case(OOM, "engine.gpu_memory_graphs", "while CUDA graphs were captured", "kv_cache_gib", True, before=CAPTURING),
    Case(OOM, "engine.gpu_memory_serving", "while the engine served", "streams (now 4)", True, before=STARTED),
    Case(CUDA_OOM, "engine.gpu_memory", "not enough free memory", "nvidia-smi", True),
    Case(
        CUDA_OOM,
        "engine.gpu_memory_graphs",
        "graphs",
        "kv_cache_gib",
        True,
        "compilation/cuda_graph.py",
        "g",
        CAPTURING,
    ),
    Case(CUDA_OOM, "engine.host_kv", "KV tier cannot be pinned", "host_kv_gib", True, "v1/kv_offload/cpu/worker.py"),
    Case(CUDA_OOM, "engine.host_pinning", "keeps weights in", "--max-host-gib", False, "offloader/uva.py"),
    Case("RuntimeError: cudaHostRegister failed: 2", "engine.host_pinning", "Host RAM", "preflight --deep", False),
    Case("RuntimeError: cpu_bytes_to_use must be > 0", "engine.host_kv", "as it was told", "host_kv_gib = 0", True),
    Case("OSError: RLIMIT_MEMLOCK is 8388608", "engine.memlock", "lock as much", "LimitMEMLOCK=infinity", False),
    Case("RuntimeError: mlock failed: Cannot allocate memory", "engine.memlock", "lock", "memlock=-1:-1", False),
    Case(
        "ValueError: No available memory for the cache blocks. Try", "engine.kv_none", "no room", "utilization", False
    ),
    Case("OSError: [Errno 12] Cannot allocate memory", "engine.host_memory", "host has not enough", "free -g", True),
    Case("OSError: [Errno 28] No space left on device: '/c/x'", "engine.disk_full", "/c/x cannot", "df -h", True),
    Case("OSError: [Errno 28] No space left on device", "engine.disk_full", "A disk that", "engines/*/cache", True),
    Case("OSError: [Errno 28] No space left on device: '/psm_12'", "engine.shm_small", "/dev/shm", "shm-size", False),
    Case("OSError: [Errno 24] Too many open files", "engine.open_files", "as many files", "LimitNOFILE", False),
    Case(
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
        "Last error:\n"
        "Error while creating shared memory segment /dev/shm/nccl-EoOvZr (size 7340384), error: No space left",
        "engine.shm_small",
        "/dev/shm is too small",
        "--shm-size 32g",
        False,
    ),
    Case(
        "OSError: Can't load the configuration of '/m'. If",
        "engine.model_missing",
        "not whole: it has no weights, or no configuration.",
        "verify '/m 1'",
        False,
    ),
    Case(
        "moe_residency.errors.ResidencyError: moe-residency: refused: x has 8 experts; and 2; moe-appliance plan make",
        "engine.residency",
        "cannot be carried out: “x has 8 experts; and 2”.",
        "moe-appliance plan make",
        False,
    ),
    Case(
        "OSError: /m does not appear to have a file named config.json.",
        "engine.model_missing",
        "config.json is missing.",
        "verify '/m 1'",
        False,
    ),
    Case(
        "RuntimeError: Cannot find any model weights with `/m`",
        "engine.model_missing",
        "not whole: it has no weights, or no configuration.",
        "verify '/m 1'",
        False,
    ),
    Case(
        "RuntimeError: Failed to load the model config. If the model is a custom model, consider setting "
        "`trust_remote_code=True` in LLM or using the `--trust-remote-code` flag in the CLI.",
        "engine.remote_code",
        "Python code of its own",
        "trust_remote_code = true",
        False,
    ),
    Case(
        "KeyError: 'model.layers.3.mlp.experts.w13_trellis'",
        "engine.weight_unknown",
        "model.layers.3.mlp.experts.w13_trellis",
        "checkpoint verify",
        False,
        function="load_weights",
    ),
    Case(
        "AssertionError: Attempted to load weight (torch.Size([5, 2])) into parameter (torch.Size([4, 2]))",
        "engine.weight_shape",
        "torch.Size([5, 2])",
        "checkpoint show '/m 1'",
        False,
        function="weight_loader",
    ),
    Case(
        "PermissionError: [Errno 13] Permission denied: '/m/a.st'",
        "engine.file_denied",
        "/m/a.st",
        "ls -ld /m/a.st",
        False,
    ),
    Case(
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "engine.model_config",
        "no JSON",
        "checkpoint verify",
        False,
        function="get_config_dict",
    ),
    Case("x: error: the following arguments are required: --m", "engine.flag_missing", "--m", "[engine] args", False),
    Case(
        "ValueError: Total number of attention heads (14) must be divisible by tensor parallel size (4).",
        "engine.tensor_parallel",
        "14 attention heads cannot be spread over 4 cards",
        "a divisor of 14",
        False,
    ),
    Case("RuntimeError: page size 32 is not supported by fp8", "engine.page_size", "pages", "--block-size", False),
    Case(
        "AssertionError: expected block_size 64, got 128",
        "engine.page_size",
        "pages",
        "verify vllm-exl3",
        False,
        before=STARTED,
    ),
    Case("OSError: AF_UNIX path too long", "engine.socket_long", "107 bytes", "runtime_dir", False),
    Case(
        "OSError: [Errno 98] Address already in use",
        "engine.socket_taken",
        "holds the engine's socket",
        "moe-appliance restart",
        True,
        function="create_server_unix_socket",
    ),
    Case(
        "TimeoutError: Timed out waiting for engine core processes to start. This",
        "engine.ready_timeout",
        "took longer to load",
        "VLLM_ENGINE_READY_TIMEOUT_S",
        True,
    ),
    Case(
        OOM,
        "engine.image_request",
        "with an image",
        "--language-model-only",
        True,
        function="embed_multimodal",
        before=STARTED,
    ),
    Case(
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "engine.image_request",
        "with an image",
        "--language-model-only",
        True,
        function="_execute_mm_encoder",
        before=STARTED,
    ),
    Case(
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "engine.cuda_fault",
        "an illegal memory access was encountered",
        "preflight",
        True,
    ),
    Case(
        "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
        "engine.driver_old",
        "too old",
        "newer driver",
        False,
    ),
    Case(
        "RuntimeError: Failed to initialize NVML: Driver/library version mismatch",
        "engine.driver_mismatch",
        "different versions",
        "reboot",
        False,
    ),
    Case("RuntimeError: No CUDA GPUs are available", "engine.cards_none", "no card", "CUDA_VISIBLE_DEVICES", True),
    Case(
        "AssertionError: DP adjusted local rank 2 is out of bounds for 2 devices.",
        "engine.cards_few",
        "more cards than it sees: 2.",
        "tensor_parallel",
        False,
    ),
    Case(
        "RuntimeError: CUDA error: no kernel image is available", "engine.card_unsupported", "kind", "vllm-exl3", False
    ),
    Case("RuntimeError: CUDA error: uncorrectable ECC error", "engine.ecc", "memory error", "--gpu-reset", True),
    Case("RuntimeError: CUDA error: GPU is lost", "engine.card_lost", "not answer", "reseat", True),
    Case(
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "engine.nccl_system",
        "shared memory, sockets",
        "ulimit -l",
        True,
    ),
    Case("RuntimeError: NCCL error: invalid usage", "engine.nccl", "NCCL failed", "NCCL_P2P_DISABLE", True),
    Case(
        "RuntimeError: custom_all_reduce.cuh:455 'invalid argument'",
        "engine.all_reduce",
        "add up over the cards",
        "--disable-custom-all-reduce",
        True,
    ),
    Case("Fatal Python error: Illegal instruction", "engine.illegal_instruction", "AVX2", "lscpu", False),
    Case("TimeoutError: RPC call to sample_tokens timed out.", "engine.worker_silent", "sample_tokens", "--deep", True),
)
CONTEXT = Context(environment="vllm-exl3", model="/m 1", context_tokens=262_144, streams=4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-{case.says[:30]}")
def test_a_line_of_an_engine_becomes_its_cause(case: Case) -> None:
    cause = from_log(case.log, CONTEXT)
    assert cause is not None
    assert cause.id == case.id
    assert case.title in cause.title
    assert case.remedy in cause.remedy
    assert cause.retry is case.retry
    assert cause.evidence in case.says


WATCHDOG = (
    "[rank1]:[E1130 10:00:00.123456789 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds"
)
DIED = (
    "(EngineCore pid=7) ERROR 11-30 10:00:00 [multiproc_executor.py:285] Worker proc VllmWorker-0 died unexpectedly "
    "(exit code: {}), shutting down executor."
)


def logs() -> list[tuple[str, ...]]:
    folder = Path(__file__).parents[2] / "data"
    own = [tuple(path.read_text().splitlines()) for path in folder.glob("vllm-*/*.log")]
    return [*own, *(case.log for case in CASES), (WATCHDOG, ECHO), (DIED.format(None), ECHO)]


def hears(row: Pattern, log: tuple[str, ...]) -> bool:
    """Whether the row knows a line of the log, and its cause is what comes out."""
    lines = read(log)
    frames = "\n".join(line.text for line in lines if line.is_frame)
    known = any(row.match(text, frames, _moment(lines, CONTEXT)) for text in statements(lines))
    cause = from_log(log, CONTEXT)
    return known and cause is not None and cause.id == row.id


ROWS = [row for row in PATTERNS if row not in rows_general.ROWS]
"""Those of rows_general.py: test_general.py."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.id}-{row.moment}-{row.expression.pattern[:30]}")
def test_no_row_is_without_a_log(row: Pattern) -> None:
    assert any(hears(row, log) for log in logs())


@pytest.mark.parametrize("row", PATTERNS, ids=lambda row: row.id)
def test_the_sentences_of_a_row_can_be_filled_in_and_end_as_sentences(row: Pattern) -> None:
    groups = dict.fromkeys(row.expression.groupindex, "x")
    known = {"model": "m", "environment": "e", "context": "c", "streams_now": "s"}
    assert row.title.format(**known | groups).endswith(".")
    assert row.remedy.format(**known | groups)
    assert re.fullmatch(r"engine\.[a-z_]+", row.id)


def test_nccls_watchdog_is_heard_below_python() -> None:
    cause = from_log((WATCHDOG, ECHO), CONTEXT)
    assert cause is not None
    assert cause.id == "engine.nccl_timeout"
    assert "NCCL_P2P_DISABLE" in cause.remedy
    assert cause.retry


@pytest.mark.parametrize(
    ("code", "id_", "words", "retry"),
    [
        ("None", "engine.worker_died", "VllmWorker-0", True),
        ("1", "engine.worker_died", "VllmWorker-0", True),
        ("-9", "engine.worker_died", "SIGKILL", True),
        ("-11", "engine.worker_died", "SIGSEGV", True),
        ("-4", "engine.illegal_instruction", "AVX2", False),
        ("-7", "engine.shm_small", "SIGBUS", True),
    ],
)
def test_the_exit_code_of_a_worker_says_how_it_ended(code: str, id_: str, words: str, retry: bool) -> None:
    cause = diagnose(Exit(0, None), (DIED.format(code), ECHO), CONTEXT)
    assert (cause.id, cause.retry) == (id_, retry)
    assert words in cause.title
    assert "died unexpectedly" in cause.evidence


def test_a_warning_that_names_an_error_is_no_cause() -> None:
    line = (
        "WARNING 11-30 09:55:34 [system_utils.py:299] fd limit errors like `OSError: [Errno 24] Too many open files`."
    )
    assert diagnose(Exit(1, None), [line], CONTEXT).id == "engine.exit_code"
    assert diagnose(Exit(1, None), [f"(APIServer pid=9) {line}", ECHO], CONTEXT).id == "engine.core_died"


@pytest.mark.parametrize(
    "says",
    [
        "KeyError: 'model.layers'",
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "FileNotFoundError: [Errno 2] No such file or directory",
        "AssertionError",
    ],
)
def test_an_error_that_only_its_place_makes_plain_is_not_known_elsewhere(says: str) -> None:
    assert from_log(Case(says, "", "", "", True, function="elsewhere").log, CONTEXT) is None
