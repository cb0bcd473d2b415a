"""What the deciding rank makes of the counts: swaps, and files for the operator. Touches one folder.

Three files, each replaced at once, each readable by its owner only, each written anew when a reading comes and the last
one is `WRITE_S` old:
- counts.json: all visits since the start, as `moe-appliance plan make --stats` reads them; not where a layer has a
  router that does not count;
- learned.json: the document with the experts that are cold now;
- figures.json: what the last reading says, for the page.
What an engine before this one wrote is kept as `before-NAME`, until this one is followed by the next: a start that
fails would lose what the traffic taught; figures.json is removed. A folder that takes nothing is told once, and tried
again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .document import COUNTS_SCHEMA, text
from .errors import SAYS
from .following import Figures, Following, Orders
from .live import Move

if TYPE_CHECKING:  # it needs torch
    from .counters import Reading

COUNTS, LEARNED, FIGURES = "counts.json", "learned.json", "figures.json"
PRIVATE_MODE = 0o600
WRITE_S = 10.0
"""The page looks that often."""
REST_S = 0.002
"""Between two layers: a decision for 60 layers of 384 experts takes 25 ms, and no step may stand still for so long."""
FIGURES_SCHEMA = "moe-appliance.residency-figures/1"


def rest() -> None:
    """Let the engine's own thread go on."""
    time.sleep(REST_S)


class Deciding:
    """A live.Decides. `layers`: the number of the layer that each row of the counts is of; draft layers are None.
    `folder`: None = nothing is written. `clock`: seconds."""

    def __init__(
        self,
        following: Following,
        layers: Sequence[int | None],
        folder: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._following, self._layers, self._folder, self._clock = following, layers, folder, clock
        self._written_at = -WRITE_S
        self._is_told = False
        if folder is not None:
            with self._told():
                for name in (COUNTS, LEARNED, FIGURES):
                    _unfinished(folder / name).unlink(missing_ok=True)
                (folder / FIGURES).unlink(missing_ok=True)
                _keep(folder)

    def decide(self, reading: Reading, then: Orders, now: Orders, seconds: float) -> Sequence[Move]:
        """Raises nothing that is foreseen."""
        counted = zip(self._layers, reading.visits(), strict=True)
        visits = {layer: row[: len(then[layer])] for layer, row in counted if layer is not None and layer in then}
        figures = self._following.hear(reading.tokens, seconds, visits, then)
        found = self._following.decide(seconds, now)
        if self._folder is not None and figures.tokens and self._clock() >= self._written_at + WRITE_S:
            self._written_at = self._clock()
            with self._told():
                self._write(self._folder, figures, now)
        return [(swap.layer, swap.hot, swap.cold) for swap in found]

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._is_told:
                sys.stderr.write(f"{SAYS}: {self._folder}: what is learned cannot be written: {error}\n")
            self._is_told = True

    def _write(self, folder: Path, figures: Figures, now: Orders) -> None:
        following = self._following
        residency = following.residency
        counts = {str(layer): visits for layer, visits in sorted(following.totals.items())}
        if all(map(any, counts.values())):
            stats = {"schema": COUNTS_SCHEMA, "model": residency.model, "tokens": following.tokens, "counts": counts}
            _replace(folder / COUNTS, json.dumps(stats))
        learned = replace(
            residency, cold=dict(residency.cold) | {layer: tuple(cold) for layer, cold in following.cold(now).items()}
        )
        _replace(folder / LEARNED, text(learned))
        said = {"schema": FIGURES_SCHEMA, "plan_id": residency.plan_id, "at": time.time(), "swapped": following.swapped}
        _replace(folder / FIGURES, json.dumps(said | asdict(figures)))


def _keep(folder: Path) -> None:
    """Both files or none: counts belong to what was learned with them."""
    if (folder / LEARNED).exists():
        for name in (COUNTS, LEARNED):
            before(folder / name).unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                (folder / name).replace(before(folder / name))
    (folder / COUNTS).unlink(missing_ok=True)


def before(path: Path) -> Path:
    """Where what the engine before wrote into `path` is kept."""
    return path.with_name(f"before-{path.name}")


def _replace(path: Path, content: str) -> None:
    made = _unfinished(path)
    made.touch(PRIVATE_MODE)
    made.write_text(content)
    made.replace(path)


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}")
