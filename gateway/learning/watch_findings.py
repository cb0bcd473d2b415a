"""Says of clients that break their own prefixes, and of an engine that loses good ones, what to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.learning.divergence import Divergence, Origin
from gateway.learning.watch import WatchRow
from gateway.state import Finding, Severity

REPEATED = 3
"""Of the last ten turns."""

REMEDIES = {
    Origin.BILLING: "export CLAUDE_CODE_ATTRIBUTION_HEADER=0   # where Claude Code runs",
    Origin.TOKENS: "turn the note of how many tokens are left off in the client, or update it",
    Origin.CLOCK: "take the clock or the date out of the client's {segment}, or put it at the end of the last message",
    Origin.TOOL_ORDER: "make the client send its tools in the same order with each request: sort them by name",
    Origin.TOOL_SET: "keep the client's tools as they are while a conversation goes on: load MCP servers at the start",
    Origin.UNKNOWN: "look for what the client changes in its {segment}, near byte {offset} of the prompt",
}
"""By what changes."""


def watch_findings(rows: Sequence[WatchRow]) -> tuple[Finding, ...]:
    """`prefix.unstable`: clients that change what they have sent; `prefix.missed`: an engine that reads again what it
    has read."""
    changing = sorted(
        (row for row in rows if row.changed >= REPEATED), key=lambda row: (-row.lost_s, row.seat, row.client)
    )
    missing = [row for row in rows if row.missed >= REPEATED]
    return (*_unstable(changing), *_missed(missing))


def _unstable(rows: list[WatchRow]) -> tuple[Finding, ...]:
    if not rows:
        return ()
    remedies = dict.fromkeys(_remedy(row.last) for row in rows if row.last is not None)
    return (
        Finding(
            id="prefix.unstable",
            severity=Severity.WARN,
            title="A client changes what it has sent before, so that its prompts are read again",
            observed="; ".join(_seen(row) for row in rows),
            required="prompts that continue those before them",
            remedy="\n".join(remedies),
        ),
    )


def _missed(rows: list[WatchRow]) -> tuple[Finding, ...]:
    if not rows:
        return ()
    seats = ", ".join(dict.fromkeys(row.seat for row in rows))
    missed, of = sum(row.missed for row in rows), sum(row.of for row in rows)
    return (
        Finding(
            id="prefix.missed",
            severity=Severity.WARN,
            title="The engine reads prompts again that it has just read",
            observed=f"{missed} of the last {of} turns of {seats} found less than half of what they share with the turn"
            " before in the engine's cache",
            required="a KV cache that holds the conversations of all runs that are active, and keeps prefixes",
            remedy="host_kv_gib in [engine] of appliance.toml, or a plan with more room: moe-appliance plan make\n"
            "where nothing is ever found: the engine's option that turns its prefix cache off",
        ),
    )


def _seen(row: WatchRow) -> str:
    last = row.last
    where = f", last at byte {last.offset} in its {last.segment}: {last.shape}" if last is not None else ""
    cost = f"{row.lost_s:.0f} s of reading in the last hour"
    return f"{row.client} of {row.seat}: {row.changed} of {row.of} turns{where}; {cost}"


def _remedy(last: Divergence) -> str:
    return REMEDIES[last.origin].format(segment=last.segment, offset=last.offset)
