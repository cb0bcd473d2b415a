"""What moves, in the text of `status`: sparklines, probes, cards, chance of one more stream, ledger, events.

Writes to the console it is given. As status.py, it computes nothing and believes no text of others.
"""

from __future__ import annotations

from rich.console import Console

from appliance.cli.terminal import TONES, heading, say
from gateway.status.live import GpuView, SparkView
from gateway.status.views import StatusView

EVENTS_SHOWN = 6
SPARK_CHARS = 40
_LEVELS = "▁▂▃▄▅▆▇█"


def history(view: StatusView, console: Console) -> None:
    """The last hour, a line for each figure."""
    if view.history is None:
        return
    heading(console, "history", f"the last {view.history.span}")
    for spark in view.history.sparks:
        mark = f"  {spark.mark_label}" if spark.mark_label else ""
        say(console, f"{spark.label:<18}", (_line(spark), "green"), f"  {spark.now}", (mark, "dim"), indent=2)


def _line(spark: SparkView) -> str:
    """The points as blocks, thinned to SPARK_CHARS: the most streams and the most reading of each piece, the lowest of
    all else; a gap is a dot."""
    keep = max if spark.id in ("streams", "reading") else min
    width = max(1, -(-len(spark.points) // SPARK_CHARS))
    chars = []
    for start in range(0, len(spark.points), width):
        known = [point for point in spark.points[start : start + width] if point is not None]
        chars.append(_LEVELS[round(keep(known) * (len(_LEVELS) - 1))] if known else "·")
    return "".join(chars).rjust(SPARK_CHARS, "·")


def probes(view: StatusView, console: Console) -> None:
    """What the engine showed before it served, a line each; more where something is wrong."""
    rows = view.probes
    if not rows:
        return
    shown = sum(row.verdict == "ok" for row in rows)
    heading(console, "what the engine showed", f"{shown} of {len(rows)}")
    for row in rows:
        tone = "dim" if row.verdict == "unknown" else TONES[row.tone]
        say(console, (f"{row.verdict:<8} ", tone), f"{row.title}  ", (row.observed, "dim"), indent=2)
        if row.wanted:
            say(console, (f"wanted{', and needed' if row.needed else ''}: ", "dim"), row.wanted, indent=11)
        if row.remedy:
            say(console, (row.remedy, "bold cyan"), indent=11)


def cards(view: StatusView, console: Console) -> None:
    """A line a card."""
    gauges = view.gauges
    if gauges is None:
        return
    age = f"{gauges.age} old" if gauges.stale else f"{gauges.age} ago"
    heading(console, "cards", f"{age}{f', {gauges.error}' if gauges.error else ''}")
    for gpu in gauges.gpus:
        slowed = f"  slowed by {', '.join(gpu.slowed_by)}" if gpu.slowed_by else ""
        say(console, (_card(gpu), "dim" if gauges.stale else ""), (slowed, TONES["warn"]), indent=2)


def _card(gpu: GpuView) -> str:
    if not gpu.name:
        return f"{gpu.index}  does not answer"
    figures = (
        f"busy {gpu.busy}",
        f"{gpu.memory_used} of {gpu.memory_total}",
        f"{gpu.temperature}",
        f"{gpu.power} of {gpu.power_limit}",
        f"in {gpu.pcie_rx} out {gpu.pcie_tx} {gpu.link}".rstrip(),
    )
    return f"{gpu.index}  {gpu.name}  {'  '.join(figures)}"


def fifth(view: StatusView, console: Console) -> None:
    """The measured chance of one more stream."""
    if view.fifth is not None:
        heading(console, f"stream {view.fifth.streams + 1}", "")
        say(console, (view.fifth.sentence, TONES[view.fifth.tone] if view.fifth.enough else "dim"), indent=2)


def ledger(view: StatusView, console: Console) -> None:
    """How the ledger is."""
    row = view.ledger
    if row is None:
        return
    heading(console, "ledger", f"{row.rows} requests over {row.kept_for}, {row.size}")
    if not row.ok:
        said = f"{row.lost} lost, {row.waiting} in memory"
        say(console, (f"{said}: {row.error}" if row.error else said, TONES["warn"]), indent=2)


def events(view: StatusView, console: Console) -> None:
    """The latest events, newest first."""
    if not view.events:
        return
    heading(console, "events", "the latest; more: moe-appliance events")
    for event in view.events[:EVENTS_SHOWN]:
        who = f"  {event.who}" if event.who else ""
        style = "" if event.severity == "info" else TONES[event.severity]
        say(console, (f"{event.at:<12}  ", "dim"), (event.text, style), (who, "bold"), indent=2)
