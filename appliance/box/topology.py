"""Reads what `nvidia-smi topo -m` prints, also from a paste. Pure.

Rules:
- Any text is read without an exception. A line that is no part of the table, or that cannot be told for sure, is
  named in `unread`; a cell is never guessed.
- Names and cells have no spaces in them, so a table is split at white space whatever the paste made of the TABs. Only
  empty cells need the TABs: without them a row that is short of affinities keeps none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from appliance.box.gpu import Relation
from appliance.printable import printable

_ANSI = re.compile(r"(?:\x1b|\^\[|\\x1b|\\e|\\033)?\[[0-9;]*[mK]")
_QUOTE = re.compile(r"^(?:\s*>(?=\s))+")
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_TITLE = re.compile("|".join(title.replace(" ", r"[ \t]+") for title in _TITLES), re.IGNORECASE)
_JOIN = "\u00a6"
_DEVICE = re.compile(r"[A-Za-z][\w.-]*\d", re.ASCII)
_GPU = re.compile(r"GPU(\d{1,4})", re.ASCII)
_NV = re.compile(r"NV(\d{1,3})", re.ASCII)
_WORDS = {str(word): word for word in (Relation.PIX, Relation.PXB, Relation.PHB, Relation.NODE, Relation.SYS)} | {
    "SOC": Relation.SYS,
    "PSB": Relation.PIX,
}
"""The last two are what old drivers say for SYS, and for a switch on the card itself."""
_MOST = 256
"""Devices of a table; a longer heading is none."""
_AFFINITY = re.compile(r"(?:\d{1,6}(?:-\d{1,6})?)(?:,\d{1,6}(?:-\d{1,6})?)*|N/A", re.IGNORECASE | re.ASCII)
_PROMPT = re.compile(r"```|~~~|\S*[$#%>](\s|$)|.*nvidia-smi\s+topo")
_LEGEND_NIC = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*$")


@dataclass(frozen=True, slots=True)
class Cell:
    """How two devices reach each other. `nvlinks`: how many, 0 for anything but NV."""

    relation: Relation
    nvlinks: int = 0


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU's row. `cpus`, `numa`: affinity as printed, "" = not said or N/A; `cells`: to the other GPUs by index, as
    this row says; `nics`: to the NICs by name."""

    index: int
    cpus: str = ""
    numa: str = ""
    cells: Mapping[int, Cell] = field(default_factory=dict)
    nics: Mapping[str, Cell] = field(default_factory=dict)

    @property
    def node(self) -> int | None:
        """The NUMA node, None when it was not said or there are several."""
        return int(self.numa) if self.numa.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that was not understood. `number` counts from 1; `text` is fit for a terminal."""

    number: int
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Topology:
    """The table. `gpus`: rows by ascending index; `nics`: name -> device by the legend, "" = not in it.
    `contradictions`: pairs whose two rows differ, in words."""

    gpus: tuple[GpuRow, ...] = ()
    nics: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    contradictions: tuple[str, ...] = ()

    def cell(self, a: int, b: int) -> Cell | None:
        """Between the GPUs `a` and `b` by index; None when no row says, or two rows say different things."""
        said = {row.cells[other] for row, other in self._both(a, b) if other in row.cells}
        return said.pop() if len(said) == 1 else None

    @property
    def relations(self) -> Mapping[tuple[int, int], Relation]:
        """All pairs (i, j) with i < j about which the table says one thing."""
        indexes = sorted({row.index for row in self.gpus} | {other for row in self.gpus for other in row.cells})
        pairs = ((a, b) for place, a in enumerate(indexes) for b in indexes[place + 1 :])
        return {pair: cell.relation for pair in pairs if (cell := self.cell(*pair)) is not None}

    def _both(self, a: int, b: int) -> Iterator[tuple[GpuRow, int]]:
        for row in self.gpus:
            if row.index in (a, b) and a != b:
                yield row, b if row.index == a else a


def parse(text: str) -> Topology:
    """The table in `text`; the first one if there are several, then the others' lines are unread."""
    reader = _Reader()
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        reader.take(number, line)
    return reader.result()


