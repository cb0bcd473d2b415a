"""Workers for measuring, loaded by vLLM: its own and ours, with a skewed router and a look inside. Touches the card."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread, Timer
from typing import Any

import torch
from moe_residency import resident
from moe_residency.driver import CudaDriver, Place
from moe_residency.following import Figures, Following
from moe_residency.long_reads import LongReads, SeenLayer
from moe_residency.staging import TILE_TOKENS, Staging
from moe_residency.tensors import Ranges, tensor_at
from moe_residency.worker import ResidentWorker
from vllm.compilation.counter import compilation_counter
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulator, RoutingStrategy
from vllm.v1.worker.gpu_worker import Worker

from tests.bench_residency.workers_named import DIES_LOADING, ENLIVEN, STRATEGY

STD = 0.03


class TopK(RoutingStrategy):  # type: ignore[misc]
    """The router's best, as they come."""

    def route_tokens(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        top_k: int,
        indices_type: torch.dtype | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights float32 and ids, both [tokens, top-k]."""
        found, ids = torch.topk(router_logits.float(), top_k, dim=-1)
        return torch.softmax(found, -1), ids.to(indices_type or torch.int32)


RoutingSimulator.register_strategy(STRATEGY, TopK())


def _skewed(router: Any, skew: torch.Tensor) -> None:
    """Have a router add a vector on the card to its logits; graphs hold its address, so it is rewritten in place."""
    compute = router._compute_routing

    def computed(hidden_states: torch.Tensor, router_logits: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return compute(hidden_states, router_logits.float() + skew, *rest, **named)

    router._compute_routing = computed


_heard: list[Figures] = []
_hear = Following.hear


def _heard_too(following: Following, *arguments: Any) -> Figures:
    _heard.append(_hear(following, *arguments))
    return _heard[-1]


Following.hear = _heard_too
_read = {True: 0, False: 0}
_before = Staging.before


def _before_too(staging: Staging, *arguments: Any) -> bool:
    is_staged = _before(staging, *arguments)
    _read[is_staged] += 1
    return is_staged


Staging.before = _before_too


def _die_in(seconds: float) -> None:
    timer = Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()


class Seen:
    """What both kinds of worker are asked for by collective_rpc."""

    def load_model(self, **named: Any) -> None:
        """As the worker does."""
        if seconds := os.environ.get(DIES_LOADING):
            _die_in(float(seconds))
        super().load_model(**named)  # type: ignore[misc]
        if os.environ.get(ENLIVEN):
            compilation = self.vllm_config.compilation_config  # type: ignore[attr-defined]
            routers = [compilation.static_forward_context[name].router for name in compilation.static_all_moe_layers]
            self._skews = torch.zeros((len(routers), routers[0].global_num_experts), device="cuda")
            for router, skew in zip(routers, self._skews, strict=True):
                _skewed(router, skew)
            chance = torch.Generator(device="cuda").manual_seed(11)
            for name, parameter in self.model_runner.get_model().named_parameters():  # type: ignore[attr-defined]
                if "norm" in name:
                    parameter.data.fill_(1.0)
                elif any(part in name for part in ("mlp.gate.weight", "embed_tokens", "self_attn", "lm_head")):
                    parameter.data.normal_(0, STD, generator=chance)
            torch.cuda.synchronize()

    @torch.inference_mode()
    def skew(self, exponent: float, shift: int = 0, spread: float = 0.0) -> None:
        """Zipf over experts: expert `shift` is the most visited one. 0 = as the router says. `spread`: the first
        layer's exponent is so much less, as a share, and the last one's more."""
        layers, experts = self._skews.shape
        ranks = torch.arange(experts, device="cuda")
        for layer in range(layers):
            of_layer = exponent * (1 + spread * (2 * layer / max(1, layers - 1) - 1))
            self._skews[layer, (ranks + shift) % experts] = -of_layer * torch.log(1.0 + ranks)
        torch.cuda.synchronize()

    def die_in(self, seconds: float) -> None:
        """As the kernel's memory killer does it."""
        _die_in(seconds)

    def captured(self) -> int:
        """CUDA graphs so far."""
        return int(compilation_counter.num_cudagraph_captured)

    def vram(self) -> int:
        """Bytes in use on the card."""
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return int(total - free)


class StockWorker(Seen, Worker):  # type: ignore[misc]
    """vLLM's own."""


class _Peak(Thread):
    """Looks every millisecond how many bytes of VRAM torch and the ranges of this process hold, staging left out."""

    def __init__(self, ranges: Ranges, device: torch.device) -> None:
        super().__init__(daemon=True)
        self._ranges, self._device, self._ended = ranges, device, Event()
        self.most = self.last = 0

    def run(self) -> None:
        """Look."""
        while not self._ended.wait(0.001):
            with suppress(RuntimeError):  # a range came or went meanwhile
                self._look()

    def _look(self) -> None:
        self.last = torch.cuda.memory_reserved(self._device) + self._ranges.device_bytes
        self.most = max(self.most, self.last)

    def end(self) -> None:
        """No more, and `last` is of now."""
        self._ended.set()
        self.join()
        self._look()


class _Always(LongReads):
    """Not chosen."""

    def __init__(self, is_staged: bool) -> None:
        super().__init__({})
        self._is_staged = is_staged

    def is_staged(self, step: int, layer: int, tokens: int, *, is_ahead: bool) -> bool:
        return self._is_staged

    def seen(self, seen: SeenLayer) -> None:
        pass


def _first_rank(asked: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Only the rank that decides has an answer."""
    return lambda worker: asked(worker) if worker.rank == 0 else None


class PlacedWorker(Seen, ResidentWorker):  # type: ignore[misc]
    """Ours."""

    def load_model(self, **named: Any) -> None:
        """As ours does, with an eye on its peak."""
        self._peak = _Peak(self._resident.ranges, self.device)
        self._peak.start()
        super().load_model(**named)
        self._peak.end()

    def placed(self) -> dict[str, int]:
        """Bytes: expert weights on the card and on the host, staging; and layers."""
        ranges, placing = self._resident.ranges, self._resident.placing
        return {
            "card": ranges.device_bytes + placing.plain_bytes,
            "host": ranges.host_bytes,
            "staging": ranges.staging_bytes,
            "load_peak_over_steady": self._peak.most - self._peak.last,
            "layers": len(placing.layers),
        }

    def read_long(self, how: str) -> None:
        """Long steps read as they choose ("chosen"), or always from "staging", or "in place"."""
        staging = self._resident._staging
        self._chosen = getattr(self, "_chosen", staging._reads)
        staging._reads = self._chosen if how == "chosen" else _Always(how == "staging")

    def long_reads(self) -> dict[str, int]:
        """Layers of long steps since the last call: read from staging, and in place."""
        found = {"staging": _read[True], "in_place": _read[False]}
        _read.update({True: 0, False: 0})
        return found

    def follow(self, is_on: bool) -> None:
        """Whether rows may be exchanged."""
        self._resident._is_warm = is_on

    @property
    def _known(self) -> Following:
        """Of the rank that decides, which is asked alone."""
        return self._resident._live._decider._following

    @_first_rank
    def following(self) -> dict[str, float]:
        """Exchanges so far, tokens counted, their visits, and those of them to cold experts."""
        seen = {"swapped": self._known.swapped, "tokens": self._known.tokens}
        return seen | {name: sum(getattr(one, name) for one in _heard) for name in ("visits", "cold_visits")}

    @_first_rank
    def mark(self) -> None:
        """`best_since_mark` begins here."""
        self._marked = {layer: list(row) for layer, row in self._known.totals.items()}

    @_first_rank
    def best_since_mark(self) -> float:
        """The share of visits that would have gone to cold experts, had the best of all placements stood."""
        since = {
            layer: sorted(now - then for now, then in zip(row, self._marked[layer], strict=True))
            for layer, row in self._known.totals.items()
        }
        there = sum(sum(row[: len(self._residency.cold_of(layer))]) for layer, row in since.items())
        return there / max(1, sum(map(sum, since.values())))

    @_first_rank
    def cold_visits(self) -> dict[str, float]:
        """Of the readings since the last call: tokens, visits, the share of them that were to cold rows."""
        now = self.following()
        before, self._then = getattr(self, "_then", dict.fromkeys(now, 0)), now
        tokens, visits, cold = (now[name] - before[name] for name in ("tokens", "visits", "cold_visits"))
        return {"tokens": tokens, "visits": visits, "cold_share": cold / max(1, visits)}

    @torch.inference_mode()
    def digests(self) -> dict[int, list[int]]:
        """Of each layer and logical expert a sum over the bytes of all its rows that depends on their order."""
        torch.cuda.synchronize()
        found = {}
        for layer, rows in self._resident._live._rows.items():
            places = self._resident.placing.layers[layer].places
            assert rows.places[:, 0].tolist() == list(places)
            sums = torch.zeros(len(places), dtype=torch.int64, device=self.device)
            for parameter in rows.parameters:
                weights = torch.arange(parameter.shape[1], device=self.device) % 8191 + 1
                each = [(parameter[place].to(torch.int64) * weights).sum() for place in places]
                sums = sums * 1_000_003 + torch.stack(each)
            found[layer] = sums.tolist()
        return found

    @torch.inference_mode()
    def staged_rows_equal(self) -> bool:
        """Whether each layer's alias, once staged, shows the bytes of its own range."""
        staging, equal = self._resident._staging, True
        self.read_long("staging")
        for layer, part in staging._layers.items():
            staging.before(layer, staging.above + 1, torch.zeros(1, device=self.device), TILE_TOKENS)
            torch.cuda.synchronize()
            for copy in part.copies:
                sides = (copy.target, copy.source)
                target, source = (tensor_at(at, (copy.size,), torch.uint8, self.device) for at in sides)
                equal &= bool((target == source).all())
            staging.after(layer, staging.above + 1)
        torch.cuda.synchronize()
        self.read_long("chosen")
        return equal

    def swap_at_random(self, count: int, seed: int) -> None:
        """Have the next steps carry out `count` exchanges of any hot and any cold expert."""
        live, chance = self._resident._live, random.Random(seed)
        orders = {layer: list(live._placed[layer].rows) for layer in live._rows}
        for _ in range(count):
            layer = chance.choice(list(orders))
            order, cold = orders[layer], len(self._residency.cold_of(layer))
            here, there = chance.randrange(len(order) - cold), len(order) - 1 - chance.randrange(cold)
            live._left.append((layer, order[here], order[there]))
            order[here], order[there] = order[there], order[here]

    def swaps_left(self) -> int:
        """Not carried out yet."""
        return len(self._resident._live._left)

    def copy_rate(self) -> float:
        """Of the copy engine from the host's pages to VRAM, bytes/s."""
        staging = self._resident._staging
        part = max(staging._layers.values(), key=lambda part: sum(copy.size for copy in part.copies))
        rate = float(staging._lane.bytes_per_s(part.copies))
        for layer in staging._layers:
            staging.exchanged(layer)  # their parts hold that layer's rows now
        return rate


class UnmappedWorker(PlacedWorker):
    """The control: rows are permuted and ids are not, so that tokens must differ."""

    def load_model(self, **named: Any) -> None:
        """As ours does, then the map says that nothing moved."""
        super().load_model(**named)
        for runner in self._at_vllm.routed(self.vllm_config):
            places = runner.router.eplb_state.logical_to_physical_map
            places.copy_(torch.arange(len(places), device=places.device)[:, None])


class _VramDriver(CudaDriver):
    def create(self, size: int, place: Place) -> int:
        return super().create(size, Place(False, torch.cuda.current_device()))


class AllVramWorker(PlacedWorker):
    """Rows as ours has them, all pages in VRAM: a difference to ours is the memory's, one to vLLM's the order's."""

    def init_device(self) -> None:
        """As ours does."""
        resident.CudaDriver = _VramDriver
        super().init_device()
