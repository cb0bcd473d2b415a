"""What any engine and llama.cpp say as they end, and the exit itself, become one sentence and a remedy."""

from __future__ import annotations

import re
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.failures import Context, Exit, diagnose, normalised, rows_general
from appliance.errors import DEMO_EXTRA

CONTEXT = Context(command="/opt/engine/serve")
INIT_FAILED = """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/appliance/engine/embedded_child.py", line 131, in main
    server = xllamacpp.Server(params)
RuntimeError: Failed to init server, please check the input params.
"""

LOGS = {
    "engine.model_missing": (
        """\
0.00.012.044 I init: loading model
0.00.012.101 I load_model: loading model '/var/lib/moe-appliance/models/smollm2.gguf'
0.00.012.633 E gguf_init_from_file: failed to open GGUF file '/var/lib/moe-appliance/models/smollm2.gguf' (No such file or directory)
0.00.012.650 E llama_model_load: error loading model: llama_model_loader: failed to load model
"""  # noqa: E501
        + INIT_FAILED,
        "The model file /var/lib/moe-appliance/models/smollm2.gguf cannot be opened.",
        "appliance.toml",
    ),
    "engine.model_header_cut": (
        "0.00.011.123 E gguf_init_from_reader: failed to read key-value pairs\n"
        "0.00.011.140 E llama_model_load: error loading model\n" + INIT_FAILED,
        "its header cannot be read",
        "delete the model file",
    ),
    "engine.model_cut": (
        "0.00.080.912 E llama_model_load: error loading model: tensor 'blk.17.ffn_up.weight' data is not within"
        " the file bounds, model is corrupted or incomplete\n" + INIT_FAILED,
        "incomplete",
        "delete the model file",
    ),
    "engine.port_taken": (
        "1.02.221.005 E init: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18080\n" + INIT_FAILED,
        "Another program holds the engine's port 18080.",
        "ss -ltnp",
    ),
    "engine.library_missing": (
        """\
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/xllamacpp/__init__.py", line 8, in <module>
    from .xllamacpp import *
ImportError: libgomp.so.1: cannot open shared object file: No such file or directory
""",
        "The system library libgomp.so.1 is not installed.",
        "apt-get install libgomp1 libstdc++6",
    ),
    "engine.library_old": (
        "ImportError: /usr/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by x)",
        "GLIBCXX_3.4.30",
        "Debian 12",
    ),
    "engine.host_kv": (
        "(EngineCore pid=912) ERROR Exception: CPU Offloading is currently only supported on CUDA-alike and XPU GPUs\n"
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "cannot keep KV cache in host RAM",
        "host_kv_gib = 0",
    ),
    "engine.gpu_memory": (
        "(EngineCore pid=912) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.12 GiB."
        " GPU 0 has a total capacity of 23.64 GiB of which 702.81 MiB is free.\n"
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "The GPU has not enough free memory",
        "nvidia-smi",
    ),
    "engine.cuda_devices": (
        "(EngineCore pid=912) RuntimeError: Unexpected error from cudaGetDeviceCount(): CUDA error: OS call failed or"
        " operation not supported on this OS",
        "CUDA does not reach the cards",
        "systemctl restart moe-appliance",
    ),
    "engine.module_missing": (
        "Traceback (most recent call last):\n    import xllamacpp\nModuleNotFoundError: No module named 'xllamacpp'",
        "The Python package xllamacpp is not installed.",
        DEMO_EXTRA,
    ),
    "engine.not_found": (
        "/opt/engine/serve: 3: vllm: not found",
        "The program vllm was not found.",
        "appliance.toml",
    ),
}


def tail(text: str) -> tuple[str, ...]:
    return tuple(text.splitlines())


@pytest.mark.parametrize("id_", LOGS)
def test_a_log_tail_is_understood(id_: str) -> None:
    text, title, remedy = LOGS[id_]
    cause = diagnose(Exit(1, None), tail(text), CONTEXT)
    assert cause.id == id_
    assert title in cause.title
    assert remedy in cause.remedy


def test_every_row_of_the_table_has_a_log() -> None:
    assert {row.id for row in rows_general.ROWS} <= set(LOGS)


@pytest.mark.parametrize(
    ("line", "title", "remedy"),
    [
        ("x: libstdc++.so.6: cannot open shared object file: y", "library libstdc++.so.6", "libstdc++6"),
        ("x: libcuda.so.1: cannot open shared object file: y", "library libcuda.so.1", "apt-file search libcuda"),
        ("OSError: [Errno 98] Address already in use", "holds the engine's port.", "ss -ltnp"),
        ("init: couldn't bind HTTP server socket", "holds the engine's port.", "ss -ltnp"),
        ("E failed to open GGUF file /m/x.gguf (Permission denied)", "/m/x.gguf", "appliance.toml"),
        ("E gguf_init_from_file: failed to open GGUF file", "The model file cannot", "appliance.toml"),
        ("ggml_cuda: cudaMalloc failed: out of memory", "The GPU", "nvidia-smi"),
        ("ModuleNotFoundError: No module named 'vllm.entrypoints'", "vllm.entrypoints", "into the environment"),
        ("/usr/bin/python3: No module named vllm", "package vllm is", "pip install vllm"),
        ("bash: line 1: llama-server: command not found", "program llama-server was", "install it"),
    ],
)
def test_other_forms_of_the_same(line: str, title: str, remedy: str) -> None:
    cause = diagnose(Exit(1, None), [line], CONTEXT)
    assert title in cause.title
    assert remedy in cause.remedy


