"""How much memory is missing and what would make room: the figures in a failure's sentence and remedy. Pure.

1. The plan leaves more on a card than the card has: so many more experts must go. The same start ends the same way.
2. Another process on the card: it is named, and the same start may go well once it is gone.
3. The plan fits by its own figures: what the message says is missing is counted in experts.
"""

from __future__ import annotations

import re
from math import floor

from appliance.engine.failures.context import Context, PlanFigures
from appliance.printable import printable
from appliance.units import GIB, count, gib
from gateway.state import Cause

_UNITS = {"B": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"([\d.]+) ([KMGT]iB|bytes|B)"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}")
_FREE = re.compile(rf"GPU (\d+) has a total capacity of {_SIZE} of which {_SIZE} is free")
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")


def gpu_memory(cause: Cause, match: re.Match[str], context: Context) -> Cause:
    """A card ran full, with the message's figures and the plan's."""
    text = match.string
    tried, free, other = _TRIED.search(text), _FREE.search(text), _OTHER.search(text)
    wanted = ""
    if tried and free:
        wanted = f": {tried[1]} {tried[2]} more were wanted, {free[4]} {free[5]} of {free[2]} {free[3]} are free"
        wanted += f" on card {free[1]}"
    title = f"{cause.title[:-1]}{wanted}."
    plan = context.plan
    if plan is not None and plan.short_bytes and cause.id == "engine.gpu_memory":  # 1
        return cause.model_copy(
            update={
                "title": f"The plan leaves {gib(plan.needed_bytes)} on a {gib(plan.card_bytes)} card.",
                "remedy": more_experts(plan, plan.short_bytes),
                "retry": False,
            }
        )
    if other:  # 2
        held = f"process {other[1]} holds {other[2]} {other[3]} of it"
        remedy = f"ps -o pid,args -p {other[1]} (what it is; end it when it is not wanted); {cause.remedy}"
        return cause.model_copy(update={"title": f"{title[:-1]}; {held}.", "remedy": remedy})
    if plan is None:
        return cause.model_copy(update={"title": title})
    missing = _bytes(tried[1], tried[2]) - _bytes(free[4], free[5]) if tried and free else 0  # 3
    counted = f" (the plan counts {gib(plan.needed_bytes)} of {gib(plan.card_bytes)})"
    remedy = f"{cause.remedy}; or {more_experts(plan, max(missing, 1))}"
    return cause.model_copy(update={"title": f"{title[:-1]}{counted}.", "remedy": remedy})


def more_experts(plan: PlanFigures, short_bytes: int) -> str:
    """`move 12 more experts: moe-appliance plan make ...`, for so many bytes on each card."""
    more = plan.experts_for(short_bytes)
    if not more:
        return f"make the plan anew for what the cards have: {plan.remake}"
    return f"move {count(more, 'more expert', 'more experts')}: {plan.remake} --experts {plan.cold_experts + more}"


def kv_small(cause: Cause, match: re.Match[str], context: Context) -> Cause:
    """The context that the engine says would fit, and what would make room for the one that was asked for."""
    remedies = [f"set [engine] context_tokens = {match['fits']}"] if match["fits"] else []
    remedies.append(cause.remedy)
    if context.plan is not None:
        missing = floor((float(match["needed"]) - float(match["there"])) * GIB)
        remedies.append(more_experts(context.plan, max(missing, 1)))
    return cause.model_copy(update={"remedy": "; or ".join(remedies)})


def no_kv(cause: Cause, match: re.Match[str], context: Context) -> Cause:
    """With a plan that keeps weights in host RAM, the engine may have loaded them all."""
    plan = context.plan
    if plan is None or not plan.cold_experts:
        return cause
    if plan.short_bytes:
        return cause.model_copy(update={"remedy": more_experts(plan, plan.short_bytes)})
    title = (
        f"The weights leave no room for KV cache, though the plan counts {gib(plan.needed_bytes)} of "
        f"{gib(plan.card_bytes)}: the engine did not leave {count(plan.cold_experts, 'expert')} in host RAM."
    )
    name = context.environment or "NAME"
    remedy = f"moe-appliance engine verify {name} (whether this build places experts by a plan); {cause.remedy}"
    return cause.model_copy(update={"title": title, "remedy": remedy})


def taken(cause: Cause, match: re.Match[str], context: Context) -> Cause:
    """Who holds the rest, where that is known, and the share that would do."""
    free, total, wanted = (float(match[name]) for name in ("free", "total", "wanted"))
    who = ", ".join(f"process {one.pid} ({printable(one.command)}) {gib(one.bytes)}" for one in context.holders)
    title = f"{cause.title[:-1]}: {wanted - free:.2f} GiB are missing{'; ' + who if who else ''}."
    pids = ",".join(str(one.pid) for one in context.holders)
    look = f"ps -o pid,args -p {pids} (what holds the rest: end it)" if pids else cause.remedy
    share = floor(free / total * 100) / 100 if total else 0.0
    return cause.model_copy(
        update={"title": title, "remedy": f"{look}, or set [engine] gpu_memory_utilization = {share:g}"}
    )


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])
