"""Runs measured engines, each a child with a log of its own. Touches processes, the card, and the folder for logs and
report.json."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench_residency.comparing import agreement, ratio

ROOT = Path(__file__).parents[2]
TAIL = 1500
RUN_S = 240.0
"""Longer than any run takes: an engine that ends can leave the client of vLLM 0.26.0 waiting."""


@dataclass(frozen=True, slots=True)
class Run:
    """`llm`: arguments of vllm.LLM; `env`: on top of the runner's; `compare`: the run whose tokens these should be;
    `program`: the module that measures; `dies`: that is what is measured; `prepare`: what must be done first, once the
    runs before have ended."""

    name: str
    llm: dict[str, Any]
    steps: list[list[Any]]
    env: dict[str, str] = field(default_factory=dict)
    compare: str = ""
    program: str = "child"
    dies: bool = False
    prepare: Callable[[], object] | None = None


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
        try:
            if run.prepare:
                run.prepare()
        except (OSError, ValueError, KeyError) as error:  # the run before, whose files it reads, found nothing
            self.found[run.name] = {"error": f"{type(error).__name__}: {error}"}
            print(f"{run.name}: {json.dumps(self.found[run.name])}", flush=True)
            return
        program = f"tests.bench_residency.{run.program}"
        argv = [sys.executable, "-m", program, json.dumps({"llm": run.llm, "steps": run.steps})]
        with log.open("wb") as file:
            child = subprocess.Popen(
                argv, cwd=ROOT, env=self._environ(run), stdout=file, stderr=file, start_new_session=True
            )
        is_over = False
        with suppress(subprocess.TimeoutExpired):
            child.wait(min(left, RUN_S))
            is_over = True
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # vLLM's own children, too
        child.wait()
        text = log.read_text(errors="replace")
        line = next((line for line in text.splitlines() if line.startswith("RESULT ")), None)
        how = "ended" if is_over else "cut off"
        found = json.loads(line.removeprefix("RESULT ")) if line else {"error": f"{how}: {text[-TAIL:]}"}
        if run.dies and is_over:
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
