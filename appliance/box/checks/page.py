"""Writes docs/preflight.md from the checks themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.box.checks import CHECKS, DEMO_CHECKS
from appliance.box.checks.check import Check

_HEAD = """\
# Preflight

<!-- Written by scripts/docs from appliance/box/checks. Change the checks, then run scripts/docs. -->

    moe-appliance preflight             # what this box is, and what is wrong with it; takes a second or two
    moe-appliance preflight --deep      # the same, and measures copies, pinning and NCCL; the engine must be stopped
    moe-appliance preflight --json      # for programs
    moe-appliance preflight --cached    # what the last look of this boot saw; asks nothing

Exit code: 0 clean, 1 warnings, 78 failures. It needs no configuration and no root; as root it also reads the bridges'
access control and the kernel's log. The driver is asked in a child process that is killed at a deadline, so that a
driver that hangs costs seconds.

The daemon runs the same checks before it starts an engine that has a plan, or with `[preflight] gpus`. A failure keeps
the engine from starting; the gateway stays up and says why. It looks again every two minutes and on
`moe-appliance restart`.

- Only the cards that the engine uses are judged: those that `CUDA_VISIBLE_DEVICES` names in `[engine] env` or in the
  environment, and of these the first, as many as the plan or `[preflight] gpus` says. Others may hold what they like of
  the rest.
- A check is silent about what it cannot know.
- One cause is one line: what follows from it is folded under it.
- `moe-appliance preflight --force ID --reason TEXT` turns a failure into a warning that carries the reason, until
  `--unforce ID`. It is kept in `forced.json` in the state folder and shown with the finding.
- What `--deep` measured is kept in the state folder's `preflight.json`, until the next boot or until the cards are
  others, and judged again.

## Checks of the box
"""
_ENGINE = """
## Checks of the embedded engine and the configuration

These are judged by who has the figures: the engine, the daemon and the preflight itself. `moe-appliance check` shows
those of the engine and the daemon.
"""


def page() -> str:
    """The whole page."""
    return "".join((_HEAD, *_table(CHECKS), _ENGINE, *_table(DEMO_CHECKS)))


def _table(checks: Iterable[Check]) -> Iterable[str]:
    yield "\n| id | severity | what is measured | when | remedy | source |\n|---|---|---|---|---|---|\n"
    for check in checks:
        cells = (check.severity, check.measures, check.threshold, check.remedy, check.source)
        yield f"| `{check.id}` | {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"
