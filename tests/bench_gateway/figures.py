"""From samples to figures, and figures to a table. Pure.

Rules:
- Percentiles are taken inside a run and their median over the runs, so one disturbed run does not decide.
- A ratio is the median over neighbouring runs, which saw the same load.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """Several streams at once through one contender. `cpu_ns` is 0 for direct."""

    chunks: int
    cpu_ns: int
    ttft_ns: tuple[int, ...]
    delay_ns: tuple[int, ...]

    @property
    def cpu_ms_per_1000(self) -> float:
        """CPU milliseconds of the contender for 1,000 chunks."""
        return self.cpu_ns / self.chunks * 1000 / NS_PER_MS


@dataclass(slots=True)
class Samples:
    """All that was seen of one contender; times in ns."""

    few: list[Run] = field(default_factory=list)
    many: list[Run] = field(default_factory=list)
    bursts: list[Run] = field(default_factory=list)
    bodies_ns: list[int] = field(default_factory=list)
    abort_ns: list[int] = field(default_factory=list)
    abort_prefill_ns: list[int] = field(default_factory=list)
    rss_mb: float | None = None


def quantile(values: Sequence[int], q: float) -> float:
    """Nearest-rank quantile, 0 < q <= 1."""
    return sorted(values)[max(0, math.ceil(len(values) * q) - 1)]


def summary(samples: Mapping[str, Samples]) -> dict[str, Any]:
    """The figures of all contenders; those that need nginx are None without it."""
    each = {name: _of_one(found) for name, found in samples.items()}
    ours, direct = each["gateway"], each["direct"]

    def added(key: str) -> float:
        return round(float(ours[key]) - float(direct[key]), 3)

    return {
        "cpu_ratio_vs_nginx": _ratio(samples, lambda found: found.few),
        "cpu_ratio_vs_nginx_c16": _ratio(samples, lambda found: found.many),
        "ttft_added_p50_ms": added("ttft_p50_ms"),
        "ttft_added_p99_ms": added("ttft_p99_ms"),
        "chunk_delay_added_p50_ms": added("chunk_delay_p50_ms"),
        "chunk_delay_added_p99_ms": added("chunk_delay_p99_ms"),
        "body_1_5mb_added_ms": added("body_1_5mb_ms"),
        "rss_mb": ours["rss_mb"],
        "abort_ms": ours["abort_ms"],
        "abort_prefill_ms": ours["abort_prefill_ms"],
        "chunks": sum(run.chunks for found in samples.values() for run in (*found.few, *found.many)),
        "contenders": each,
    }


def _of_one(found: Samples) -> dict[str, Any]:
    return {
        **_of_runs(found.few),
        "ttft_p50_ms": _over_runs([run.ttft_ns for run in found.bursts], 0.5),
        "ttft_p99_ms": _ms(quantile([ns for run in found.bursts for ns in run.ttft_ns], 0.99)),
        "body_1_5mb_ms": _ms(median(found.bodies_ns)),
        "abort_ms": _ms(median(found.abort_ns)) if found.abort_ns else None,
        "abort_prefill_ms": _ms(median(found.abort_prefill_ns)) if found.abort_prefill_ns else None,
        "rss_mb": round(found.rss_mb, 1) if found.rss_mb is not None else None,
        "c16": _of_runs(found.many) | {"ttft_p50_ms": _over_runs([run.ttft_ns for run in found.many], 0.5)},
    }


def _of_runs(runs: Sequence[Run]) -> dict[str, Any]:
    cpu = round(median(run.cpu_ms_per_1000 for run in runs), 2)
    return {
        "cpu_ms_per_1000_chunks": cpu or None,
        "chunk_delay_p50_ms": _over_runs([run.delay_ns for run in runs], 0.5),
        "chunk_delay_p99_ms": _over_runs([run.delay_ns for run in runs], 0.99),
    }


def _over_runs(runs: Sequence[Sequence[int]], q: float) -> float:
    return _ms(median(quantile(values, q) for values in runs))


def _ratio(samples: Mapping[str, Samples], runs_of: Callable[[Samples], list[Run]]) -> float | None:
    if "nginx" not in samples:
        return None
    pairs = zip(runs_of(samples["gateway"]), runs_of(samples["nginx"]), strict=True)
    return round(median(ours.cpu_ms_per_1000 / theirs.cpu_ms_per_1000 for ours, theirs in pairs), 3)


def _ms(ns: float) -> float:
    return round(ns / NS_PER_MS, 3)


_ROWS = (
    ("CPU ms per 1,000 chunks", "cpu_ms_per_1000_chunks"),
    ("first chunk p50, ms", "ttft_p50_ms"),
    ("first chunk p99, ms", "ttft_p99_ms"),
    ("chunk delay p50, ms", "chunk_delay_p50_ms"),
    ("chunk delay p99, ms", "chunk_delay_p99_ms"),
    ("1.5 MB body, first chunk, ms", "body_1_5mb_ms"),
    ("abort in decode, ms", "abort_ms"),
    ("abort in prefill, ms", "abort_prefill_ms"),
    ("resident memory, MiB", "rss_mb"),
)
_C16_ROWS = (
    ("16 streams: CPU ms per 1,000", "cpu_ms_per_1000_chunks"),
    ("16 streams: first chunk p50, ms", "ttft_p50_ms"),
    ("16 streams: chunk delay p99, ms", "chunk_delay_p99_ms"),
)


def table(figures: Mapping[str, Any]) -> str:
    """The figures for people."""
    each = figures["contenders"]
    lines = [f"{'':32}" + "".join(f"{name:>10}" for name in each)]
    lines += [_line(title, [found[key] for found in each.values()]) for title, key in _ROWS]
    lines += [_line(title, [found["c16"][key] for found in each.values()]) for title, key in _C16_ROWS]
    ratio, ratio_c16 = figures["cpu_ratio_vs_nginx"], figures["cpu_ratio_vs_nginx_c16"]
    against = f"{ratio:.2f} x nginx (16 streams: {ratio_c16:.2f})" if ratio is not None else "not compared: no nginx"
    lines += [
        "",
        f"gateway's CPU per chunk       {against}",
        f"first chunk later by          {figures['ttft_added_p50_ms']:.2f} ms (p50)",
        f"chunks later by               {figures['chunk_delay_added_p99_ms']:.2f} ms (p99)",
    ]
    return "\n".join(lines)


def _line(title: str, values: Sequence[float | None]) -> str:
    return f"{title:32}" + "".join(f"{'-' if value is None else format(value, '.2f'):>10}" for value in values)
