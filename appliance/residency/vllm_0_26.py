"""Everything that hangs on vLLM's version: where layers are made, which methods are known, what is refused.

Touches vLLM's registries. Versions: vllm 0.26.0 with torch 2.11. decided.py says so, and worker.py asks it before it
imports this module, whose imports are that version's. Source: vLLM 0.26.0, read; the places are named where they are
used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from vllm import envs
from vllm.config import VllmConfig
from vllm.distributed.eplb.eplb_state import EplbLayerState
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.custom_op import PluggableLayer
from vllm.model_executor.layers.fused_moe.fused_moe import try_get_optimal_moe_config
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from .decided import check_layer, layer_of
from .ending import ending
from .errors import ResidencyError
from .placing import Placed, Placing
from .resident import Steps
from .staging import TILE_TOKENS, Staging

METHODS: Mapping[str, tuple[str, str, str]] = {
    "UnquantizedFusedMoEMethod": ("unquantized_backend", "TRITON", "triton"),
    "Fp8MoEMethod": ("fp8_backend", "TRITON", "triton"),
    "GptOssMxfp4MoEMethod": ("mxfp4_backend", "MARLIN", "marlin"),
    "Mxfp4MoEMethod": ("mxfp4_backend", "MARLIN", "marlin"),
    "ModelOptNvFp4FusedMoE": ("nvfp4_backend", "MARLIN", "marlin"),
    "AutoAWQMoEMethod": ("wna16_moe_backend", "MARLIN", "marlin"),
}
"""Class of the quantisation method -> where it says its backend, the one that is known to keep or re-lay rows as
placing.py takes it, and how `--moe-backend` spells that."""
LOADERS = frozenset({"auto", "hf", "safetensors", "dummy"})
"""Formats whose loader fills the rows in logical order and then has them processed (base_loader.py). Others, as
sharded_state, fill them afterwards: their experts would be permuted the wrong way round."""
MARLIN_TILES, MARLIN_FILLED = (8, 16, 32, 48), 0.9
"""Tokens: the first of them that an expert's share does not fill so far, else TILE_TOKENS."""
EXECUTORS = (None, "mp", "uni")


def check_config(config: VllmConfig) -> None:
    """Raise ResidencyError, naming all settings that residency does not go together with."""
    model, parallel, loading = config.model_config, config.parallel_config, config.load_config
    found = [
        said
        for said, wrong in (
            ("sleep mode (--enable-sleep-mode)", model.enable_sleep_mode),
            ("the cumem allocator (--enable-cumem-allocator)", model.enable_cumem_allocator),
            ("LoRA (--enable-lora)", config.lora_config is not None),
            ("expert parallelism (--enable-expert-parallel)", parallel.enable_expert_parallel),
            ("EPLB (--enable-eplb)", parallel.enable_eplb),
            ("data parallelism (--data-parallel-size)", parallel.data_parallel_size > 1),
            ("pipeline parallelism (--pipeline-parallel-size)", parallel.pipeline_parallel_size > 1),
            ("context parallelism (--prefill-context-parallel-size)", parallel.prefill_context_parallel_size > 1),
            ("several nodes (--nnodes)", parallel.nnodes > 1),
            ("that --distributed-executor-backend", parallel.distributed_executor_backend not in EXECUTORS),
            (f"--load-format {loading.load_format}", loading.load_format not in LOADERS),
            ("a device to load on", loading.device is not None),
            ("--moe-backend deep_gemm_mega_moe", config.kernel_config.moe_backend == "deep_gemm_mega_moe"),
            ("dual batch overlap (--enable-dbo)", parallel.enable_dbo),
            ("weight transfer (--weight-transfer-config)", config.weight_transfer_config is not None),
            ("vLLM's own offload (--cpu-offload-gb, --offload-group-size)", _offloads(config.offload_config)),
            ("VLLM_ENABLE_STARTUP_PLAN: its KV size is another plan's", envs.VLLM_ENABLE_STARTUP_PLAN),
        )
        if wrong
    ]
    if found:
        raise ResidencyError(f"does not go together with {'; '.join(found)}; leave it out, or run without a plan")


