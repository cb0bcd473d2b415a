"""`python -m tests.bench_residency.kernel`: one layer's experts read from two memories. Touches the card.

vLLM's own fused kernel in a CUDA graph over one layer of MIDDLE, half of its rows on the host. Each row: `tokens` that
visit `cold` different cold experts and, up to top 8 each, hot ones; ms of all of it, of its cold and of its hot visits
alone, and of all of it with every row in VRAM. What computing the cold part beside the hot part could still win is what
all of it takes longer than the cold part alone. Prints RESULT and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median

import torch
from moe_residency.decided import host_pages
from moe_residency.driver import CudaDriver
from moe_residency.placing import shapes_of
from moe_residency.tensors import Ranges
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

from tests.bench_residency.models import MIDDLE, STD

COLD = MIDDLE.experts // 2
CASES = ((1, 2), (1, 8), (2, 4), (2, 16), (4, 8), (4, 16), (4, 32), (8, 16), (8, 64))
"""Tokens, cold experts."""
REPLAYS = 60


def main() -> None:
    """Measure all cases."""
    card = torch.device("cuda:0")
    torch.cuda.set_device(card)
    torch.manual_seed(5)
    size = ((2 * MIDDLE.expert, MIDDLE.hidden), (MIDDLE.hidden, MIDDLE.expert))
    plain = [(torch.randn(MIDDLE.experts, *one, device=card) * STD).bfloat16() for one in size]
    placed = {
        name: torch.nn.Parameter(one.clone(), False)
        for name, one in zip(("w13_weight", "w2_weight"), plain, strict=True)
    }
    driver = CudaDriver()
    ranges = Ranges(driver, 0, driver.node_of(0))
    for name, pages in host_pages(shapes_of(placed), MIDDLE.experts, COLD).items():
        ranges.move(placed[name], pages)
    mixed = [parameter.data for parameter in placed.values()]
    rows = []
    with set_current_vllm_config(VllmConfig()):
        for tokens, cold in CASES:
            hidden = torch.randn(tokens, MIDDLE.hidden, device=card).bfloat16()
            each = cold // tokens
            ids = [_visits(tokens, each, MIDDLE.experts - COLD), _visits(tokens, MIDDLE.top_k - each, 0)]
            both = torch.cat(ids, dim=1).to(card)
            in_two, in_vram = _run(hidden, mixed, both), _run(hidden, plain, both)
            equal = bool(torch.equal(in_two(), in_vram()))
            alone = [_ms(_run(hidden, mixed, one.to(card))) if one.numel() else 0.0 for one in ids]
            found = {"ms": _ms(in_two), "cold_ms": alone[0], "hot_ms": alone[1], "vram_ms": _ms(in_vram)}
            rate = cold * sum(one[0].nbytes for one in mixed) / found["ms"] / 1e6
            rounded = {name: round(value, 3) for name, value in found.items()}
            rows.append({"tokens": tokens, "cold": cold, "equal": equal, **rounded, "gb_per_s": round(rate, 1)})
    print("RESULT " + json.dumps({"rows": rows, "copy_gb_per_s": _copied(driver, mixed[0][-COLD // 2 :])}), flush=True)


def _visits(tokens: int, each: int, first: int) -> torch.Tensor:
    """Expert ids [tokens, each], all different, from `first` on."""
    return first + torch.arange(tokens * each, dtype=torch.int32).view(tokens, each)


def _run(hidden: torch.Tensor, weights: list[torch.Tensor], ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    shares = torch.full(ids.shape, 1.0 / MIDDLE.top_k, device=hidden.device)
    return lambda: fused_experts(hidden, *weights, shares, ids)


def _ms(run: Callable[[], object]) -> float:
    """Of one replay, median."""
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return _median(graph.replay)


def _median(run: Callable[[], object]) -> float:
    times = []
    for _ in range(REPLAYS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        torch.cuda.synchronize()
        times.append(began.elapsed_time(ended))
    return median(times)


def _copied(driver: CudaDriver, host: torch.Tensor) -> float:
    """GB/s of the copy engine for the host's rows."""
    target = torch.empty_like(host, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    ms = _median(lambda: driver.copy(target.data_ptr(), host.data_ptr(), host.nbytes, stream))
    return round(host.nbytes / ms / 1e6, 1)


if __name__ == "__main__":
    main()
