"""`python -m appliance.plan.inspect_child QUESTION`: prints an Inspection as JSON.

The argument is JSON and holds no secret. A process of its own, so that a file system that does not answer holds up
nobody, and the memory of 190,000 tensors goes back to the machine.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from pydantic import ValidationError

from appliance.box.child import OneChild
from appliance.plan.inspection import INSPECTION, QUESTION, Inspection, Question, inspect
from appliance.plan.settings import PlanSettings
from appliance.printable import printable
from gateway.state import Finding, Severity

DEADLINE_S = 60.0
_CHILD = OneChild()


def inspected(question: Question, environ: Mapping[str, str]) -> Inspection:
    """What `inspect` says, asked in a child for `DEADLINE_S` at most."""
    settings = question.settings
    if settings.file is None:
        return Inspection()
    asked = QUESTION.dump_json(question).decode()
    try:
        # -P: what lies in the folder that somebody stands in is none of our modules.
        argv = (sys.executable, "-P", "-m", "appliance.plan.inspect_child", asked)
        answer = _CHILD.ask(argv, environ, DEADLINE_S)
    except OSError as error:
        return Inspection((_silent(settings, f"no process could be started: {error.strerror}"),))
    if answer.code == 0:
        try:
            return INSPECTION.validate_json(answer.out)
        except ValidationError:
            return Inspection((_silent(settings, "the check's answer is unreadable: something else wrote into it"),))
    if answer.refused or answer.code is None:
        return Inspection((_silent(settings, answer.refused or f"no answer in {DEADLINE_S:.0f} s"),))
    last = answer.err.strip().rpartition("\n")[2]
    return Inspection((_silent(settings, f"the check ended with {answer.code}: {printable(last)}"),))


def _silent(settings: PlanSettings, observed: str) -> Finding:
    return Finding(
        id="plan.checkpoint",
        severity=Severity.FAIL,
        title="The checkpoint's headers could not be read",
        observed=observed,
        required=f"headers that can be read within {DEADLINE_S:.0f} s",
        remedy=f"ls -l {settings.checkpoint or settings.file}   and see that its file system is mounted and answers",
    )


def main(argv: list[str]) -> int:
    """Exit code 0 with an answer; anything else is a bug or a lack of memory."""
    signal.alarm(int(DEADLINE_S) + 1)  # whoever asked may be gone
    found = inspect(QUESTION.validate_json(argv[0]), os.environ)
    sys.stdout.buffer.write(INSPECTION.dump_json(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