def test_the_newest_line_decides() -> None:
    lines = ["torch.OutOfMemoryError: CUDA out of memory", "retrying", "OSError: Address already in use", "bye"]
    assert diagnose(Exit(1, None), lines, CONTEXT).id == "engine.port_taken"


@pytest.mark.parametrize("exit_", [Exit(None, signal.SIGILL), Exit(132, None)])
def test_an_illegal_instruction_names_avx2(exit_: Exit) -> None:
    cause = diagnose(exit_, ["AMX is not ready to be used!"], CONTEXT)
    assert cause.id == "engine.illegal_instruction"
    assert "AVX2" in cause.title
    assert "lscpu" in cause.remedy


@pytest.mark.parametrize("exit_", [Exit(None, signal.SIGKILL), Exit(137, None)])
def test_a_kill_by_somebody_else_points_at_the_kernel_log(exit_: Exit) -> None:
    cause = diagnose(exit_, ["OSError: Address already in use"], CONTEXT)
    assert cause.id == "engine.killed"
    assert "killed by SIGKILL (kernel out-of-memory killer, or somebody)" in cause.title
    assert cause.remedy == "journalctl -k | grep -i oom"


def test_our_own_kill_is_no_riddle() -> None:
    cause = diagnose(Exit(None, signal.SIGKILL, killed_by_us=True), [], CONTEXT)
    assert cause.title == "The engine was ended by SIGKILL by moe-appliance itself."


def test_a_signal_is_named_but_the_log_before_an_abort_is_heard_first() -> None:
    assert diagnose(Exit(None, signal.SIGSEGV), ["slot release"], CONTEXT).id == "engine.signal.sigsegv"
    assert "SIGSEGV" in diagnose(Exit(139, None), [], CONTEXT).title
    aborted = diagnose(Exit(None, signal.SIGABRT), ["CUDA out of memory", "Aborted"], CONTEXT)
    assert aborted.id == "engine.gpu_memory"


@pytest.mark.parametrize(
    ("exit_", "id_", "words"),
    [
        (Exit(127, None, "exec", "No such file or directory", 2), "engine.not_found", "/opt/engine/serve"),
        (Exit(127, None, "exec", "Permission denied", 13), "engine.not_executable", "/opt/engine/serve"),
        (Exit(127, None, "exec", "Exec format error", 8), "engine.exec_failed", "Exec format error"),
        (Exit(127, None, "record", "No space left on device", 28), "engine.record_failed", "No space left"),
        (Exit(None, None, "guard", "SIGKILL"), "engine.guard_lost", "SIGKILL"),
        (Exit(0, None), "engine.exit_unasked", "exit code 0"),
        (Exit(126, None), "engine.not_executable", "126"),
        (Exit(127, None), "engine.not_found", "127"),
        (Exit(3, None), "engine.exit_code", "exit code 3: “bad flag --foo”."),
    ],
)
def test_the_exit_itself_speaks(exit_: Exit, id_: str, words: str) -> None:
    cause = diagnose(exit_, ["starting", "bad flag --foo ", ""], CONTEXT)
    assert cause.id == id_
    assert words in cause.title


def test_a_record_that_cannot_be_written_names_the_folder_it_is_in() -> None:
    cause = diagnose(Exit(127, None, "record", "Permission denied", 13), [], Context(runtime_dir="/run/my box"))
    assert cause.remedy == "df -h '/run/my box'; ls -ld '/run/my box'   shows why; or set another runtime_dir"


def test_a_code_without_a_log_says_that() -> None:
    assert diagnose(Exit(3, None), [], CONTEXT).title == "The engine ended with exit code 3, and it logged nothing."


def test_a_code_above_128_without_a_signal_stays_a_code() -> None:
    assert normalised(Exit(255, None)) == (255, None)
    assert normalised(Exit(128, None)) == (128, None)
    assert normalised(Exit(143, None)) == (None, 15)


@given(
    st.one_of(st.none(), st.integers(0, 255)),
    st.one_of(st.none(), st.integers(1, 64)),
    st.sampled_from(["", "record", "exec", "guard"]),
    st.lists(st.text(max_size=60) | st.sampled_from([log for log, _, _ in LOGS.values()]), max_size=4),
    st.booleans(),
)
def test_there_is_always_an_answer(code: int | None, number: int | None, stage: str, log: list[str], us: bool) -> None:
    cause = diagnose(Exit(code, number, stage, "text", 5, us), log, CONTEXT)  # type: ignore[arg-type]
    assert re.fullmatch(r"engine(\.[a-z0-9_]+)+", cause.id)
    assert cause.title
    assert cause.title[-1] in ".;"
    assert cause.remedy


def test_an_environment_of_ours_that_lacks_a_package_is_verified_and_not_added_to() -> None:
    line = "ModuleNotFoundError: No module named 'vllm.envs'"
    loose = diagnose(Exit(1, None), [line], Context())
    ours = diagnose(Exit(1, None), [line], Context(environment="vllm-0123456789ab"))
    assert (loose.id, loose.retry, "pip install" in loose.remedy) == ("engine.module_missing", True, True)
    assert (ours.id, ours.retry) == ("engine.module_missing", False)
    assert ours.remedy.startswith("moe-appliance engine verify vllm-0123456789ab")
