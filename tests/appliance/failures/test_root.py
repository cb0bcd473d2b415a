"""Which process of vLLM failed first, whatever order the lines came in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.failures import Context, Exit, diagnose, from_log
from appliance.engine.failures.log_lines import read
from appliance.engine.failures.root import reports

STARTED = "(APIServer pid=9) INFO:     Application startup complete."


def logged(process: str, second: int, *texts: str) -> list[str]:
    return [f"({process}) ERROR 11-30 10:00:{second:02} [x.py:1] {text}" for text in texts]


WORKER = logged("Worker_TP1 pid=3", 5, "WorkerProc failed to start.", "Traceback (most recent call last):")
WORKER += logged("Worker_TP1 pid=3", 5, '  File "/v/a.py", line 1, in load', "    load()", "AlphaError: of the worker")
CORE = logged("EngineCore_DP0 pid=2", 5, "EngineCore failed to start.", "Traceback (most recent call last):")
CORE += logged("EngineCore_DP0 pid=2", 5, '  File "/v/b.py", line 1, in run', "    run()", "BetaError: of the core")
API = ["(APIServer pid=1) Traceback (most recent call last):", '(APIServer pid=1)   File "/v/c.py", line 1, in main']
API += ["(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)"]


def root(lines: list[str], *, served: bool = False) -> str:
    return reports(read(lines), served=served)[0].last_error


@st.composite
def interleaved(draw: st.DrawFn) -> list[str]:
    """The lines of all three, each process's own in their order."""
    order = draw(st.permutations([0] * len(WORKER) + [1] * len(CORE) + [2] * len(API)))
    own = [iter(WORKER), iter(CORE), iter(API)]
    return [next(own[which]) for which in order]


@given(interleaved())
def test_tracebacks_of_one_second_may_interleave_in_any_way(lines: list[str]) -> None:
    assert root(lines) == "AlphaError: of the worker"


def test_the_earlier_second_goes_before_the_lower_process() -> None:
    assert root([*CORE, *(line.replace(":05 ", ":07 ") for line in WORKER), *API]) == "BetaError: of the core"


def test_what_only_tells_of_another_process_is_the_root_where_nothing_else_is() -> None:
    echo = logged("EngineCore pid=2", 1, "Exception: WorkerProc initialization failed due to an exception in a")
    assert root([*echo, *WORKER, *API]) == "AlphaError: of the worker"
    assert root(API).startswith("RuntimeError: Engine core initialization failed")


def test_a_process_that_logged_on_has_survived_its_error() -> None:
    early = logged("EngineCore_DP0 pid=2", 1, "GammaError: of something else")
    on = ["(EngineCore_DP0 pid=2) INFO 11-30 10:00:03 [x.py:1] Starting to load model /m..."]
    assert root([*early, *on, *CORE, *API]) == "BetaError: of the core"
    assert reports(read([*early, *on]))[0].survived


def test_an_end_that_nobody_explains_is_not_explained_by_what_was_survived() -> None:
    early = logged("EngineCore_DP0 pid=2", 1, "OSError: [Errno 24] Too many open files")
    on = ["(EngineCore_DP0 pid=2) INFO 11-30 10:00:03 [x.py:1] Starting to load model /m..."]
    assert root([*early, *on, *API]).startswith("RuntimeError: Engine core initialization failed")
    cause = from_log([*early, *on, *API])
    assert cause is not None
    assert cause.id == "engine.core_died"


def test_of_two_reports_of_the_same_process_the_later_one_decides() -> None:
    first = logged("EngineCore pid=2", 1, "OSError: [Errno 24] Too many open files")
    between = ["(EngineCore pid=2) WARNING 11-30 10:00:02 [x.py:1] Dumping scheduler stats"]
    second = logged("EngineCore pid=2", 2, "OSError: [Errno 28] No space left on device")
    cause = from_log([*first, *between, *second, *API])
    assert cause is not None
    assert cause.id == "engine.disk_full"


def test_leaving_is_no_sign_of_life() -> None:
    on = ["(Worker_TP1 pid=3) INFO 11-30 10:00:05 [x.py:1] Parent process exited, terminating worker"]
    assert root([*WORKER, *on, *API]) == "AlphaError: of the worker"


def test_an_error_of_the_api_server_while_it_served_does_not_count() -> None:
    request = logged("APIServer pid=1", 1, "Error in extracting tool call.", "DeltaError: of one request")
    assert root([STARTED, *request, *WORKER]) == "AlphaError: of the worker"
    assert reports(read([STARTED, *request]))[0].survived
    assert reports(read(request), served=True)[0].survived
    assert not reports(read(request))[0].survived


def test_what_was_before_the_server_served_does_not_count_for_its_end() -> None:
    assert root([*WORKER, STARTED, *CORE]) == "BetaError: of the core"


def test_the_last_error_of_a_chain_decides_unless_no_table_knows_it() -> None:
    chain = logged("EngineCore pid=2", 1, "OSError: [Errno 24] Too many open files", "", "During handling of the above")
    chain += logged("EngineCore pid=2", 1, "BetaError: wrapped")
    cause = from_log([*chain, *API])
    assert cause is not None
    assert cause.id == "engine.open_files"
    last = [*chain, *logged("EngineCore pid=2", 1, "ValueError: No available memory for the cache blocks."), *API]
    cause = from_log(last)
    assert cause is not None
    assert cause.id == "engine.kv_none"


def test_an_error_that_no_table_knows_is_quoted_as_it_stands() -> None:
    cause = diagnose(Exit(1, None), [*WORKER, *CORE, *API], Context())
    assert cause.id == "engine.exit_code"
    assert cause.title == "The engine ended with exit code 1: “AlphaError: of the worker”."
    assert cause.evidence == "AlphaError: of the worker"
    cause = diagnose(Exit(0, None), [*WORKER, *API], Context(served=True))
    assert cause.id == "engine.exit_unasked"
    assert "nobody asked it to; its process Worker_TP1 said: “AlphaError: of the worker”." in cause.title


def test_the_first_request_that_ends_an_engine_is_told_from_a_later_one() -> None:
    log = [STARTED, *WORKER]
    cause = diagnose(Exit(0, None), log, Context())
    assert cause.id == "engine.first_request"
    assert "AlphaError: of the worker" in cause.title
    assert "--block-size" in cause.remedy
    assert diagnose(Exit(0, None), log, Context(served=True)).id == "engine.exit_unasked"


def test_evidence_is_cut_and_cannot_move_a_cursor() -> None:
    cause = from_log(logged("EngineCore pid=2", 1, "OSError: Too many open files \u202e" + "x" * 400))
    assert cause is not None
    assert len(cause.evidence) == 300
    assert "\\u202e" in cause.evidence


@given(st.lists(st.text(max_size=40) | st.sampled_from([*WORKER, *CORE, *API, STARTED]), max_size=12), st.booleans())
def test_any_lines_have_an_answer(lines: list[str], served: bool) -> None:
    cause = diagnose(Exit(1, None), lines, Context(served=served))
    assert cause.title
    assert cause.remedy
