"""A plan as text: what it is for, where the cold experts are, what other tools could do with it. Pure.

Without a checkpoint there is no figure in bytes but those that stand in the file, and they are marked as the file's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap

from appliance.plan import ranges
from appliance.plan.export.targets import verdicts
from appliance.plan.schema import Plan
from appliance.printable import printable
from appliance.units import count, gib

BLOCKS = "·▁▂▃▄▅▆▇█"
"""From no cold expert in a cell to all of them."""
ASCII = ".:-=+*%@#"
WIDTH_MIN = 40
_WORDS = {
    "routing-stats": "coldest first, by routing statistics",
    "uniform": "as many in each layer",
    "layers": "whole layers",
    "manual": "a list",
}


_FIGURES = {
    "weights_bytes": "weights on a card",
    "reserves_bytes": "reserves",
    "kv_bytes": "KV",
    "host_bytes": "pinned in host RAM",
}


def picture(plan: Plan, width: int, plain: bool = False) -> tuple[str, ...]:
    """Lines of at most `width` characters (WIDTH_MIN at least), long names apart; `plain`: ASCII only."""
    width = max(width, WIDTH_MIN)
    above = [*_head(plan), "", *_totals(plan), ""]
    below = ["", *(f"{name}: {found.verdict}; {found.reason}" for name, found in verdicts(plan).items())]
    if plan.note:
        below += ["", *f"note: {plan.note}".splitlines()]
    return (
        *(line for text in above for line in _folded(text, width, plain)),
        *_layers(plan, width, ASCII if plain else BLOCKS),
        *(line for text in below for line in _folded(text, width, plain)),
    )


def bar(cold: tuple[int, ...], experts: int, width: int, cells: str) -> str:
    """Experts 0 to `experts` - 1 from left to right, several to a cell where there are more than `width`. The shade is
    the share of a cell's experts that is cold; a cell with one hot and one cold expert is never shown as all of one."""
    size = -(-experts // width)
    held = [0] * -(-experts // size)
    for expert in cold:
        held[expert // size] += 1
    return "".join(_shade(share, min(size, experts - index * size), cells) for index, share in enumerate(held))


def _shade(cold: int, of: int, cells: str) -> str:
    last = len(cells) - 1
    if cold in (0, of):
        return cells[last if cold else 0]
    return cells[min(max(round(cold / of * last), 1), last - 1)]


def _folded(text: str, width: int, plain: bool) -> list[str]:
    clean = printable(text, 4000)
    if plain:
        clean = clean.encode("ascii", "backslashreplace").decode()
    return wrap(clean, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False) or [""]


def _head(plan: Plan) -> Iterator[str]:
    model, shape, box = plan.model, plan.geometry, plan.topology
    if plan.sealed:
        yield f"plan {plan.plan_id}"
    else:
        yield f"plan {plan.identity}"
        yield "edited since it was made; the file says" if plan.plan_id else "the file has no plan_id"
        if plan.plan_id:
            yield f"     {plan.plan_id}"
    made = " by moe-appliance ".join(part for part in (plan.created, plan.tool_version) if part)
    if made:
        yield f"made {made}"
    revision = f" at {model.revision}" if model.revision else ""
    yield f"model {model.name}{revision}, {_bound(plan)}"
    if model.total_bytes:
        yield f"  {model.tensor_count:,} tensors, {gib(model.total_bytes)} (the file's own figures)"
    draft = f", draft {shape.draft_layers} x {shape.draft_experts}" if shape.draft_layers else ""
    moe = len(plan.moe_layers)
    yield (
        f"geometry {shape.family}: {count(shape.layers, 'layer')}, {moe} with {shape.experts} experts, "
        f"top-{shape.top_k}{draft}"
    )
    names = f" ({', '.join(dict.fromkeys(box.gpu_names))})" if box.gpu_names else ""
    link = f", link {box.link}" if box.link else ""
    yield f"for {count(box.tp, 'card')}{names} of {gib(box.vram_bytes_each)} each{link}"


def _bound(plan: Plan) -> str:
    if plan.model.index_sha256:
        return f"index {plan.model.index_sha256[:12]}"
    shards = len(plan.model.header_sha256)
    return f"bound to the headers of {count(shards, 'file')}" if shards else "bound to no checkpoint's hashes"


def _totals(plan: Plan) -> Iterator[str]:
    host, shape, targets = plan.host, plan.geometry, plan.targets
    total = plan.expert_count
    share = plan.cold_count / total if total else 0
    yield f"on the host: {plan.cold_count:,} of {total:,} experts ({share:.1%})"
    if shape.draft_experts:
        yield f"  draft: {plan.cold_draft_count:,} of {shape.draft_layers * shape.draft_experts:,} experts"
    if host.engram is not None:
        where = {"pinned": "pinned host RAM", "disk": "disk", "vram": "the cards"}[host.engram.mode]
        layers = f", layers {ranges.spell(host.engram.layers)}" if host.engram.layers else ""
        yield f"  Engram tables: {where}{layers}"
    yield f"  tensors: {', '.join(host.tensors) if host.tensors else 'none'}"
    chosen = plan.selection
    counted = f", over {chosen.tokens:,} tokens" if chosen.tokens else ""
    yield f"chosen: {_WORDS[chosen.method]}{counted}"
    hits = chosen.expected_cold_hits_per_token
    yield f"expected cold hits: {'not known' if hits is None else f'{hits:.3g} a token'}"
    kv = f"{gib(targets.kv_bytes)} a card" if targets.kv_bytes is not None else "as contexts need"
    yield f"room asked for: KV {kv}, {count(targets.streams, 'stream')} of {targets.context_tokens:,} tokens"
    yield from _figures(plan)
    yield from _profile(plan)


def _figures(plan: Plan) -> Iterator[str]:
    """What the file says of bytes; only whole numbers are believed to be some."""
    found = {
        key: value for key in _FIGURES if type(value := (plan.budget or {}).get(key)) is int and 0 <= value < 2**63
    }
    if found:
        said = ", ".join(f"{_FIGURES[key]} {gib(value)}" for key, value in found.items())
        yield f"the file's own figures, from when it was made: {said}"


def _profile(plan: Plan) -> Iterator[str]:
    profile = plan.profile
    if profile is None:
        yield "profile: none"
        return
    yield (
        f"profile {profile.name}: at least {profile.floor_tok_per_s:g} tok/s for each of "
        f"{count(profile.streams, 'stream')}"
    )
    yield f"  validated: {profile.validated or 'no'}"


def _layers(plan: Plan, width: int, cells: str) -> Iterator[str]:
    yield from _table(plan.moe_layers, plan.host.experts, plan.geometry.experts, "layer", width, cells)
    drafts = tuple(range(plan.geometry.draft_layers)) if plan.geometry.draft_experts else ()
    yield from _table(drafts, plan.host.draft_experts, plan.geometry.draft_experts, "draft", width, cells)


def _table(
    layers: tuple[int, ...], cold: Mapping[str, str], experts: int, name: str, width: int, cells: str
) -> Iterator[str]:
    digits = len(str(experts))
    for layer in layers:
        held = ranges.parse(cold.get(str(layer), ""))
        label = f"{name} {layer:>{len(str(layers[-1]))}} {len(held):>{digits}}/{experts} "
        yield label + bar(held, experts, max(width - len(label), 8), cells)
