"""Which share of visits to experts went to host RAM, and what that costs each card's link, as it is shown. Pure.

Visits are counted. Bytes are those of all of them, and so an estimate, too high where tokens of a step share an expert
or read it from staging.
"""

from __future__ import annotations

from gateway.state import EngineState
from gateway.status.figures import byte_rate, count, fine_percent, gib, seconds, size
from gateway.status.live import ResidencyView

_GIB = 1024**3


def residency_view(engine: EngineState, now_s: float) -> ResidencyView | None:
    """The last reading as of `now_s`, wall-clock seconds; None where nothing is ever counted."""
    counted = engine.residency
    if counted is None:
        return None
    age = seconds(now_s - counted.at_s)
    if not counted.tokens:
        return ResidencyView(age=age, sentence=f"no visits to experts were counted since the start {age} ago")
    each = counted.cold_bytes / counted.tokens
    cold_share = fine_percent(counted.cold_visits / counted.visits)
    token_bytes = size(each, estimated=True) if each < _GIB else gib(round(each), estimated=True)
    link_rate = byte_rate(counted.cold_bytes / counted.seconds, estimated=True)
    exchanges = count(counted.swapped)
    return ResidencyView(
        cold_share=cold_share,
        token_bytes=token_bytes,
        link_rate=link_rate,
        exchanges=exchanges,
        age=age,
        sentence=(
            f"{cold_share} of visits to experts went to host RAM: {token_bytes} a token, {link_rate} over each card's"
            f" link; {exchanges} exchanged since the start; counted {age} ago"
        ),
    )
