"""Run by an engine's Python: placing and exchanging with the real torch, on memory of the host instead of CUDA's.

Prints one line for each check; an AssertionError ends it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from appliance.engine.host_bytes import PLACED
from appliance.residency import resident, vllm_0_26
from appliance.residency.counters import Counters
from appliance.residency.document import Residency
from appliance.residency.driver import Place
from appliance.residency.exchange import Exchange, Rows, as_rows
from appliance.residency.lane import readings_of
from appliance.residency.layout import CHUNK_BYTES
from appliance.residency.long_reads import ColdRows, LongReads
from appliance.residency.options import Options
from appliance.residency.placing import Placing
from appliance.residency.staging import ColdPart, Copy, Staging
from appliance.residency.tensors import Ranges

EXPERTS, RANKS = 64, 2
COLD = (1, 2, 3, 5, 9, 40, 41, 42, 50, 63)


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
READ_WRITE, FIXED, ANONYMOUS = mmap.PROT_READ | mmap.PROT_WRITE, 0x10, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class HostDriver:
    """Files of memory in the place of CUDA's allocations, mapped as those are, more than once too."""

    def __init__(self) -> None:
        self.spaces: dict[int, int] = {}
        self.files: dict[int, tuple[int, bool]] = {}

    def reserve(self, size: int) -> int:
        address = int(LIBC.mmap(None, size, 0, ANONYMOUS, -1, 0))
        self.spaces[address] = size
        return address

    def free_address(self, address: int, size: int) -> None:
        assert self.spaces.pop(address) == size
        assert LIBC.munmap(address, size) == 0

    def create(self, size: int, place: Place) -> int:
        file = os.memfd_create("pages")
        os.ftruncate(file, size)
        self.files[file] = (size, place.host)
        return file

    def release(self, handle: int) -> None:
        del self.files[handle]
        os.close(handle)

    def map(self, address: int, size: int, handle: int) -> None:
        assert LIBC.mmap(address, size, READ_WRITE, mmap.MAP_SHARED | FIXED, handle, 0) == address

    def unmap(self, address: int, size: int) -> None:
        assert LIBC.mmap(address, size, 0, ANONYMOUS | FIXED, -1, 0) == address

    def allow(self, address: int, size: int, card: int) -> None:
        pass

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(target, source, size)

    def host_bytes(self) -> int:
        return sum(size for size, is_host in self.files.values() if is_host)


def frozen(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)


def a_layer_keeps_every_row_through_loading_and_relaying() -> None:
    driver = HostDriver()
    ranges = Ranges(driver, 0, 0)
    placing = Placing(Residency("", "", 2, EXPERTS, 6, 1, {0: COLD}, {}, ()), ranges)
    layer = {
        "w13_weight": frozen(torch.zeros(EXPERTS, 256, 512)),
        "w13_weight_scale": frozen(torch.ones(EXPERTS, 4)),
        "w2_weight": frozen(torch.zeros(EXPERTS, 512, 128)),
        "e_score_correction_bias": frozen(torch.arange(EXPERTS).float()),
    }
    placed = placing.built(0, "model.layers.0.experts", EXPERTS, layer)
    assert (layer["w13_weight"] == 0).all(), "what a parameter holds at first counts"
    for expert in range(EXPERTS):
        layer["w13_weight"].data[expert] = expert
        layer["w13_weight_scale"].data[expert] = expert
        layer["w2_weight"].data[expert] = -expert

    def process() -> None:
        layer["w2_weight"] = frozen(layer["w2_weight"].data.clone() * 2)

    placing.loaded(placed, lambda: layer, process)
    for expert, place in enumerate(placed.places):
        assert (layer["w13_weight"][place] == expert).all()
        assert (layer["w13_weight_scale"][place] == expert).all()
        assert (layer["w2_weight"][place] == -2 * expert).all()
    assert (layer["e_score_correction_bias"] == torch.arange(EXPERTS)).all(), "the router's own is left alone"
    assert len(driver.spaces) == 2, "the range that was replaced was given back"
    assert ranges.host_bytes == (2 + 1) << 21
    ranges.free_all()
    assert not driver.spaces
    print("placing")


