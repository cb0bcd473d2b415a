"""`python -m tests.bench_residency.child JSON`: one engine, measured. Touches the card; prints RESULT and JSON.

The JSON says `llm`, arguments of vllm.LLM, and `steps`, each the name of a function here and its arguments. Rules:
- Where tokens are compared prompts run one at a time: what shares a batch is chance, and kernels differ by its size.
- Where pace is measured tokens are drawn at temperature 1: greedy streams over random weights fall into loops.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from statistics import median
from threading import Thread
from typing import Any

from vllm import LLM, SamplingParams

from tests.bench_residency.comparing import agreement, compared, settled
from tests.bench_residency.models import VOCABULARY

GREEDY_TOKENS = 48
LIKELY = 4
"""Tokens whose logprobs are kept at each place."""
SHORT, LONG = (7, 15, 33, 64, 120, 200, 400, 800), (1500, 3000, 4000)
"""Prompts, tokens; the long ones read staging."""
STREAMS = (1, 2, 4)
DECODED = 160
CHUNKS = (512, 1024, 2048, 4096, 8192, 16_384)
PROMPT = 64
SWAPS = 200


class Child:
    """`found`: what is reported."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        began = time.monotonic()
        named = {key: set(value) if key.endswith("params") else value for key, value in arguments.items()}
        self._llm = LLM(**named)
        self.found: dict[str, Any] = {"boot_s": round(time.monotonic() - began, 1)}
        self._next = 0

    def _rpc(self, method: str, *arguments: Any) -> Any:
        return self._ranks(method, *arguments)[0]

    def _ranks(self, method: str, *arguments: Any) -> list[Any]:
        return list(self._llm.collective_rpc(method, args=arguments))

    def _greedy(self, prompt: Sequence[int], tokens: int) -> list[int]:
        return list(self._answer(prompt, tokens).token_ids)

    def _likely(self, prompt: Sequence[int], tokens: int) -> list[dict[str, float]]:
        """At each place the likeliest tokens and their logprobs, the chosen one first."""
        answer = self._answer(prompt, tokens, LIKELY)
        return [
            {str(token): likely[token].logprob for token in (chosen, *likely)}
            for chosen, likely in zip(answer.token_ids, answer.logprobs, strict=True)
        ]

    def _answer(self, prompt: Sequence[int], tokens: int, likely: int | None = None) -> Any:
        how = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=likely)
        (answer,) = self._llm.generate([{"prompt_token_ids": list(prompt)}], how, use_tqdm=False)
        return answer.outputs[0]

    def _start(self, tokens: int) -> str:
        name, self._next = str(self._next), self._next + 1
        how = SamplingParams(temperature=1, max_tokens=tokens, ignore_eos=True, detokenize=False, seed=self._next)
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": prompt_of(PROMPT, self._next)}, how)
        return name

    def rpc(self, name: str, method: str, *arguments: Any) -> None:
        """Ask the workers; `name` "" = nothing is reported."""
        answers = self._ranks(method, *arguments)
        if name:
            self.found[name] = answers if len(answers) > 1 else answers[0]

    def tokens(self, after: str = "") -> None:
        """Greedy answers to short and long prompts; `after` what happened in between, they are compared with those of
        the first call."""
        short = [self._likely(prompt_of(size, size), GREEDY_TOKENS) for size in SHORT]
        long = [self._likely(prompt_of(size, size), GREEDY_TOKENS // 2) for size in LONG]
        answers = {"tokens": short, "long_tokens": long}
        if after:
            self.found[f"after_{after}"] = agreement(answers, self.found)
        else:
            self.found |= answers

    def while_following(self, tokens: int) -> None:
        """The same answer while rows stay, and while they follow traffic."""
        self._rpc("follow", False)
        before, captured = self._likely(prompt_of(40, 9), tokens), self._rpc("captured")
        self._rpc("follow", True)
        after = self._likely(prompt_of(40, 9), tokens)
        graphs = (captured, self._rpc("captured"))
        self.found["while_following"] = {"equal": compared([after], [before]), "graphs": graphs} | self._rpc(
            "following"
        )

    def swaps(self) -> None:
        """Exchanges at random under load, with every expert's bytes compared."""
        before = self._ranks("digests")
        self._rpc("swap_at_random", SWAPS, 3)
        while self._rpc("swaps_left"):
            self._greedy(prompt_of(40, 9), 40)
        experts = sum(len(of_layer) for of_rank in before for of_layer in of_rank.values())
        is_equal, staged = before == self._ranks("digests"), all(self._ranks("staged_rows_equal"))
        self.found["swaps"] = {"swaps": SWAPS, "experts": experts, "equal": is_equal, "staged_equal": staged}

    def killed(self, seconds: float) -> None:
        """The worker is killed from outside while rows change places; `left`: exchanges that were still to come."""
        Thread(target=self._wake_when_dead, daemon=True).start()
        self._rpc("swap_at_random", 100 * SWAPS, 3)
        self._greedy(prompt_of(40, 9), 8)
        self.found["left"] = self._rpc("swaps_left")
        self._rpc("die_in", seconds)
        while True:
            self._greedy(prompt_of(40, 9), 40)

    def _wake_when_dead(self) -> None:
        """vLLM 0.26.0's client without asyncio waits for ever for an engine core that was killed."""
        core = self._llm.llm_engine.engine_core
        while not core.resources.engine_dead:
            time.sleep(0.05)
        core.outputs_queue.put(RuntimeError("the engine core is dead"))

    def decode(self, name: str) -> None:
        """Tokens/s of each of 1, 2 and 4 streams, by the median gap."""
        self._gaps(max(STREAMS), 16)
        self.found[name] = {count: round(1 / median(self._gaps(count, DECODED)), 1) for count in STREAMS}

    def _gaps(self, streams: int, tokens: int) -> list[float]:
        for _ in range(streams):
            self._start(tokens)
        last: dict[str, float] = {}
        gaps = []
        while self._llm.llm_engine.has_unfinished_requests():
            for output in self._llm.llm_engine.step():
                now = time.perf_counter()
                if output.request_id in last and len(last) == streams:
                    gaps.append(now - last[output.request_id])
                last[output.request_id] = now
        return gaps

    def prefill(self, name: str) -> None:
        """Tokens/s of prompts that are one chunk each; the best of three."""
        self._greedy(prompt_of(2048, 1), 1)
        self.found[name] = {size: round(size / min(self._first(size) for _ in range(3))) for size in CHUNKS}

    def _first(self, size: int) -> float:
        self._next += 1
        prompt, began = prompt_of(size, self._next), time.perf_counter()
        self._greedy(prompt, 1)
        return time.perf_counter() - began

    def follow_shift(self, exponent: float, lead_s: float, after_s: float, shift: int) -> None:
        """Four streams; after `lead_s` the hot experts are others, and `after_s` later it ends. Gaps between tokens,
        those in which a prompt was read apart, and visits to cold experts over time, against those under the best
        placement that stays, chosen afterwards; gaps around a question to the worker are left out."""
        began, shifted, rows = time.monotonic(), False, []
        gaps: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        live: set[str] = set()
        last: dict[str, float] = {}
        while (at := time.monotonic() - began) < lead_s + after_s:
            live |= {self._start(2000) for _ in range(4 - len(live))}
            outputs = self._llm.llm_engine.step()
            has_prompt, now = any(output.request_id not in last for output in outputs), time.perf_counter()
            for output in outputs:
                if output.request_id in last:
                    gaps[has_prompt].append((now - last[output.request_id], round(at, 1)))
                last[output.request_id] = now
                if output.finished:
                    live.discard(output.request_id)
                    last.clear()
            if not shifted and at > lead_s:
                shifted = True
                self._rpc("skew", exponent, shift)
                self._rpc("mark")
                rows.append({"at": round(at, 1)} | self._rpc("following"))
                last.clear()
            if not rows or at - rows[-1]["at"] > 2:
                rows.append({"at": round(at, 1)} | self._rpc("following"))
                last.clear()
        self._llm.llm_engine.abort_request(list(live))
        ordered = sorted(gap for gap, _ in gaps[False])
        of = {"median": 0.5, "p99": 0.99, "p999": 0.999}
        found = {name: round(1e3 * ordered[int(share * len(ordered))], 2) for name, share in of.items()}
        best = self._rpc("best_since_mark")
        seen = {"best": best, "settled_s": settled([row for row in rows if row["at"] >= lead_s], best)}
        worst = {"worst": sorted(gaps[False])[-8:], "worst_with_prompt": sorted(gaps[True])[-8:]}
        self.found["follow"] = {**seen, "gaps": len(ordered), "ms": found, **worst, "rows": rows}


def prompt_of(size: int, seed: int) -> list[int]:
    """Token ids."""
    chance = random.Random(seed)
    return [chance.randrange(10, VOCABULARY) for _ in range(size)]


def main() -> None:
    """Measure what is asked for; what fails is reported, with what was found before."""
    asked = json.loads(sys.argv[1])
    found: dict[str, Any] = {}
    try:
        child = Child(asked["llm"])
        found = child.found
        for name, *arguments in asked["steps"]:
            step: Callable[..., None] = getattr(child, name)
            began = time.monotonic()
            step(*arguments)
            found.setdefault("took_s", []).append([name, round(time.monotonic() - began, 1)])
    except Exception as error:  # the runner reports it beside the other runs
        found["error"] = f"{type(error).__name__}: {error}"[:1500]
        traceback.print_exc()
    print("RESULT " + json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
