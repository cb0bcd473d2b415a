"""All of a document's work on one rank, from the first layer that is built to the last step. Touches torch.

Rules:
- What needs VRAM is made before the engine measures what is left for the KV cache.
- Draft layers are placed and staged, but not exchanged: nobody says how many of their tokens are real.
- Steps are counted up to the size of the largest CUDA graph, or of the longest step in which all streams decode: in a
  longer one many tokens share what they read, and their visits would outweigh those that each cost a reading.
- Rows are exchanged once the engine is warm, and only by steps that the engine itself runs.
- What fails before the engine serves gives everything back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .counters import Counters
from .decided import check_seen, per_expert
from .deciding import Deciding, rest
from .document import Residency
from .driver import CudaDriver
from .errors import SAYS, ResidencyError
from .exchange import Exchange, Rows, as_rows
from .following import Following
from .lane import CudaLane
from .live import Live, half_round_bytes
from .long_reads import ColdRows, LongReads
from .options import Options
from .placing import Placed, Placing, shapes_of
from .staging import ColdPart, Staging, long_step
from .tensors import Ranges
from .whole import move_whole

COUNT_BYTES = 4
DECODE_TOKENS = 512
"""Up to so many a step is counted where there are no graphs."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Tokens: of the largest CUDA graph, 0 = there are none, up to which it was settled at its capture what is read;
    of a step in which as many streams decode as there can be; and of the longest step."""

    largest_graph: int
    decoding: int
    longest: int


class Resident:
    """`at_vllm`: the module of the engine's version."""

    def __init__(self, residency: Residency, options: Options, at_vllm: Any, device: torch.device, rank: int) -> None:
        self._residency, self._options, self._at_vllm = residency, options, at_vllm
        self._device, self._rank = device, rank
        self._driver = CudaDriver()
        self._node = self._driver.node_of(device.index)
        self.ranges = Ranges(self._driver, device.index, self._node)
        self.placing = Placing(residency, self.ranges)
        self._is_warm = False

    def loaded(self, model: Any, runners: Iterable[Any], steps: Steps) -> str:
        """All weights are there: whole tensors move, ids are mapped and counted, and what long steps and exchanges need
        is made. Returns the line that says what sits where. Raises ResidencyError."""
        check_seen(self._residency, self.placing.layers)
        self._counted_tokens = max(steps.largest_graph or DECODE_TOKENS, steps.decoding)
        move_whole(self._residency.tensors, model, self.ranges)
        layers = [(runner, self.placing.of(runner.layer_name)) for runner in runners]
        self._map_and_count(layers)
        self._stage(layers, steps)
        self._follow(layers)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return self._line()

    def _map_and_count(self, layers: list[tuple[Any, Placed]]) -> None:
        most = max((len(placed.rows) for _, placed in layers), default=0)
        self.counters = counters = Counters(len(layers), most, self._device)
        for index, (runner, placed) in enumerate(layers):
            places = torch.tensor(placed.places, dtype=torch.int64, device=self._device)[:, None].contiguous()
            unpadded = counters.unknown if self._is_draft(placed) else counters.unpadded
            self._at_vllm.direct(runner, places, counters.loads[index, : len(places)], unpadded, counters.is_on)

    def _stage(self, layers: list[tuple[Any, Placed]], steps: Steps) -> None:
        wanted = self._options.staging_tokens
        if wanted is None:
            wanted = long_step(self._residency.experts, self._residency.top_k)
        above = max(wanted, steps.largest_graph)
        is_used = wanted and above < steps.longest
        said = f"above {above}" if is_used else f"none of up to {steps.longest}"
        self._staged = f"steps that read staging, tokens: {said}"
        weights = {placed.number: self._placed_tensors(runner, placed) for runner, placed in layers if placed.ranges}
        aliases = self.ranges.staged(weights if is_used else {})
        lane = CudaLane(self._driver, self._device)
        parts = {
            placed.number: ColdPart(self._cold_ids(placed), [copy for _, copy in aliases[placed.number]])
            for _, placed in layers
            if placed.number in aliases
        }
        self._staging = Staging(lane, parts, self._reads(lane, parts), above)
        for runner, placed in layers:
            if found := aliases.get(placed.number):
                by_address = {w.data_ptr(): alias for w, (alias, _) in zip(weights[placed.number], found, strict=True)}
                self._at_vllm.stage(runner, self._staging, placed.number, by_address)

    def _cold_ids(self, placed: Placed) -> range:
        experts = len(placed.rows)
        return range(experts - len(self._residency.cold_of(placed.number)), experts)

    def _reads(self, lane: CudaLane, parts: Mapping[int, ColdPart]) -> LongReads:
        """Of what long steps read, by the link's own pace."""
        bytes_of = {number: sum(copy.size for copy in part.copies) for number, part in parts.items()}
        largest = max(parts, key=lambda number: bytes_of[number], default=None)
        pace = 1.0 if largest is None else lane.bytes_per_s(parts[largest].copies)
        return LongReads({number: ColdRows(len(part.ids), bytes_of[number] / pace) for number, part in parts.items()})

    def _placed_tensors(self, runner: Any, placed: Placed) -> list[torch.Tensor]:
        parameters = runner.routed_experts.named_parameters(recurse=False)
        return [one.data for _, one in parameters if self.ranges.address_of(one) in placed.ranges]

    def _follow(self, layers: list[tuple[Any, Placed]]) -> None:
        counted = {placed.number: placed for _, placed in layers if not self._is_draft(placed)}
        rows = {
            placed.number: self._rows_of(runner, placed)
            for runner, placed in layers
            if placed.number in counted and placed.ranges
        }
        row_bytes = {
            placed.number: sum(as_rows(one).shape[1] for one in self._placed_tensors(runner, placed))
            for runner, placed in layers
            if placed.number in rows
        }
        following = Following(
            self._residency,
            row_bytes,
            self._options.follow_mib_per_s,
            half_round_bytes(max(row_bytes.values(), default=0)),
            rest,
        )
        numbers = [None if self._is_draft(placed) else placed.number for _, placed in layers]
        largest = max((one.largest_row_bytes for one in rows.values()), default=0)
        self._live = Live(
            counted,
            rows,
            self.counters,
            Exchange(self.ranges.scratch(max(COUNT_BYTES, largest), self._device)),
            self._at_vllm.agreed,
            self._staging.exchanged,
            Deciding(following, numbers, self._options.folder) if self._rank == 0 else None,
        )

    def _rows_of(self, runner: Any, placed: Placed) -> Rows:
        parameters = dict(runner.routed_experts.named_parameters(recurse=False))
        per_row = per_expert(shapes_of(parameters), len(placed.rows))
        if strange := [one.name for one in per_row if not one.is_contiguous]:
            raise ResidencyError(f"{placed.name}.{strange[0]}: its rows cannot be exchanged; run without a plan")
        state = runner.router.eplb_state
        tensors = tuple(as_rows(parameters[one.name].data) for one in per_row)
        return Rows(tensors, state.logical_to_physical_map, state.expert_load_view)

    def _is_draft(self, placed: Placed) -> bool:
        return placed.number >= self._residency.layers

    def _line(self) -> str:
        on_card, on_host = self.ranges.device_bytes + self.placing.plain_bytes, self.ranges.host_bytes
        return (
            f"{SAYS}: rank {self._rank}: placed: {on_card} bytes in VRAM, {on_host} bytes in host RAM of node "
            f"{self._node}, {self.ranges.staging_bytes} bytes of staging, {len(self.placing.layers)} layers, plan "
            f"{self._residency.plan_id}; {self._staged}"
        )

    def warm(self) -> None:
        """The engine has warmed up: what was counted meanwhile was made up."""
        self.counters.begin()
        self._staging.forget()
        self._is_warm = True

    def step(self, tokens: int) -> None:
        """A step of so many tokens begins. What was counted is read before its tokens are added."""
        is_counted = tokens <= self._counted_tokens
        if self._is_warm:
            self._live.step(is_counted)
        self.counters.step(tokens, is_counted)

    def close(self) -> None:
        """Nothing runs on the ranges any more: they go. Raises ResidencyError; what could be given back is."""
        self.ranges.free_all()
