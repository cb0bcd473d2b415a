"""What `preflight --deep` measures: pinned memory, copies alone and together, the link under load, NCCL.

Touches the cards through children that are ended at a deadline (`cuda_child`, `nccl_child`, `nvml_child`), sysfs, the
clock. Never raises: what failed is text in the report.

Rules:
- It needs about 2 GiB of each card for some seconds and takes the links for itself, so it is not run beside an engine
  that serves, nor on a card that has less than 2 GiB free.
- The CUDA library is never loaded here: a driver that hangs would take this process with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.box.deep_copies import BUFFER_BYTES, Copies, measure_copies, one_line
from appliance.box.deep_nccl import measure_nccl
from appliance.box.gpu import Bandwidth, DeepReport, Gpu
from appliance.box.nvml import Links

FREE_BYTES = 2 << 30
"""What a card must have free: 1 GiB of buffer and what a CUDA context takes, about 0.6 GiB."""


def measure(
    cards: Sequence[Gpu],
    *,
    engine_python: Path | None,
    engine_serves: bool = False,
    deadline_s: float = 60.0,
    environ: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> DeepReport:
    """Measure `cards`; blocks for about 10 s with good ones, and at most for three times `deadline_s` and some seconds.

    `engine_python`: of the engine's environment, for NCCL; `engine_serves`: the appliance's own engine is ready, so
    nothing is measured; `environ`: of the children, None = ours; `root`: where /sys and /proc are.
    """
    at_s = time.time()
    reason = _not_now(cards, engine_serves)
    if reason:
        return DeepReport(at_s=at_s, bandwidth_skipped=reason, nccl_skipped=reason)
    environ = os.environ if environ is None else environ
    links: Mapping[int, tuple[int, int]] = {}
    try:
        with Links(deadline_s, environ) as watched:
            copies = measure_copies(cards, environ, deadline_s, root)
        links = watched.seen
    except OSError as error:
        copies = Copies(error=one_line(str(error)))
    nccl = measure_nccl(cards, engine_python, environ, deadline_s)
    return DeepReport(
        at_s=at_s,
        cards=tuple((card.index, card.uuid) for card in cards),
        bandwidth=_bandwidth(copies, links),
        bandwidth_error=copies.error,
        pinned_bytes=None if copies.pin_s is None else BUFFER_BYTES,
        pin_s=copies.pin_s,
        pin_error=copies.pin_error,
        nccl_s=nccl.s,
        nccl_gb_s=nccl.gb_s,
        nccl_p2p=nccl.p2p,
        nccl_p2p_error=nccl.p2p_error,
        nccl_error=nccl.error,
        nccl_skipped=nccl.skipped,
    )


def _bandwidth(copies: Copies, links: Mapping[int, tuple[int, int]]) -> Bandwidth | None:
    rates = copies.rates
    if not rates:
        return None
    return Bandwidth(
        alone=rates.get("h2d", {}),
        together=rates.get("together", {}),
        gen={index: gen for index, (gen, _) in links.items()},
        width={index: width for index, (_, width) in links.items()},
        back=rates.get("d2h", {}),
        far=rates.get("far", {}),
    )


def _not_now(cards: Sequence[Gpu], engine_serves: bool) -> str:
    """Why nothing is to be measured; "" when it may."""
    if not cards:
        return "no card answers"
    if engine_serves:
        return "the engine is serving: its cards are in use"
    used = [card for card in cards if card.used_bytes is not None and _free_bytes(card) < FREE_BYTES]
    if used:
        return "; ".join(f"card {card.index} is in use: {_free_bytes(card) >> 20} MiB are free" for card in used)
    return ""


def _free_bytes(card: Gpu) -> int:
    return card.total_bytes - (card.reserved_bytes or 0) - (card.used_bytes or 0)
