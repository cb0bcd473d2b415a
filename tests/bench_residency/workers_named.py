"""How the workers are named where vLLM must not be imported: it takes seconds. Pure."""

from __future__ import annotations

_MODULE = "tests.bench_residency.workers"
STOCK = f"{_MODULE}.StockWorker"
PLACED = f"{_MODULE}.PlacedWorker"
UNMAPPED = f"{_MODULE}.UnmappedWorker"
ALL_VRAM = f"{_MODULE}.AllVramWorker"
ENLIVEN = "BENCH_ENLIVEN"
"""Set: dummy weights outside of the experts are drawn anew; vLLM's would give all tokens one hidden state."""
DIES_LOADING = "BENCH_DIES_LOADING"
"""Seconds after which a worker that loads its model is killed."""
STRATEGY = "bench"
"""Of the router that is simulated."""