def disagreement(relations: Mapping[tuple[int, int], Relation], table: Topology) -> str:
    """Where the table says something else than `relations`, in words; "" = nowhere that both speak of."""
    printed = table.relations
    differ = [pair for pair in sorted(relations) if pair in printed and printed[pair] != relations[pair]]
    return "; ".join(
        f"GPU{a} and GPU{b}: nvidia-smi topo -m says {printed[a, b]}, NVML says {relations[a, b]}" for a, b in differ
    )


class _Reader:
    """One pass over the lines: before the table, in its heading, in its rows, behind it."""

    def __init__(self) -> None:
        self.heading: list[tuple[int, str]] = []
        self.devices: list[str] = []
        self.titles: list[str] = []
        self.rows: dict[str, tuple[int, str]] = {}
        self.nics: dict[str, str] = {}
        self.unread: list[Unread] = []
        self.last_row = ""
        self.behind = False

    def take(self, number: int, raw: str) -> None:
        line = _QUOTE.sub("", _ANSI.sub("", raw))
        tokens = _tokens(line)
        if not tokens:
            return
        if tokens[0].lower().startswith("legend"):
            self.behind = bool(self.devices)
        elif _is_heading(tokens):
            self._heading(number, line, tokens)
        elif self.behind:
            self._legend(line)
        elif tokens[0] in self.devices and len(tokens) > 1:
            self._row(number, line, tokens[0])
        elif self._continues(tokens):
            at, begun = self.rows[self.last_row]
            self.rows[self.last_row] = (at, f"{begun} {line.strip()}")
        else:
            self.last_row = ""
            if not _PROMPT.match(line.strip()):
                self._refuse(number, line, "it is neither the heading nor a row of the table")

    def result(self) -> Topology:
        rows = {}
        for name, (number, line) in self.rows.items():
            cells = self._cells(number, line)
            if cells is not None:
                rows[name] = cells
        named = sorted((int(found[1]), name) for name in rows if (found := _GPU.fullmatch(name)))
        gpus = tuple(self._gpu(index, *self.rows[name], rows[name]) for index, name in named)
        nics = {name: self.nics.get(name, "") for name in self.devices if not _GPU.fullmatch(name)}
        unread = tuple(sorted(self.unread, key=lambda line: line.number))
        return Topology(gpus, nics, unread, tuple(_contradictions(rows)))

    def _heading(self, number: int, line: str, tokens: Sequence[str]) -> None:
        titles = [token for token in tokens if _JOIN in token]
        devices = [token for token in tokens if _JOIN not in token]
        if self.behind or self.rows:
            self._refuse(number, line, "a second table; only the first is read")
            self.behind = True
            return
        if len(set(devices)) < len(devices) or len(self.devices) + len(devices) > _MOST:
            self._refuse(number, line, "it is no heading")
            return
        if set(devices) & set(self.devices):  # so the one before was none, or has no rows
            for at, before in self.heading:
                self._refuse(at, before, "a heading without rows")
            self.heading, self.devices, self.titles = [], [], []
        self.heading.append((number, line))
        self.devices += devices
        self.titles += titles

    def _continues(self, tokens: Sequence[str]) -> bool:
        """Whether a line is the rest of the row before it, which a narrow window broke."""
        if not self.last_row or not all(_is_value(token) for token in tokens):
            return False
        whole = 1 + len(self.devices) + len(self.titles)
        return len(_tokens(self.rows[self.last_row][1])) + len(tokens) <= whole

    def _legend(self, line: str) -> None:
        found = _LEGEND_NIC.fullmatch(line)
        if found and found[1] in self.devices:
            self.nics[found[1]] = printable(found[2])

    def _row(self, number: int, line: str, name: str) -> None:
        if name in self.rows:
            self._refuse(number, line, f"a second row of {name}")
            self.last_row = ""
            return
        self.rows[name] = (number, line)
        self.last_row = name

    def _cells(self, number: int, line: str) -> Mapping[str, Cell] | None:
        """The row's cells by device, or None when they cannot be told; the own one is left out."""
        name, *tokens = _tokens(line)
        tokens = tokens[: len(self.devices)]
        short = next((place for place, token in enumerate(tokens) if _AFFINITY.fullmatch(token)), len(tokens))
        if short < len(self.devices):
            self._refuse(number, line, f"it has {short} cells for {len(self.devices)} devices")
            return None
        own = [device for device, token in zip(self.devices, tokens, strict=True) if token.upper() == "X"]
        if own != [name]:
            self._refuse(number, line, f"its X is at {', '.join(own) or 'no device'}")
            return None
        cells = {}
        for device, token in zip(self.devices, tokens, strict=True):
            cell = _cell(token)
            if cell is not None:
                cells[device] = cell
            elif device != name:
                self._refuse(number, line, f"its cell for {device} says {printable(token, 20)}")
        return cells

    def _gpu(self, index: int, number: int, line: str, cells: Mapping[str, Cell]) -> GpuRow:
        between = {int(found[1]): cell for name, cell in cells.items() if (found := _GPU.fullmatch(name))}
        nics = {name: cell for name, cell in cells.items() if not _GPU.fullmatch(name)}
        affinities = dict(zip(self.titles, self._affinities(number, line), strict=False))
        cpus, numa, _ = (affinities.get(_joined(title), "") for title in _TITLES)
        return GpuRow(index, cpus=cpus, numa=numa, cells=between, nics=nics)

    def _affinities(self, number: int, line: str) -> Sequence[str]:
        """The values under the titles, "" where there is none; nothing when it cannot be told which is which."""
        count = 1 + len(self.devices)
        tokens = _tokens(line)
        values = tokens[count:]
        by_tab = [part.strip() for part in line.split("\t")]
        if len(values) < len(self.titles) and by_tab[:count] == tokens[:count]:
            values = by_tab[count : count + len(self.titles)]
        elif values and len(values) != len(self.titles):
            self._refuse(number, line, f"{len(values)} affinities under {len(self.titles)} titles")
            return ()
        return ["" if value.upper() == "N/A" or not _AFFINITY.fullmatch(value) else value for value in values]

    def _refuse(self, number: int, line: str, why: str) -> None:
        self.unread.append(Unread(number, printable(" ".join(line.split()), 120), why))


