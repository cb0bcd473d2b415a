"""What every kind of engine tells the rest of the daemon. Pure.

An adapter knows how its engine is started and read; it starts nothing and keeps no state of a run, so that one
adapter serves every restart. Secrets never go into argv or the environment: the daemon writes the engine's
key to a 0600 file and passes the path.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from appliance.box.facts import Facts
from appliance.engine.promise import Promise
from gateway.state import Cause, EngineProfile, Finding


@dataclass(frozen=True, slots=True)
class Step:
    """What is going on, for people. `progress`: how far it is, 0..1, None = unknown. `limit_s`: without any sign of
    life for this long it has failed; None = only the limit of the whole start holds."""

    name: str
    progress: float | None = None
    limit_s: float | None = None


Progress: TypeAlias = Callable[[str, float | None], None]
"""Called with a step and how far it is, on the event loop."""


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Prometheus names of what a running engine counts: tokens that it wrote and read (counters), requests that run and
    wait (gauges)."""

    written: str
    read: str
    running: str
    waiting: str


@dataclass(frozen=True, slots=True)
class Required:
    """A line that the log must have shown before the engine may serve. `what`: for people; `cause`: told when it is not
    there."""

    pattern: re.Pattern[str]
    what: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of an engine.

    `argv`: empty when nothing is spawned. `env`: every addition to the daemon's own environment; `withheld`: names of
    that one which it does not get.
    `url`: without a trailing slash, or `unix:` and the path of a socket; "" = it has no server and computes for another
    box: it is well once all of `required` was said, until `gone` ends, with the cause. `key_file`: what the engine
    wants as bearer token, None = no key; send it with the health probe as well. `health_path`: answers 200 once the
    engine serves.
    `start_timeout_s`: until then at most. `grace_s`: between SIGTERM and SIGKILL. `sequence_folder`: a folder of ours
    that the engine saves a sequence's cache into when it is told to; None = there is none. `required`: what its log
    must have said. `metrics`: how it counts at /metrics, None = its progress is not watched. `hang_s`: it works for
    somebody and nothing moves for this long: it hangs. `canary_s`: idle, it has this long for one token; 0 = it is not
    asked. `promise`: what it must show at the warm-up; None = what is usual for its kind (promise.usual).
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    url: str
    key_file: Path | None
    health_path: str
    start_timeout_s: float
    grace_s: float
    sequence_folder: Path | None = None
    required: tuple[Required, ...] = ()
    metrics: MetricNames | None = None
    hang_s: float = 180.0
    canary_s: float = 0.0
    promise: Promise | None = None
    gone: Callable[[], Awaitable[Cause]] | None = None
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostTier:
    """A KV tier in host RAM, for a start that has one. `bytes`: over all cards; `most_bytes`: what the engine may pin
    for it. `args`: go behind `Launch.argv`. `mark`: another one when anything is configured that may change whether it
    works."""

    bytes: int
    most_bytes: int
    args: tuple[str, ...]
    mark: str


class Adapter(Protocol):
    """One kind of engine, configured. Rules:

    1. Order: `findings`, then `prepare`, then `launch`; a restart goes back to `launch`.
    2. `prepare` may take minutes, may be cancelled at any time and leaves nothing half done.
    """

    @property
    def kind(self) -> str:
        """`embedded`, `vllm`, `command` or `external`."""

    @property
    def profile(self) -> EngineProfile:
        """What the engine is taken to be able to do."""

    @property
    def supervised(self) -> bool:
        """False: somebody else runs the engine; nothing is spawned or stopped."""

    @property
    def environment(self) -> str:
        """Name of the environment of ours that it runs in; "" = none."""

    @property
    def served_model(self) -> str | None:
        """The model id to ask the engine for; None = the first that it lists."""

    @property
    def context_tokens(self) -> int | None:
        """Longest prompt and answer of one stream; None = ask the engine (warmup.py)."""

    @property
    def host_tier(self) -> HostTier | None:
        """The KV tier that the configuration asks for; None = none, or none that we could start."""

    def findings(self, facts: Facts) -> tuple[Finding, ...]:
        """What speaks against starting this engine on this box."""

    async def prepare(self, progress: Progress) -> None:
        """Makes ready what a start needs, the model for one. Raises MoeError."""

    def launch(self, port: int, key_file: Path) -> Launch:
        """How to start on loopback `port`; the engine's key for this start is already in `key_file`."""

    def phase_of(self, line: str) -> Step | None:
        """The step that a line of the engine's log announces."""


