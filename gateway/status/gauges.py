"""The cards' gauges as they are shown. Pure.

Gauges that are STALE_S old, or whose source says that it gets no answer, stay visible and are marked: an operator acts
on the last known figures, but must see that they are the last.
"""

from __future__ import annotations

from gateway.state import GaugesState, GpuGauge
from gateway.status.figures import byte_rate, celsius, gib, percent, seconds, watts
from gateway.status.live import GaugesView, GpuView

STALE_S = 15.0
"""Three looks of five seconds, after which they are given up. Source: appliance/box/gauges.py; a test compares them."""


def gauges_view(gauges: GaugesState | None, now_s: float) -> GaugesView | None:
    """The gauges at `now_s`, wall-clock seconds; None on a box without cards."""
    if gauges is None:
        return None
    return GaugesView(
        age=seconds(now_s - gauges.at_s if gauges.at_s > 0 else None),
        stale=bool(gauges.error) or now_s - gauges.at_s > STALE_S,
        error=gauges.error,
        gpus=tuple(_gpu(gpu) for gpu in gauges.gpus),
    )


def _gpu(gpu: GpuGauge) -> GpuView:
    return GpuView(
        index=gpu.index,
        name=gpu.name,
        busy=percent(gpu.busy_share),
        memory_used=gib(gpu.memory_used_bytes),
        memory_total=gib(gpu.memory_total_bytes),
        memory_share=_share(gpu.memory_used_bytes, gpu.memory_total_bytes),
        temperature=celsius(gpu.temperature_c),
        power=watts(gpu.power_w),
        power_limit=watts(gpu.power_limit_w),
        power_share=_share(gpu.power_w, gpu.power_limit_w),
        pcie_rx=byte_rate(gpu.pcie_rx_bytes_per_s),
        pcie_tx=byte_rate(gpu.pcie_tx_bytes_per_s),
        link=f"Gen{gpu.link_gen} x{gpu.link_width}" if gpu.link_gen and gpu.link_width else "",
        slowed_by=gpu.slowed_by,
    )


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(min(1.0, max(0.0, part / whole)), 3)
