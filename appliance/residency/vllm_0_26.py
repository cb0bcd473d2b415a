"""Everything that hangs on vLLM's version: where layers are made, which methods are known, what is refused.

Touches vLLM's registries. Versions: vllm 0.26.0 with torch 2.11; outside of it nothing starts. Source: vLLM 0.26.0,
read; the places are named where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import vllm
from vllm import envs
from vllm.config import VllmConfig
from vllm.distributed.eplb.eplb_state import EplbLayerState
from vllm.model_executor.custom_op import PluggableLayer
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from .decided import layer_of
from .errors import ResidencyError
from .placing import Placed, Placing

VLLM, TORCH = "0.26.0", "2.11."
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


def check_version() -> None:
    """Raise ResidencyError outside of the versions above."""
    if vllm.__version__.partition("+")[0] != VLLM or not torch.__version__.startswith(TORCH):
        raise ResidencyError(
            f"vLLM {vllm.__version__} with torch {torch.__version__}, and this is made for {VLLM} with {TORCH}x; "
            "moe-appliance engine install vllm"
        )


def check_config(config: VllmConfig) -> None:
    """Raise ResidencyError, naming all settings that residency does not go together with."""
    model, parallel, offload = config.model_config, config.parallel_config, config.offload_config
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
            ("dual batch overlap (--enable-dbo)", parallel.enable_dbo),
            ("weight transfer (--weight-transfer-config)", config.weight_transfer_config is not None),
            ("vLLM's own offload (--cpu-offload-gb, --offload-group-size)", _offloads(offload)),
            ("VLLM_ENABLE_STARTUP_PLAN: its KV size is another plan's", envs.VLLM_ENABLE_STARTUP_PLAN),
        )
        if wrong
    ]
    if found:
        raise ResidencyError(f"does not go together with {'; '.join(found)}; leave it out, or run without a plan")


def _offloads(offload: Any) -> bool:
    return bool(offload.uva.cpu_offload_gb or offload.prefetch.offload_group_size)


def hook(placing: Placing) -> None:
    """Have every layer of routed experts that is built from now on placed. Once a process.

    A stock hook for layers from outside (model_executor/custom_op.py); unlike the offloader of make_layers it also
    sees draft layers, and both model runners have it.
    """

    @PluggableLayer.register_oot(name="RoutedExperts")
    class ResidentExperts(RoutedExperts):  # type: ignore[misc]
        """A layer's experts in two memories."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            number = layer_of(self.layer_name, placing.residency.layers)
            if placing.residency.cold_of(number):
                check_method(self.layer_name, self.quant_method)
            placed = placing.built(
                number, self.layer_name, self.local_num_experts, self.top_k, dict(self.named_parameters(recurse=False))
            )
            _wrap(self, placing, placed)


def _wrap(experts: RoutedExperts, placing: Placing, placed: Placed) -> None:
    method = experts.quant_method
    process = method.process_weights_after_loading

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


def routed(config: VllmConfig) -> Iterator[MoERunner]:
    """All layers with routed experts that were built, drafts too. Raises ResidencyError for one of another make."""
    for name in config.compilation_config.static_all_moe_layers:
        runner = config.compilation_config.static_forward_context[name]
        if not isinstance(runner, MoERunner) or not isinstance(runner.router, BaseRouter):
            raise ResidencyError(f"{name}: {type(runner).__name__} does not choose its experts by vLLM's router")
        yield runner


def direct(runner: MoERunner, places: torch.Tensor, loads: torch.Tensor, unpadded: list[torch.Tensor]) -> None:
    """Have a layer's router say physical ids, and count them: `places` int64 [experts, 1], `loads` int32 [experts].
    Both keep their addresses for as long as the engine runs: graphs hold them."""
    runner.router.eplb_state = EplbLayerState(
        expert_load_view=loads,
        logical_to_physical_map=places,
        logical_replica_count=torch.ones_like(places[:, 0]),
        should_record_tensor=torch.ones((), dtype=torch.bool, device=places.device),
        num_unpadded_tokens_tensors=unpadded,
    )