def _tokens(line: str) -> list[str]:
    joined = _TITLE.sub(lambda found: _joined(" ".join(found[0].split())), line)
    return joined.replace("|", " ").split()


def _joined(title: str) -> str:
    return title.lower().replace(" ", _JOIN)


def _is_heading(tokens: Sequence[str]) -> bool:
    named = all(_JOIN in token or (_DEVICE.fullmatch(token) and _cell(token) is None) for token in tokens)
    return named and any(_JOIN in token or _GPU.fullmatch(token) for token in tokens)


def _is_value(token: str) -> bool:
    return token.upper() == "X" or _cell(token) is not None or _AFFINITY.fullmatch(token) is not None


def _cell(token: str) -> Cell | None:
    word = token.upper()
    if found := _NV.fullmatch(word):
        return Cell(Relation.NV, int(found[1]))
    return Cell(_WORDS[word]) if word in _WORDS else None


def _contradictions(rows: Mapping[str, Mapping[str, Cell]]) -> Iterator[str]:
    names = list(rows)
    for place, a in enumerate(names):
        for b in names[place + 1 :]:
            one, other = rows[a].get(b), rows[b].get(a)
            if one and other and one != other:
                yield f"{a} and {b}: {_word(one)} in one row, {_word(other)} in the other"


def _word(cell: Cell) -> str:
    return f"{cell.relation}{cell.nvlinks or ''}"