@dataclass(frozen=True, slots=True)
class LogStep:
    """A log line that announces a step. A group `percent` (0..100) gives its progress; else `share` does: how much
    of a start lies behind it, by the count of steps. `limit_s`: see Step."""

    pattern: re.Pattern[str]
    step: str
    share: float | None = None
    limit_s: float | None = None


def read_step(table: Sequence[LogStep], line: str) -> Step | None:
    """The first row of `table` that `line` matches."""
    for row in table:
        match = row.pattern.search(line)
        if match:
            percent = _fraction(match.groupdict())
            return Step(row.step, row.share if percent is None else percent, row.limit_s)
    return None


def _fraction(groups: Mapping[str, str | None]) -> float | None:
    percent = groups.get("percent")
    return None if percent is None else min(1.0, int(percent) / 100)


LLAMA_STEPS = (
    LogStep(re.compile(r"init: listening on http"), "listening", 0.9),
    LogStep(re.compile(r"load_model: initializing, n_slots"), "making room for the streams", 0.75),
    LogStep(re.compile(r"llama threadpool init"), "warming the model", 0.5),
    LogStep(re.compile(r"load_model: loading model|init: loading model"), "loading the model", 0.25),
)
"""llama.cpp's server. Source: measured with xllamacpp 2026.10.11549."""

IMPORTS_S = 600.0
"""Python's imports, from a slow disk. Source: 40 s measured on an idle machine, vLLM 0.26; 149 s on a loaded one."""
COLLECTIVE_S = 300.0
"""Ranks that find each other. Source: a second, measured; one that hangs says nothing for ever (nccl#1999)."""
LOAD_S = 900.0
"""Between two signs of life while weights come: a shard of 100 GiB from a disk of 150 MB/s."""
COMPILE_S = 1800.0
"""Source: 12 s measured for a tiny model; 12 to 15 min for the whole boot of the public two-card recipe."""

VLLM_STEPS = (
    LogStep(re.compile(r"Loading [\w ]*checkpoint shards:\s+(?P<percent>\d+)%"), "loading the weights", limit_s=LOAD_S),
    LogStep(re.compile(r"Capturing CUDA graphs?[^:]*:\s+(?P<percent>\d+)%"), "capturing CUDA graphs", limit_s=LOAD_S),
    LogStep(re.compile(r"Starting to load model"), "loading the weights", 0.0, LOAD_S),
    LogStep(re.compile(r"Model loading took|Dynamo bytecode transform"), "compiling", limit_s=COMPILE_S),
    LogStep(
        re.compile(r"Available KV cache memory|Initial free memory|KV cache size:"),
        "sizing the KV cache",
        limit_s=LOAD_S,
    ),
    LogStep(re.compile(r"\bworld_size=\d+ rank="), "joining the ranks", limit_s=COLLECTIVE_S),
    LogStep(re.compile(r"Initializing a V1 LLM engine"), "starting the core", limit_s=IMPORTS_S),
    LogStep(re.compile(r"non-default args:|Resolved architecture:"), "reading the configuration", limit_s=IMPORTS_S),
    LogStep(re.compile(r"init engine \(|Starting vLLM (?:API )?server"), "starting the server", limit_s=COLLECTIVE_S),
    LogStep(re.compile(r"Application startup complete"), "listening"),
)
"""vLLM; tqdm redraws its lines with a carriage return. Source: our own boots of 0.26.0 and 0.32.0 (tests/data)."""
