"""`scripts/bench-residency [GROUP ...]`: placement against stock vLLM, on this machine's first cards.

Touches processes, the card, and a folder for checkpoints, logs and report.json. Run it with the Python that has vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.bench_residency.comparing import agreement, ratio
from tests.bench_residency.models import BACKENDS
from tests.bench_residency.runs import (
    SHARES,
    Run,
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

ROOT = Path(__file__).parents[2]
TAIL = 1500


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
        made[f"pace-{share}"] = paced("stock", f"ours-{share}", f"uva-{share}", f"prefetch-{share}")
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


class Bench:
    """Runs children until the time is over. `found`: by run."""

    def __init__(self, folder: Path, plugin: Path, ends_at: float) -> None:
        self._folder, self._plugin, self._ends_at = folder, plugin, ends_at
        self.found: dict[str, dict[str, Any]] = {}

    def run(self, run: Run) -> None:
        """One child; its log and the report are in the folder."""
        began, log = time.monotonic(), self._folder / f"{run.name}.log"
        left = self._ends_at - began
        if left <= 0:
            self.found[run.name] = {"error": "no time was left"}
            return
        if run.prepare:
            run.prepare()
        program = f"tests.bench_residency.{run.program}"
        argv = [sys.executable, "-m", program, json.dumps({"llm": run.llm, "steps": run.steps})]
        with log.open("wb") as file:
            child = subprocess.Popen(
                argv, cwd=ROOT, env=self._environ(run), stdout=file, stderr=file, start_new_session=True
            )
        with suppress(subprocess.TimeoutExpired):
            child.wait(left)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # vLLM's own children, too
        text = log.read_text(errors="replace")
        line = next((line for line in text.splitlines() if line.startswith("RESULT ")), None)
        found = json.loads(line.removeprefix("RESULT ")) if line else {"error": f"ended: {text[-TAIL:]}"}
        if run.dies:
            time.sleep(1.0)
            query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
            found["vram_after"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
            found = {"error": "it lives"} if "error" not in found else {"died": found.pop("error"), **found}
        self.found[run.name] = found
        (self._folder / "report.json").write_text(json.dumps(self.found))
        shown = {key: value for key, value in found.items() if "tokens" not in key}
        said = [line for line in text.splitlines() if "moe-residency: " in line][:2]
        print(f"{run.name}: {time.monotonic() - began:.1f} s: {json.dumps(shown)} {said}", flush=True)

    def agreements(self, runs: list[Run]) -> Iterator[str]:
        """A line for each run that is compared with another."""
        for run in runs:
            if run.compare:
                yield f"{run.name} against {run.compare}: {agreement(self.found[run.name], self.found[run.compare])}"

    def costs(self, runs: list[Run]) -> Iterator[str]:
        """Ours to stock, over pairs of boots that both came to their end; nothing where there are none."""
        pairs = {run.name.split("-")[1] for run in runs if run.name.startswith("pair-")}
        both = [(self.found[f"pair-{pair}-ours-30"], self.found[f"pair-{pair}-stock"]) for pair in pairs]
        for what in ("skewed", "skewed_prefill"):
            whole = [(ours[what], stock[what]) for ours, stock in both if what in ours and what in stock]
            for key in whole[0][0] if len(whole) > 1 else ():
                yield f"{what} {key}: {ratio([(ours[key], stock[key]) for ours, stock in whole])}"

    def _environ(self, run: Run) -> dict[str, str]:
        cache = {
            "VLLM_CACHE_ROOT": "vllm",
            "TRITON_CACHE_DIR": "triton",
            "TORCHINDUCTOR_CACHE_DIR": "inductor",
        }
        caches = {name: str(self._folder / "cache" / folder) for name, folder in cache.items()}
        path = os.pathsep.join([str(self._plugin), str(ROOT), os.environ.get("PYTHONPATH", "")])
        fixed = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "PYTHONPATH": path,
        }
        return {**os.environ, **caches, **fixed, **run.env}


if __name__ == "__main__":
    sys.exit(main())
