"""What an engine said, maybe of a prompt, stands in a sentence of ours as a quotation only, which a bundle has not."""

from __future__ import annotations

import signal
from itertools import product

import pytest

from appliance.engine.failures import Context, Exit, diagnose
from appliance.engine.failures.pattern import row
from appliance.printable import CLOSES, OPENS
from appliance.redact import Redactor

PROMPT = f'my diary {CLOSES} of "three {OPENS} goats'
HEAD = "(Worker_TP1 pid=33) "
ERROR = HEAD + "ERROR 11-30 10:00:00 [multiproc_executor.py:949] "
STARTED = "(APIServer pid=9) INFO:     Application startup complete."
REPORT = (
    ERROR + "WorkerProc hit an exception.",
    ERROR + "Traceback (most recent call last):",
    ERROR + '  File "/venv/vllm/v1/worker/gpu_worker.py", line 12, in run',
    ERROR + "    self.go()",
    ERROR + f"AlphaError: {PROMPT}",
)
PLUGIN = (ERROR + "Failed to load plugin badplug", *REPORT[1:])
LOGS = (
    (PROMPT,),
    (f"srv: prompt: {PROMPT}", ""),
    REPORT,
    (STARTED, *REPORT),
    (*PLUGIN, *REPORT),
    (ERROR + f"moe-residency: refused: {PROMPT}; {PROMPT}",),
    (f"serve: error: argument --x: {PROMPT}",),
    (f"PermissionError: [Errno 13] Permission denied: '{PROMPT}'",),
    (f"RuntimeError: CUDA error: device-side assert {PROMPT}",),
)
CODES = (None, 0, 1, 126, 127)
SIGNALS = (None, signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV)


def hidden(title: str) -> bool:
    """Whether no word of the prompt is left in a bundle, wherever the sentence was cut."""
    shown = [Redactor().text(title[:end]) for end in range(len(title) + 1)]
    return not any(word in text for text in shown for word in ("diary", "goats"))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log[-1][-60:])
def test_no_sentence_about_an_end_keeps_an_engines_words_in_a_bundle(log: tuple[str, ...]) -> None:
    ends = [Exit(code, number) for code, number in product(CODES, SIGNALS) if code is None or number is None]
    causes = [diagnose(end, log, Context(served=served)) for end in ends for served in (False, True)]
    assert [cause.title for cause in causes if not hidden(cause.title)] == []
    assert any("diary" in cause.title for cause in causes), "or nothing was tried"


def test_whatever_a_row_takes_from_a_line_is_a_name_or_a_quotation() -> None:
    made = row(r"x: (?P<one>\S+) (?P<rest>.+)", "engine.x", "It is {one}: {rest}.", "type {rest}")
    match = made.match(f"x: name {PROMPT}", "", "load")
    assert match is not None
    title = made.cause(match, Context()).title
    assert title == f'It is name: {OPENS}my diary " of "three " goats{CLOSES}.'
    assert hidden(title)
