"""All of a document's work on one rank, from the first layer that is built to the last step. Touches torch.

Rules:
- What needs VRAM is made before the engine measures what is left for the KV cache.
- Draft layers are placed and staged, but not exchanged: nobody says how many of their tokens are real.
- Only decode steps are counted, those that a CUDA graph holds: a long step visits nearly every expert, and what it
  reads from staging it reads whatever is visited.
- Rows are exchanged once the engine is warm, and only by steps that the engine itself runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .counters import Counters
from .decided import check_seen, per_expert
from .deciding import Deciding
from .document import Residency
from .driver import CudaDriver
from .errors import SAYS, ResidencyError
from .exchange import Exchange, Rows, as_rows
from .following import Following
from .lane import CudaLane
from .live import Live
from .options import FOLLOW, Options
from .placing import Placed, Placing, shapes_of
from .staging import Staging
from .tensors import Ranges
from .whole import move_whole

COUNT_BYTES = 4
DECODE_TOKENS = 512
"""Steps of more tokens are no decode steps, where no graph says how many those have."""


class Resident:
    """`at_vllm`: the module of the engine's version; `rank` of `tp` ranks."""

    def __init__(
        self, residency: Residency, options: Options, at_vllm: Any, device: torch.device, rank: int, tp: int
    ) -> None:
        self._residency, self._options, self._at_vllm = residency, options, at_vllm
        self._device, self._rank = device, rank
        self._driver = CudaDriver()
        self._node = self._driver.node_of(device.index)
        self.ranges = Ranges(self._driver, device.index, self._node)
        self.placing = Placing(residency, self.ranges, tp)
        self._staging: Staging | None = None
        self._live: Live | None = None
        self._is_warm = False

    def loaded(self, model: Any, runners: Iterable[Any], largest_graph: int) -> str:
        """All weights are there: whole tensors move, ids are mapped and counted, and what long steps and exchanges need
        is made. Returns the line that says what sits where. Raises ResidencyError."""
        check_seen(self._residency, self.placing.layers)
        self._decode_tokens = largest_graph or DECODE_TOKENS
        move_whole(self._residency.tensors, model, self.ranges)
        layers = [(runner, self.placing.of(runner.layer_name)) for runner in runners]
        rows = self._map_and_count(layers)
        if self._options.staging_tokens:
            self._stage(layers, max(self._options.staging_tokens, largest_graph))
        if self._options.follow_mib_per_s:
            self._follow([placed for _, placed in layers], rows)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return self._line()

    def _map_and_count(self, layers: list[tuple[Any, Placed]]) -> dict[int, Rows]:
        most = max((len(placed.rows) for _, placed in layers), default=0)
        self.counters = counters = Counters(len(layers), most, self._device)
        rows = {}
        for index, (runner, placed) in enumerate(layers):
            places = torch.tensor(placed.places, dtype=torch.int64, device=self._device)[:, None].contiguous()
            loads = counters.loads[index, : len(places)]
            unpadded = counters.unknown if self._is_draft(placed) else counters.unpadded
            self._at_vllm.direct(runner, places, loads, unpadded, counters.is_on)
            parameters = dict(runner.routed_experts.named_parameters(recurse=False))
            per_row = per_expert(shapes_of(parameters), len(placed.rows))
            if self._options.follow_mib_per_s and (strange := [one.name for one in per_row if not one.is_contiguous]):
                raise ResidencyError(f"{placed.name}.{strange[0]}: its rows cannot be exchanged; start with {FOLLOW}=0")
            tensors = tuple(as_rows(parameters[one.name].data) for one in per_row if one.is_contiguous)
            rows[placed.number] = Rows(tensors, places, loads)
        return rows

    def _stage(self, layers: list[tuple[Any, Placed]], above: int) -> None:
        weights = {placed.number: self._placed_tensors(runner, placed) for runner, placed in layers if placed.ranges}
        aliases = self.ranges.staged(weights)
        copies = {number: [copy for _, copy in found] for number, found in aliases.items()}
        self._staging = Staging(CudaLane(self._driver, self._device), copies, above)
        for runner, placed in layers:
            if found := aliases.get(placed.number):
                by_address = {w.data_ptr(): alias for w, (alias, _) in zip(weights[placed.number], found, strict=True)}
                self._at_vllm.stage(runner, self._staging, placed.number, by_address)

    def _placed_tensors(self, runner: Any, placed: Placed) -> list[torch.Tensor]:
        parameters = runner.routed_experts.named_parameters(recurse=False)
        return [one.data for _, one in parameters if self.ranges.address_of(one) in placed.ranges]

    def _follow(self, layers: list[Placed], rows: dict[int, Rows]) -> None:
        counted = {placed.number: placed for placed in layers if not self._is_draft(placed)}
        exchanged = {number: rows[number] for number in counted if self._residency.cold_of(number)}
        numbers = [None if self._is_draft(placed) else placed.number for placed in layers]
        largest = max((one.largest_row_bytes for one in exchanged.values()), default=0)
        row_bytes = {number: one.row_bytes for number, one in rows.items()}
        following = Following(self._residency, row_bytes, self._options.follow_mib_per_s)
        self._live = Live(
            counted,
            exchanged,
            self.counters,
            Exchange(self.ranges.scratch(max(COUNT_BYTES, largest), self._device)),
            self._at_vllm.agreed,
            self._staging.exchanged if self._staging else lambda layer: None,
            Deciding(following, numbers, self._options.folder) if self._rank == 0 else None,
        )

    def _is_draft(self, placed: Placed) -> bool:
        return placed.number >= self._residency.layers

    def _line(self) -> str:
        on_card, on_host = self.ranges.device_bytes + self.placing.plain_bytes, self.ranges.host_bytes
        return (
            f"{SAYS}: rank {self._rank}: placed: {on_card} bytes in VRAM, {on_host} bytes in host RAM of node "
            f"{self._node}, {self.ranges.staging_bytes} bytes of staging, {len(self.placing.layers)} layers, plan "
            f"{self._residency.plan_id}"
        )

    def warm(self) -> None:
        """The engine has warmed up: what was counted meanwhile was made up."""
        self.counters.begin()
        self._is_warm = True

    def step(self, tokens: int) -> None:
        """A step of so many tokens begins."""
        is_decode = tokens <= self._decode_tokens
        self.counters.step(tokens, is_decode)
        if self._live and self._is_warm:
            self._live.step(is_decode)

    def close(self) -> None:
        """Nothing runs on the ranges any more: they go. Raises ResidencyError; what could be given back is."""
        if self._live:
            self._live.close()
        self.ranges.free_all()
