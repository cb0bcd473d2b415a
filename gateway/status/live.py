"""The parts of the status that move: operator's mode, actions, events, sparklines, gauges, residency, ledger. Pure."""

from __future__ import annotations

from gateway.status.figures import Figure, Tone, View


class ActionView(View):
    """Something that an admin may do now. `name`: the last part of its address; `seat`: whom it is about, "" = the box.
    `question` asks once, `effect` says what will happen. `grave`: it takes something away from people."""

    name: str
    label: str
    question: str
    effect: str
    seat: str = ""
    grave: bool = False

    @property
    def id(self) -> str:
        """One word for the page; names of seats have no other characters than an id may have."""
        return f"do-{self.name}-{self.seat}" if self.seat else f"do-{self.name}"


class OperatorView(View):
    """What was set by hand. `sentence`: "" while it is serving."""

    mode: str = "serving"
    by: str = ""
    sentence: str = ""
    actions: tuple[ActionView, ...] = ()
    seat_actions: tuple[ActionView, ...] = ()


class EventRow(View):
    """Something that happened. `at`: UTC, for people."""

    id: str
    at_s: float
    at: str
    kind: str
    severity: str
    text: str
    who: str


class SparkView(View):
    """A line of the last hour, oldest first. `points` and `mark` are 0..1 of the picture's height, None = not known;
    `mark`: where the floor or the cap stands. `said`: the same in words."""

    id: str
    label: str
    now: Figure
    points: tuple[float | None, ...]
    mark: float | None
    mark_label: str
    top: Figure
    said: str


class HistoryRow(View):
    """Sparklines over `span`."""

    span: Figure
    sparks: tuple[SparkView, ...]


class GpuView(View):
    """One card. Shares are 0..1 for bars."""

    index: int
    name: str
    busy: Figure
    memory_used: Figure
    memory_total: Figure
    memory_share: float | None
    temperature: Figure
    power: Figure
    power_limit: Figure
    power_share: float | None
    pcie_rx: Figure
    pcie_tx: Figure
    link: str
    slowed_by: tuple[str, ...]


class GaugesView(View):
    """The cards as NVML saw them `age` ago. `stale`: too long ago to act on; `error`: why they do not answer."""

    age: Figure
    stale: bool
    error: str
    gpus: tuple[GpuView, ...]


class ResidencyView(View):
    """Visits to experts at the last reading, `age` ago; where there was none, only that it is so long since the start.
    `cold_share`: those to host RAM; `token_bytes`, `link_rate`: what crossed each card's link for them, a token and a
    second, at most. `exchanges`: of two experts, since the engine's start. `sentence`: all of it."""

    cold_share: Figure = Figure()
    token_bytes: Figure = Figure()
    link_rate: Figure = Figure()
    exchanges: Figure = Figure()
    age: Figure
    sentence: str


class FifthView(View):
    """How often one more stream than there are was wanted, measured from the ledger, against the promise. `chance`:
    share of working time; `enough` False: it rests on too little to be judged; `waited`: share of turns that waited
    over a second; `at_once[k]`: share of working time with exactly k streams wanted."""

    chance: Figure
    promise: Figure
    enough: bool
    tone: Tone
    days: int
    hours: Figure
    requests: Figure
    seats: int
    streams: int
    duty: Figure
    waited: Figure
    at_once: tuple[Figure, ...]
    sentence: str


class LedgerRow(View):
    """How the ledger is. `waiting`: rows in memory until it can be written; `aside`: a damaged file that was moved
    away."""

    ok: bool
    rows: Figure
    lost: Figure
    waiting: Figure
    size: Figure
    kept_for: Figure
    error: str
    aside: str = ""