def check_tied(config: VllmConfig, tensors: Iterable[str]) -> None:
    """Raise ResidencyError for an embedding that is also the head: a model that reads it under one name for both would
    read all of it over the link for each token."""
    is_tied = getattr(config.model_config.hf_text_config, "tie_word_embeddings", False)
    if is_tied and (found := [name for name in tensors if "embed" in name]):
        raise ResidencyError(f"tensors: {found[0]}: the model's head is tied to it; take it out of the plan")


def _offloads(offload: Any) -> bool:
    return bool(offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size)


_placings: list[Placing] = []


@contextmanager
def placed_by(placing: Placing) -> Iterator[None]:
    """Have every layer of routed experts that is built meanwhile placed; afterwards another engine of this process may
    build its own."""
    _placings.append(placing)
    try:
        yield
    finally:
        _placings.pop()


@PluggableLayer.register_oot(name="RoutedExperts")
class ResidentExperts(RoutedExperts):  # type: ignore[misc]
    """A layer's experts in two memories.

    A stock hook for layers from outside (model_executor/custom_op.py); unlike the offloader of make_layers it also
    sees draft layers, and both model runners have it. It goes by the class's name: layers of subclasses pass it by,
    and `Placing.of` refuses them.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for placing in _placings:
            _place(self, placing)


def _place(experts: RoutedExperts, placing: Placing) -> None:
    number = layer_of(experts.layer_name, placing.residency.layers)
    if placing.residency.cold_of(number):
        check_method(experts.layer_name, experts.quant_method)
    tp = experts.moe_config.moe_parallel_config.tp_size
    check_layer(placing.residency, number, experts.layer_name, experts.local_num_experts, experts.top_k, tp)
    placed = placing.built(
        number, experts.layer_name, experts.local_num_experts, dict(experts.named_parameters(recurse=False))
    )
    _wrap(experts, placing, placed)


def _wrap(experts: RoutedExperts, placing: Placing, placed: Placed) -> None:
    method = experts.quant_method
    process = method.process_weights_after_loading
    if "process_weights_after_loading" in vars(method):
        raise ResidencyError(f"{placed.name}: shares its quantisation method with another layer; run without a plan")

    def processed(layer: RoutedExperts) -> None:
        placing.loaded(placed, lambda: dict(layer.named_parameters(recurse=False)), lambda: process(layer))

    method.process_weights_after_loading = processed


def check_method(name: str, method: Any) -> None:
    """Raise ResidencyError for a quantisation method, or a backend of one, that is not known to work."""
    kind = type(method).__name__
    known = METHODS.get(kind)
    if known is None:
        raise ResidencyError(f"{name}: {kind} is not among {', '.join(METHODS)}; run without a plan")
    attribute, wanted, flag = known
    backend = getattr(method, attribute, None)
    if getattr(backend, "name", None) != wanted:
        raise ResidencyError(
            f"{name}: {kind} runs on {getattr(backend, 'name', backend)}; start with --moe-backend {flag}"
        )
    if kind == "Fp8MoEMethod" and not method.block_quant:
        raise ResidencyError(
            f"{name}: FP8 with one scale a tensor was never tried, only with blocks; run without a plan"
        )


def routed(config: VllmConfig) -> Iterator[MoERunner]:
    """All layers with routed experts that were built, drafts too. Raises ResidencyError for one of another make."""
    for name in config.compilation_config.static_all_moe_layers:
        runner = config.compilation_config.static_forward_context[name]
        if not isinstance(runner, MoERunner) or not isinstance(runner.router, BaseRouter):
            raise ResidencyError(
                f"{name}: {type(runner).__name__} does not choose its experts by vLLM's router; run without a plan"
            )
        yield runner


def direct(
    runner: MoERunner, places: torch.Tensor, loads: torch.Tensor, unpadded: list[torch.Tensor], is_on: torch.Tensor
) -> None:
    """Have a layer's router say physical ids, and count them: `places` int64 [experts, 1], `loads` int32 [experts],
    `is_on` bool []. All keep their addresses for as long as the engine runs: graphs hold them. Raises
    ResidencyError."""
    if runner.router.eplb_state is not None:
        raise ResidencyError(f"{runner.layer_name}: shares its router with another layer; run without a plan")
    runner.router.eplb_state = EplbLayerState(
        expert_load_view=loads,
        logical_to_physical_map=places,
        logical_replica_count=torch.ones_like(places[:, 0]),
        should_record_tensor=is_on,
        num_unpadded_tokens_tensors=unpadded,
    )


def stage(runner: MoERunner, staging: Staging, layer: int, aliases: Mapping[int, torch.Tensor]) -> None:
    """Have a layer's long steps compute with `aliases` of its weights, by the address of what they stand for. All known
    methods end in their kernel's `apply`, and pass the layer's own weights at each call
    (fused_moe/modular_kernel.py). Raises ResidencyError for a layer whose weights are others."""
    experts = runner.routed_experts
    kernel = experts.quant_method.moe_kernel
    apply = kernel.apply
    if set(aliases) - {experts.w13_weight.data_ptr(), experts.w2_weight.data_ptr()}:
        raise ResidencyError(f"{runner.layer_name}: its kernel is given other weights; run without a plan")

    def staged(
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        *rest: Any,
        **named: Any,
    ) -> Any:
        tokens = len(hidden_states)
        if not staging.is_long(tokens):
            return apply(hidden_states, w1, w2, topk_weights, topk_ids, *rest, **named)
        with ending():
            tile = _tile(experts, w1, w2, topk_ids, hidden_states.dtype)
            is_staged = staging.before(layer, tokens, topk_ids, tile)
        if is_staged:
            w1, w2 = (aliases.get(weight.data_ptr(), weight) for weight in (w1, w2))
        found = apply(hidden_states, w1, w2, topk_weights, topk_ids, *rest, **named)
        with ending():
            staging.after(layer, tokens)
        return found

    kernel.apply = staged


def _tile(
    experts: RoutedExperts, w1: torch.Tensor, w2: torch.Tensor, topk_ids: torch.Tensor, dtype: torch.dtype
) -> int:
    """Tokens of an expert that a layer's kernel computes with one reading of its rows (experts/triton_moe.py,
    experts/marlin_moe.py)."""
    method = experts.quant_method
    tokens, top_k = topk_ids.shape
    if METHODS[type(method).__name__][2] != "triton":
        each = tokens * top_k / len(w1)
        return next((size for size in MARLIN_TILES if each / size < MARLIN_FILLED), TILE_TOKENS)
    kernel = method.moe_kernel.fused_experts
    named = kernel.quant_config.config_name(dtype)
    found = try_get_optimal_moe_config(w1.size(), w2.size(), top_k, named, tokens, block_shape=kernel.block_shape)
    return int(found["BLOCK_SIZE_M"])


@contextmanager
def booked(runner: Any) -> Iterator[None]:
    """What torch holds more or less afterwards is of the weights, by which vLLM sizes the KV cache (gpu_worker.py,
    determine_available_memory); both runners take that figure before we move anything."""
    before = torch.cuda.memory_allocated()
    yield
    runner.model_memory_usage += torch.cuda.memory_allocated() - before


def agreed(value: Any) -> Any:
    """What rank 0 gives, on all ranks. Waits for it."""
    group = get_tp_group()
    return value if group.world_size == 1 else group.broadcast_object(value, src=0)


def steps_of(config: VllmConfig) -> Steps:
    """How long steps are."""
    scheduler = config.scheduler_config
    graph = config.compilation_config.max_cudagraph_capture_size or 0
    decoding = scheduler.max_num_seqs * (1 + config.num_speculative_tokens)
    return Steps(graph, min(decoding, scheduler.max_num_batched_tokens), scheduler.max_num_batched_tokens)
