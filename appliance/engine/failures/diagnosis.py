"""One sentence for an end, by all that is known of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.engine.failures.context import Context
from appliance.engine.failures.ended import Exit, normalised
from appliance.engine.failures.from_exit import from_exit, killed, not_run
from appliance.engine.failures.from_log import from_log
from appliance.engine.failures.kernel_log import card_fault, oom_killed, program_fault
from gateway.state import Cause


def diagnose(exit_: Exit, log_tail: Sequence[str], context: Context) -> Cause:
    """Why the run ended; `log_tail` is of this start, oldest line first. Total: there is always an answer."""
    if exit_.stage:  # 1
        return not_run(exit_, context)
    code, number = normalised(exit_)
    kill = context.oom_killed
    return (
        (oom_killed(kill) if kill is not None else None)  # 2
        or card_fault(context.xids)
        or killed(number, exit_.killed_by_us)
        or from_log(log_tail, context)  # 3
        or program_fault(context.xids)  # 4
        or from_exit(code, number, log_tail, context)  # 5
    )
