"""What `status` says of prompts: the cold lane, cache and speed, what was read ahead, what is unstable.

Writes to the console it is given. As status.py, it computes nothing and believes no text of others.
"""

from __future__ import annotations

from rich.console import Console

from appliance.cli.terminal import TONES, heading, say
from gateway.status.views import StatusView

WATCH_SHOWN = 6
_STATES = {"quiet": "gate closed", "line": "in line"}


def cold(view: StatusView, console: Console) -> None:
    """The cold lane: who is read, who is next and why not yet."""
    lane = view.cold
    if lane is None:
        return
    what = f"{lane.cold} tokens{f' and {lane.short}' if lane.short.value is not None else ''}"
    heading(console, "cold lane", f"{_STATES.get(lane.state, str(lane.state))}, prompts over {what}")
    say(console, lane.sentence, indent=2)
    if lane.next_seat and lane.next_why:
        say(console, f"next: {lane.next_seat}, {lane.next_tokens} tokens: {lane.next_why}", indent=2)
    if lane.spacing_left.value is not None:
        say(console, (f"spacing left {lane.spacing_left}", "dim"), indent=2)


def cache_and_speed(view: StatusView, console: Console) -> None:
    """Cache, KV tier, pace and cap, prewarm, a line each."""
    if view.cache is None and view.speed is None and view.host_kv is None:
        return
    heading(console, "cache and speed", "")
    if view.cache is not None:
        cache = view.cache
        losses = f"losses {cache.losses}, {cache.losses_lately} in 5 min"
        say(console, f"cache     {cache.held} of {cache.capacity} tokens, {losses}", indent=2)
    if view.host_kv is not None:
        tier = view.host_kv
        why = f": {tier.why}" if tier.why else ""
        say(console, f"host KV   {tier.bytes} ", (f"{tier.state}{why}", TONES[tier.tone]), indent=2)
    _speed(view, console)
    _prewarm(view, console)


def _speed(view: StatusView, console: Console) -> None:
    speed = view.speed
    if speed is None:
        return
    rests = f" of {speed.replies} answers, floor {speed.floor}"
    say(console, "pace      ", (str(speed.pace), TONES[speed.tone]), rests, indent=2)
    say(console, f"reading   100 k tokens in {speed.prefill_100k}, {speed.source}", indent=2)
    if speed.cap.lowered:
        say(console, "cap       ", (speed.cap.sentence, TONES["warn"]), indent=2)


def _prewarm(view: StatusView, console: Console) -> None:
    warm = view.prewarm
    if warm is None:
        return
    now = f", now {warm.now}" if warm.now else ""
    took = f"{warm.tokens} tokens in {warm.seconds}, cut by arrivals {warm.cut}"
    copies = f", {warm.copies} copies" if warm.copies.value else ""
    say(console, f"ahead     {warm.done} of {warm.of} read{now}; {took}{copies}", indent=2)
    if warm.last_error:
        say(console, (warm.last_error, TONES["warn"]), indent=12)


def watch(view: StatusView, console: Console) -> None:
    """Clients whose prompts change, the dearest first; those that never did are not told."""
    grave = [line for line in view.watch if line.changed or line.missed]
    if not grave:
        return
    heading(console, "prefixes", "turns that should continue the one before")
    for line in grave[:WATCH_SHOWN]:
        missed = f", {line.missed} read again" if line.missed else ""
        counts = f"changed {line.changed} of {line.of}{missed}, lost {line.lost} in 1 h"
        hit = f"from cache {line.real} of {line.expected}"
        say(console, (f"{line.seat} {line.client}", "bold"), f"  {counts}  ", (hit, "dim"), indent=2)
        if line.where:
            say(console, (f"{line.where}: {line.shape}", "dim"), indent=4)
    if len(grave) > WATCH_SHOWN:
        say(console, (f"{len(grave) - WATCH_SHOWN} more: moe-appliance status --json", "dim"), indent=2)
