"""`scripts/bench-residency [GROUP ...]`: placement against stock vLLM, on this machine's first cards.

Touches processes, the card, and a folder for checkpoints, logs and report.json. Run it with the Python that has vLLM.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from tests.bench_residency.models import BACKENDS
from tests.bench_residency.running import ROOT, Bench, Run
from tests.bench_residency.runs import (
    SHARES,
    Where,
    budgets,
    equal,
    fits,
    follow,
    follow_wide,
    kernel,
    killed,
    pace,
    paired,
)


def main(argv: list[str] | None = None) -> int:
    """Run the groups and print what each run found; 1 = one of them failed."""
    args = _parser().parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    plugin = args.folder / "plugin"
    shutil.rmtree(plugin, ignore_errors=True)
    shutil.copytree(ROOT / "appliance" / "residency", plugin / "moe_residency")
    bench = Bench(args.folder, plugin, time.monotonic() + args.seconds)
    for is_beside, groups in groupby(args.groups, lambda group: group.startswith("equal")):
        runs = [run for group in groups for run in _groups(Where(args.folder, args.tp))[group]()]
        with ThreadPoolExecutor(args.at_once if is_beside else 1) as pool:
            list(pool.map(bench.run, runs))
        for line in [*bench.agreements(runs), *bench.costs(runs)]:
            print(line, flush=True)
    return int(any("error" in found for found in bench.found.values()))


def _groups(where: Where) -> dict[str, Callable[[], list[Run]]]:
    def paced(*names: str) -> Callable[[], list[Run]]:
        return lambda: pace(where, names)

    made: dict[str, Callable[[], list[Run]]] = {
        "fits": lambda: fits(where),
        "budgets": lambda: budgets(where),
        "follow": lambda: follow(where),
        "follow-wide": lambda: follow_wide(where),
        "kernel": lambda: kernel(where),
        "kill": lambda: killed(where),
        "paired": lambda: paired(where),
        "pace": paced("stock", *(f"{how}-{share}" for share in SHARES for how in ("ours", "uva", "prefetch"))),
    }
    for share in SHARES:
        made[f"pace-{share}"] = paced("stock", f"ours-{share}", f"uva-{share}")
        made[f"prefetch-{share}"] = paced(f"prefetch-{share}")
    for method in BACKENDS:
        made[f"equal-{method}"] = lambda method=method: equal(where, (method,), runner_v2=False)  # type: ignore[misc]
        made[f"equal-{method}-v2"] = lambda method=method: equal(where, (method,), runner_v2=True)  # type: ignore[misc]
    return made


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench-residency", description=__doc__)
    parser.add_argument("groups", nargs="*", default=["fits"], choices=sorted(_groups(Where(Path()))), metavar="GROUP")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/bench-residency"), help="for all that is made")
    parser.add_argument("--seconds", type=float, default=3600.0, help="no run begins, and none goes on, after them")
    parser.add_argument("--tp", type=int, default=1, help="cards that share each model")
    parser.add_argument("--at-once", type=int, default=4, help="runs of equal-* groups beside each other")
    return parser


if __name__ == "__main__":
    sys.exit(main())
