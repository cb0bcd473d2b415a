"""An all-reduce over NCCL in the engine's environment: with peer access, and without it when that fails.

Touches processes and a temporary folder. Never raises for what the engine's Python, torch or NCCL do.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.box.child import run
from appliance.box.deep_copies import ALARM_AFTER_S, ending, events, one_line
from appliance.box.gpu import Gpu
from appliance.box.nccl_child import IMPORTING

CHILD = Path(__file__).with_name("nccl_child.py")
REDUCED_BYTES = 256 << 20
"""Of each all-reduce. NCCL's own buffers hold a few MiB a channel: this many bytes have to cross between the cards."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """One run. `s`: from the start of the first process to the end of the last; `gb_s`: bus bandwidth; `error`: what
    went wrong, "" when every sum was right; `reached`: whether NCCL had been asked by then."""

    s: float | None = None
    gb_s: float | None = None
    error: str = ""
    reached: bool = True


@dataclass(frozen=True, slots=True)
class Nccl:
    """What a DeepReport says of NCCL; see there."""

    s: float | None = None
    gb_s: float | None = None
    p2p: bool | None = None
    p2p_error: str = ""
    error: str = ""
    skipped: str = ""


def measure_nccl(
    cards: Sequence[Gpu], engine_python: Path | None, environ: Mapping[str, str], deadline_s: float
) -> Nccl:
    """Reduce between all `cards`; at most two runs of `deadline_s` and 5 s more."""
    if engine_python is None:
        return Nccl(skipped="the engine's Python is not known: set engine_python in [preflight]")
    if len(cards) < 2:
        return Nccl(skipped="one card: there is nothing to reduce between")
    seen = {**environ, "CUDA_VISIBLE_DEVICES": ",".join(card.uuid for card in cards), "PYTHONSAFEPATH": "1"}
    allowed = environ.get("NCCL_P2P_DISABLE", "0") in ("", "0")
    first = reduce(len(cards), engine_python, seen, deadline_s)
    if not first.error:
        return Nccl(s=first.s, gb_s=first.gb_s, p2p=allowed)
    if not first.reached:
        return Nccl(skipped=f"{first.error}: set engine_python in [preflight] to the engine's Python")
    if not allowed:
        return Nccl(error=first.error)
    second = reduce(len(cards), engine_python, {**seen, "NCCL_P2P_DISABLE": "1"}, deadline_s)
    if second.error == first.error:
        return Nccl(error=f"{first.error} (also with NCCL_P2P_DISABLE=1)")
    if second.error:
        return Nccl(error=f"{first.error}; with NCCL_P2P_DISABLE=1: {second.error}")
    return Nccl(s=second.s, gb_s=second.gb_s, p2p=False, p2p_error=first.error)


def reduce(world: int, engine_python: Path, environ: Mapping[str, str], deadline_s: float) -> Reduced:
    """One run of `world` ranks. Where NCCL was not reached, the Python is another one or has no torch with CUDA."""
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="moe-nccl-", ignore_cleanup_errors=True) as folder:
            spec = {"world": world, "folder": folder, "bytes": REDUCED_BYTES, "limit_s": deadline_s + ALARM_AFTER_S}
            answer = run([str(engine_python), str(CHILD), json.dumps(spec)], environ, deadline_s)
    except OSError as error:
        return Reduced(error=one_line(str(error)), reached=False)
    took_s = time.monotonic() - started
    step, gb_s, failed = "", None, ""
    for event in events(answer.out):
        match event:
            case {"event": "step", "text": str(text)}:
                step = one_line(text)
            case {"event": "reduced", "gb_s": float(rate)}:
                gb_s = rate
            case {"event": "failed", "rank": int(rank), "error": str(words)} if not failed:
                failed = one_line(f"rank {rank}: {words}")
    if answer.code == 0 and gb_s is not None and not failed:
        return Reduced(s=took_s, gb_s=gb_s)
    if not failed or answer.code is None:
        failed = ending(answer, deadline_s) + (f" (at: {step})" if step else "")
    return Reduced(error=failed, reached=step not in ("", IMPORTING))
