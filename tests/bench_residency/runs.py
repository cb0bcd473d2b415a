"""Which engines are measured, and how: what each group of runs is for is in docs/measurements.md. Pure, but for the
checkpoints and documents that a run needs, made in a folder."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from appliance.plan.order import Step, candidates, coldest_first, level
from appliance.residency.document import FILE, Residency, text
from appliance.residency.options import FOLDER, FOLLOW
from tests.bench_residency.models import BACKENDS, HUGE, MIDDLE, SMALL, WIDE, Shape, checkpoint, config
from tests.bench_residency.running import Run
from tests.bench_residency.workers_named import ALL_VRAM, DIES_LOADING, ENLIVEN, PLACED, STOCK, STRATEGY, UNMAPPED

ZIPF, GENTLE = 1.2, 0.4
"""Exponents: with the first one the experts that are visited least hardly are, with the second one still are."""
SPREAD = 0.9
"""Of the exponent over layers, as a share."""
SHARES = {"15": 21, "30": 42, "50": 64}
"""Name -> cold experts of 128 in each layer: 16, 33 and 50 %."""
LAYERS_OFF = {"15": (6, 1), "30": (3, 1), "50": (2, 1)}
"""The same share in whole layers: one of so many."""
EMBEDDING = "model.embed_tokens.weight"
KV = {"kv_cache_memory_bytes": 1 << 30}
QUICK = {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
"""CUDA graphs without torch.compile: a start in seconds."""


@dataclass(frozen=True, slots=True)
class Where:
    """`folder`: for what runs need; `tp`: cards that share each model."""

    folder: Path
    tp: int = 1

    def llm(self, model: Path, **named: Any) -> dict[str, Any]:
        """Arguments of vllm.LLM."""
        common = {"max_model_len": 8192, "gpu_memory_utilization": 0.3, "max_num_seqs": 4, "seed": 0}
        plain = {"enable_prefix_caching": False, "skip_tokenizer_init": True, "tensor_parallel_size": self.tp}
        return {"model": str(model)} | common | plain | named

    def residency(self, shape: Shape, cold: dict[int, tuple[int, ...]], tensors: tuple[str, ...] = ()) -> Residency:
        """A document that says so."""
        return Residency("sha256:bench", "bench", shape.layers, shape.experts, shape.top_k, self.tp, cold, {}, tensors)


def document(where: Where, shape: Shape, cold: int, scattered: bool = True, tensors: tuple[str, ...] = ()) -> Path:
    """A residency document with `cold` experts of each layer: scattered ones, or the last ones."""
    chance, experts = random.Random(3), range(shape.experts)
    chosen = {
        layer: tuple(sorted(chance.sample(experts, cold))) if scattered else tuple(experts[-cold:])
        for layer in range(shape.layers)
    }
    path = where.folder / f"{shape.hidden}-{shape.layers}-{cold}-{'scattered' if scattered else 'last'}.json"
    path.write_text(text(where.residency(shape, chosen, tensors)))
    return path


def equal(where: Where, methods: tuple[str, ...], runner_v2: bool) -> list[Run]:
    """Tokens with a plan and without, scattered cold experts, every listed method."""
    file = {FILE: str(document(where, SMALL, SMALL.experts * 3 // 10, tensors=(EMBEDDING,)))}
    runs = []
    for method in methods:
        model = checkpoint(where.folder / method, method)
        llm = where.llm(model, moe_backend=BACKENDS[method], max_num_batched_tokens=4096, **KV, **QUICK)
        env = {"VLLM_USE_V2_MODEL_RUNNER": str(int(runner_v2))}
        name = f"{method}-v2" if runner_v2 else method
        live = [["tokens"], ["while_following", 600], ["swaps"], ["tokens", "swaps"], ["rpc", "placed", "placed"]]
        runs += [
            Run(f"{name}-stock", llm, [["tokens"]], env),
            Run(f"{name}-stock-again", llm, [["tokens"]], env, f"{name}-stock"),
            Run(f"{name}-placed", llm | {"worker_cls": PLACED}, live, env | file, f"{name}-stock"),
            Run(f"{name}-all-vram", llm | {"worker_cls": ALL_VRAM}, [["tokens"]], env | file, f"{name}-placed"),
            Run(f"{name}-unmapped", llm | {"worker_cls": UNMAPPED}, [["tokens"]], env | file, f"{name}-stock"),
        ]
    return runs


def pace(where: Where, names: tuple[str, ...]) -> list[Run]:
    """Decode and prefill with the same share of expert bytes on the host: ours, vLLM's two offloads, and none."""
    return [run for run in _pace(where) if run.name in names]