class NowLane:
    """Copies at once."""

    def __init__(self, driver: HostDriver) -> None:
        self._driver = driver

    def copy_behind_model(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self._driver.copy(copy.target, copy.source, copy.size, 0)

    def hold_model(self, copied: object) -> None:
        pass

    def look(self, visited: torch.Tensor, cold: range, tile: int) -> int:
        return int(readings_of(visited, cold, tile))

    def begin(self, look: int) -> None:
        pass

    def found(self, look: int, *, is_awaited: bool) -> tuple[int, float]:
        return look, 0.0

    def bytes_per_s(self, copies: Sequence[Copy]) -> float:
        return 1e9


def aliases_show_every_row_through_exchanges() -> None:
    """Large and small weights, an odd number of layers with different cold counts."""
    driver = HostDriver()
    ranges = Ranges(driver, 0, 0)
    cold = {0: tuple(range(40, 64)), 1: tuple(range(60, 64)), 2: tuple(range(2, 50))}
    placing = Placing(Residency("", "", 3, EXPERTS, 6, 1, cold, {}, ()), ranges)
    layers = {}
    for number in cold:
        layer = {
            "w13_weight": frozen(torch.randn(EXPERTS, 256, 512)),
            "w2_weight": frozen(torch.randn(EXPERTS, 512, 128)),
        }
        layer["w2_weight_scale"] = frozen(torch.randn(EXPERTS))
        placed = placing.built(number, f"model.layers.{number}.experts", EXPERTS, layer)
        placing.loaded(placed, lambda layer=layer: layer, lambda: None)
        layers[number] = (placed, layer)
    weights = {
        n: [p.data for p in layer.values() if ranges.address_of(p) is not None] for n, (_, layer) in layers.items()
    }
    aliases = ranges.staged(weights)
    on_card = ranges.device_bytes
    assert ranges.host_bytes == driver.host_bytes()
    assert ranges.staging_bytes % CHUNK_BYTES == 0
    assert ranges.staging_bytes > 0
    parts = {
        n: ColdPart(range(EXPERTS - len(cold[n]), EXPERTS), [copy for _, copy in found]) for n, found in aliases.items()
    }
    everything = torch.arange(EXPERTS).repeat(200)
    rows_of = {n: ColdRows(len(part.ids), 1e-3) for n, part in parts.items()}
    staging = Staging(NowLane(driver), parts, LongReads(rows_of), 100)
    rows = {
        n: Rows(
            tuple(as_rows(p.data) for p in layer.values()),
            torch.tensor(placed.places)[:, None],
            torch.zeros(EXPERTS, dtype=torch.int32),
        )
        for n, (placed, layer) in layers.items()
    }
    exchange, chance = (
        Exchange(torch.empty(max(one.largest_row_bytes for one in rows.values()), dtype=torch.uint8)),
        random.Random(2),
    )
    for step in range(20):
        for number, found in aliases.items():
            assert staging.before(number, 101, everything, 64)
            for weight, (alias, _) in zip(weights[number], found, strict=True):
                assert (alias == weight).all(), (step, number)
            staging.after(number, 101)
        number = chance.choice(list(cold))
        placed = layers[number][0]
        staging.exchanged(number)
        hot, far = chance.randrange(EXPERTS - len(cold[number])), EXPERTS - 1 - chance.randrange(len(cold[number]))
        placed.rows = exchange.swap(rows[number], placed.rows, hot, far)
    assert ranges.device_bytes == on_card
    ranges.free_all()
    assert not driver.spaces
    assert not driver.files
    print("staging")


def padding_and_long_steps_are_not_counted_and_a_reading_is_of_its_steps() -> None:
    counters = Counters(2, 8, torch.device("cpu"))
    counters.step(5, True)
    counters.loads[1, 3] += 5
    counters.step(900, False)
    assert counters.unpadded[0].item() == 900
    assert not counters.is_on
    reading = counters.read()
    assert (reading.tokens, reading.visits()[1][3], int(counters.loads.sum())) == (5, 5, 0)
    counters.step(3, True)
    assert counters.is_on
    counters.begin()
    assert counters.read().tokens == 0
    print("counters")


def two_hundred_exchanges_lose_no_row() -> None:
    parameters = (
        torch.randn(EXPERTS, 6, 8).to(torch.bfloat16),
        torch.randn(EXPERTS, 5),
        torch.randint(0, 9, (EXPERTS, 3, 2), dtype=torch.int32),
        torch.randn(EXPERTS),
    )
    rows = Rows(
        tuple(as_rows(one) for one in parameters),
        torch.arange(EXPERTS)[:, None].clone(),
        torch.arange(EXPERTS, dtype=torch.int32),
    )
    before, loads = [one.clone() for one in parameters], rows.loads.clone()
    exchange, order, chance = (
        Exchange(torch.empty(rows.largest_row_bytes, dtype=torch.uint8)),
        tuple(range(EXPERTS)),
        random.Random(1),
    )
    for _ in range(200):
        order = exchange.swap(rows, order, *chance.sample(range(EXPERTS), 2))
        places = rows.places[:, 0]
        assert all((now[places] == was).all() for now, was in zip(parameters, before, strict=True))
        assert (rows.loads[places] == loads).all()
        assert [order[place] for place in places.tolist()] == list(range(EXPERTS))
    print("exchange")


class Kernel:
    """What a layer's kernel is asked for: the first weights of the experts that its tokens visit."""

    def apply(
        self, hidden_states: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, weights: None, ids: torch.Tensor
    ) -> torch.Tensor:
        self.read = w1.data_ptr()
        return torch.stack([w1[ids[:, 0], 0, 0], w2[ids[:, 0], 0, 0]])


class AutoAWQMoEMethod:
    """By its name."""

    def __init__(self) -> None:
        self.moe_kernel = Kernel()


def runner_of(number: int, experts: torch.nn.Module) -> MoERunner:
    """What vLLM keeps of a layer."""
    runner = MoERunner.__new__(MoERunner)
    torch.nn.Module.__init__(runner)
    experts.quant_method = AutoAWQMoEMethod()
    runner.layer_name = f"model.layers.{number}.mlp.experts"
    runner.routed_experts, runner.router = experts, SimpleNamespace(eplb_state=None)
    return runner


def rank_of(cold: dict[int, tuple[int, ...]], driver: HostDriver, number: int) -> resident.Resident:
    """One of them, on the host's memory."""
    driver.node_of = lambda card: 0  # type: ignore[attr-defined]
    resident.CudaDriver = lambda: driver  # type: ignore[misc]
    resident.CudaLane = lambda driver, device: NowLane(driver)  # type: ignore[misc]
    residency = Residency("sha256:p", "m", len(cold), EXPERTS, 4, RANKS, cold, {}, ())
    options = Options(Path("d"), None, None, 10**6)
    return resident.Resident(residency, options, vllm_0_26, torch.device("cpu"), number)


def built(rank: resident.Resident, number: int) -> MoERunner:
    """A layer with its weights."""
    experts = torch.nn.Module()
    runner = runner_of(number, experts)
    for name, size in (("w13_weight", (256, 512)), ("w2_weight", (512, 128)), ("w2_weight_scale", ())):
        experts.register_parameter(name, frozen(torch.randn(EXPERTS, *size)))
    runner.truth = torch.stack([experts.w13_weight[:, 0, 0], experts.w2_weight[:, 0, 0]]).clone()
    placed = rank.placing.built(number, runner.layer_name, EXPERTS, dict(experts.named_parameters()))
    rank.placing.loaded(placed, lambda: dict(experts.named_parameters()), lambda: None)
    return runner


def visited(runner: MoERunner, ids: torch.Tensor, tokens: int) -> bool:
    """A step of one layer: its experts `ids` are read, rightly. Whether it read where its weights are."""
    state, experts = runner.router.eplb_state, runner.routed_experts
    rows = state.logical_to_physical_map[ids, 0]
    if state.should_record_tensor:
        state.expert_load_view.index_add_(0, rows, torch.ones(len(rows), dtype=torch.int32))
    kernel = experts.quant_method.moe_kernel
    found = kernel.apply(torch.zeros(tokens, 1), experts.w13_weight, experts.w2_weight, None, rows[:, None])
    assert (found == runner.truth[:, ids]).all(), (runner.layer_name, tokens)
    return bool(kernel.read == experts.w13_weight.data_ptr())


def the_life_of_a_rank(number: int, meeting: str) -> list[Any]:
    """Long and short steps in any order, of traffic that changes. Where all rows stood at each."""
    alone()
    config = VllmConfig()
    with set_current_vllm_config(config):
        init_distributed_environment(RANKS, number, f"file://{meeting}", number, "gloo")
        initialize_model_parallel(RANKS)
    torch.manual_seed(number)  # each rank has a part of its own of every expert
    cold, driver = {0: tuple(range(40, 64)), 1: (), 2: tuple(range(20))}, HostDriver()
    rank = rank_of(cold, driver, number)
    runners = {layer: built(rank, layer) for layer in cold}
    line = rank.loaded(torch.nn.Module(), runners.values(), resident.Steps(8, 4, 8192))
    assert PLACED.search(line), line
    assert line.endswith("; steps that read staging, tokens: above 1024"), line
    if rank._live._decider is not None:
        on_host = 4 * (256 * 512 + 512 * 128)  # scales stay in VRAM
        assert rank._live._decider._following.row_bytes == {0: on_host, 2: on_host}
    rank.warm()
    chance, read, stood = random.Random(4), set(), []
    for step in range(1500):
        tokens, first = 2000 if chance.random() < 0.1 else 4, 32 * (step // 750)
        rank.step(tokens)
        for layer, runner in runners.items():
            ids = torch.tensor([chance.randrange(first, first + 32) for _ in range(16)])
            many = tokens > 4 and step % 2  # so many visits that in place cold rows are read over and over
            read.add((layer, tokens, visited(runner, ids.repeat(1000) if many else ids, tokens)))
        stood.append(list(rank._live._orders().values()))
        if (decision := rank._live._decision) is not None:
            decision.join()
    in_place = {(layer, 4, True) for layer in cold} | {(1, 2000, True)}
    either = {(layer, 2000, is_in_place) for layer in (0, 2) for is_in_place in (True, False)}
    assert read == in_place | either, "long steps read by what is visited"
    assert len({str(orders) for orders in stood}) > 5, "rows follow traffic"
    assert set(stood[-1][0][-24:]) <= set(range(32)), "the unvisited half is cold"
    rank.close()
    assert not driver.spaces
    assert not driver.files
    return stood


def what_is_moved_is_booked() -> None:
    runner, held = SimpleNamespace(model_memory_usage=1000), iter((500, 200))
    torch.cuda.memory_allocated = lambda: next(held)
    with vllm_0_26.booked(runner):
        pass
    assert runner.model_memory_usage == 700
    print("booked")


def ranks_exchange_the_same_rows_before_the_same_step() -> None:
    """Processes with vLLM's own group between them."""
    with TemporaryDirectory() as folder, ProcessPoolExecutor(RANKS, get_context("spawn")) as pool:
        first, second = pool.map(the_life_of_a_rank, range(RANKS), [f"{folder}/meeting"] * RANKS)
    assert first == second
    print("life")


def alone() -> None:
    """Without a card."""
    torch.cuda.empty_cache = torch.cuda.synchronize = lambda: None


if __name__ == "__main__":
    alone()
    a_layer_keeps_every_row_through_loading_and_relaying()
    aliases_show_every_row_through_exchanges()
    padding_and_long_steps_are_not_counted_and_a_reading_is_of_its_steps()
    what_is_moved_is_booked()
    ranks_exchange_the_same_rows_before_the_same_step()
    two_hundred_exchanges_lose_no_row()