def _dummy(where: Where, shape: Shape) -> tuple[dict[str, Any], dict[str, str]]:
    """Arguments and environment for a shape without weights, whose routing can be skewed."""
    llm = where.llm(
        config(where.folder / f"dummy-{shape.layers}-{shape.experts}", shape),
        load_format="dummy",
        moe_backend="triton",
        max_num_batched_tokens=16_384,
        max_model_len=16_640,
        kv_cache_memory_bytes=3 << 30,
    )
    return llm, {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": STRATEGY, ENLIVEN: "1", "VLLM_USE_V2_MODEL_RUNNER": "0"}


def _always(name: str) -> list[list[Any]]:
    """Prefill with long steps that do not choose where they read."""
    steps: list[list[Any]] = []
    for how in ("staging", "in place"):
        steps += [["rpc", "", "read_long", how], ["prefill", f"{name}, {how}"]]
    return [*steps, ["rpc", "", "read_long", "chosen"]]


def _counted(name: str) -> list[list[Any]]:
    """Decode, and the share of its visits that were to cold experts."""
    return [["rpc", "", "cold_visits"], ["decode", name], ["rpc", f"{name}_cold_visits", "cold_visits"]]


def _pace(where: Where) -> list[Run]:
    llm, env = _dummy(where, MIDDLE)
    even = [["rpc", "", "skew", 0], ["decode", "even"], ["prefill", "even_prefill"]]
    skewed = [["rpc", "", "skew", ZIPF], ["decode", "skewed"], ["prefill", "skewed_prefill"]]
    reads: list[Any] = ["rpc", "", "long_reads"]
    ours = [reads, *even, ["rpc", "even_reads", "long_reads"], *_counted("even_counted"), *_always("even_prefill")]
    ours += [reads, *skewed, ["rpc", "skewed_reads", "long_reads"], *_counted("skewed_counted")]
    ours += [*_always("skewed_prefill"), ["rpc", "copy_rate", "copy_rate"]]
    runs = [Run("stock", llm | {"worker_cls": STOCK}, [*even, *skewed], env)]
    for share, cold in SHARES.items():
        every, off = LAYERS_OFF[share]
        gib = round(MIDDLE.expert_bytes * off / every / (1 << 30) - 0.01, 3)
        uva = {"offload_backend": "uva", "cpu_offload_gb": gib, "cpu_offload_params": ["experts"]}
        prefetch = {"offload_group_size": every, "offload_num_in_group": off, "offload_prefetch_step": 1}
        prefetch |= {"offload_backend": "prefetch", "offload_params": ["w13_weight", "w2_weight"]}
        file = {FILE: str(document(where, MIDDLE, cold, scattered=False)), FOLLOW: "0"}
        runs += [
            Run(f"ours-{share}", llm | {"worker_cls": PLACED}, ours, env | file),
            Run(f"uva-{share}", llm | {"worker_cls": STOCK} | uva, [*even, *skewed], env),
            Run(f"prefetch-{share}", llm | {"worker_cls": STOCK} | prefetch, even, env),
        ]
    return runs


def follow(where: Where) -> list[Run]:
    """Traffic whose hot experts become others, and tokens while rows move."""
    llm, env = _dummy(where, MIDDLE)
    file = {FILE: str(document(where, MIDDLE, SHARES["30"], scattered=False)), FOLDER: str(where.folder)}
    exact = [["rpc", "", "skew", ZIPF, MIDDLE.experts // 2], ["while_following", 600], ["swaps"]]
    placed = llm | {"worker_cls": PLACED}
    return [_shift(where, "shift", MIDDLE), Run("exact", placed, exact, env | file)]


def _shift(where: Where, name: str, shape: Shape) -> Run:
    llm, env = _dummy(where, shape)
    file = {FILE: str(document(where, shape, shape.experts // 3, scattered=False)), FOLDER: str(where.folder)}
    steps = [["rpc", "", "skew", GENTLE], ["follow_shift", GENTLE, 15, 45, shape.experts // 2]]
    return Run(name, llm | {"worker_cls": PLACED}, steps, env | file)


def follow_wide(where: Where) -> list[Run]:
    """The same of very many experts."""
    return [_shift(where, "shift-wide", WIDE)]


def killed(where: Where) -> list[Run]:
    """A worker killed while it loads, and while rows change places, and the start after that."""
    model = checkpoint(where.folder / "bf16", "bf16")
    llm = where.llm(model, moe_backend=BACKENDS["bf16"], max_num_batched_tokens=4096, **KV, **QUICK)
    state = where.folder / "state"
    state.mkdir(exist_ok=True)
    file = {FILE: str(document(where, SMALL, SMALL.experts * 3 // 10, tensors=(EMBEDDING,))), FOLDER: str(state)}
    placed = llm | {"worker_cls": PLACED}
    loading = [
        Run(f"kill-loading-{after}", placed, [], file | {DIES_LOADING: str(after)}, dies=True) for after in (1.5,)
    ]
    swapping = [Run(f"kill-swapping-{after}", placed, [["killed", after]], file, dies=True) for after in (0.3,)]
    again = [["tokens"], ["swaps"], ["tokens", "swaps"], ["rpc", "placed", "placed"], ["rpc", "vram", "vram"]]
    runs = [Run("kill-stock", llm, [["tokens"]])]
    for run in (*loading, *swapping):
        runs += [run, Run(f"{run.name}-next", placed, again, file, "kill-stock")]
    return runs


def budgets(where: Where) -> list[Run]:
    """The same number of cold experts, the same in each layer or by visits over all layers; traffic that is even in the
    first layer and very uneven in the last one. The visits are counted by an engine first."""
    named = {run.name: run for run in _pace(where)}
    ours, state = named["ours-30"], where.folder / "counted"
    state.mkdir(exist_ok=True)
    skew: list[Any] = ["rpc", "", "skew", ZIPF, 0, SPREAD]
    counting: list[list[Any]] = [skew, *(["decode", "counting"] for _ in range(16))]
    steps = [
        skew,
        *_counted("skewed"),
        ["prefill", "skewed_prefill"],
        *_always("skewed_prefill"),
        ["rpc", "placed", "placed"],
    ]
    runs = [replace(ours, name="budgets-counting", steps=counting, env=ours.env | {FOLDER: str(state)})]
    for name, order in (("level", level), ("visits", None)):
        file = where.folder / f"budgets-{name}.json"
        prepare = partial(_by_counts, where, state / "counts.json", file, order)
        runs.append(
            replace(ours, name=f"budgets-{name}", steps=steps, env=ours.env | {FILE: str(file)}, prepare=prepare)
        )
    return [*runs, replace(named["stock"], name="budgets-stock", steps=[skew, ["decode", "skewed"]])]


def _by_counts(where: Where, counts: Path, file: Path, by_layer: Callable[..., Iterator[Step]] | None) -> None:
    visits = {int(layer): counted for layer, counted in json.loads(counts.read_text())["counts"].items()}
    going = {layer: candidates(MIDDLE.experts, MIDDLE.top_k, counted) for layer, counted in visits.items()}
    steps = by_layer(going) if by_layer else coldest_first(going, visits)
    cold: dict[int, list[int]] = {layer: [] for layer in visits}
    for layer, experts in islice(steps, SHARES["30"] * MIDDLE.layers):
        cold[layer] += experts
    chosen = {layer: tuple(sorted(experts)) for layer, experts in cold.items() if experts}
    file.write_text(text(where.residency(MIDDLE, chosen)))


def kernel(where: Where) -> list[Run]:
    """One layer's kernel over two memories."""
    return [Run("kernel", {}, [], program="kernel")]


def fits(where: Where) -> list[Run]:
    """A model with more weight bytes than the cards have."""
    huge = replace(HUGE, layers=HUGE.layers * where.tp)
    llm = where.llm(config(where.folder / "huge", huge), load_format="dummy", moe_backend="triton")
    llm |= {"gpu_memory_utilization": 0.92}
    file = {FILE: str(document(where, huge, huge.experts * 3 // 10))}
    steps = [["decode", "even"], ["rpc", "placed", "placed"], ["rpc", "vram", "vram"]]
    return [Run("huge-stock", llm, [["tokens"]]), Run("huge-placed", llm | {"worker_cls": PLACED}, steps, file)]


PAIRS = 6


def paired(where: Where) -> list[Run]:
    """What offload costs a machine that holds everything: boots of stock and of ours, interleaved as AB BA AB BA ..."""
    named = {run.name: run for run in _pace(where)}
    stock, ours = named["stock"], named["ours-30"]
    steps: list[list[Any]] = [["rpc", "", "skew", ZIPF], ["decode", "skewed"], ["prefill", "skewed_prefill"]]
    runs = []
    for pair in range(PAIRS):
        both = [replace(run, name=f"pair-{pair}-{run.name}", steps=steps) for run in (stock, ours)]
        runs += both if pair % 2 == 0 else both[::-1]
    return runs
