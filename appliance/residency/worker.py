"""vLLM's worker with a residency document: `--worker-cls moe_residency.worker.ResidentWorker`.

Touches everything that vLLM's worker touches, and the environment for the document's path. Rules:
- What cannot be carried out stops the engine, before or while the model is built; nothing is left out in silence.
- One line says what sits where, once the weights are there: the supervisor requires it.
- Weights that are put to sleep, reloaded or replaced would come back in another order: all of that is refused.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, NoReturn

import torch
from vllm.v1.worker.gpu_worker import Worker

from . import vllm_0_26
from .counters import Counters
from .decided import check_seen, layer_of
from .document import load
from .driver import CudaDriver
from .errors import SAYS, ResidencyError
from .placing import Placing
from .tensors import Ranges
from .whole import move_whole

FILE = "MOE_RESIDENCY_FILE"
_to_vllm = logging.getLogger("vllm.moe_residency")


class ResidentWorker(Worker):  # type: ignore[misc]
    """One rank."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        vllm_0_26.check_version()
        super().__init__(*arguments, **named)
        path = os.environ.get(FILE)
        if not path:
            raise ResidencyError(f"{FILE} is not set; it names the file of moe-appliance plan export --to residency")
        self._residency = load(Path(path))
        if self._residency.engram is not None:
            raise ResidencyError(f"vLLM {vllm_0_26.VLLM} has no Engram tables; this plan is for another engine")
        vllm_0_26.check_config(self.vllm_config)

    def init_device(self) -> None:
        """As vLLM does; then layers are placed from the first one on."""
        super().init_device()
        driver = CudaDriver()
        card = self.device.index
        self._node = driver.node_of(card)
        self._ranges = Ranges(driver, card, self._node)
        self._placing = Placing(self._residency, self._ranges, self.vllm_config.parallel_config.tensor_parallel_size)
        vllm_0_26.hook(self._placing)

    def load_model(self, **named: Any) -> None:
        """As vLLM does; then ids are mapped and counted, before anything is profiled or captured."""
        super().load_model(**named)
        check_seen(self._residency, self._placing.layers)
        move_whole(self._residency.tensors, self.model_runner.get_model(), self._ranges)
        self._counters = Counters(len(self._placing.layers), self._residency.experts, self.device)
        for index, runner in enumerate(vllm_0_26.routed(self.vllm_config)):
            placed = self._placing.layers[layer_of(runner.layer_name, self._residency.layers)]
            places = torch.tensor(placed.places, dtype=torch.int64, device=self.device)[:, None].contiguous()
            is_draft = placed.number >= self._residency.layers
            unpadded = self._counters.unknown if is_draft else self._counters.unpadded
            vllm_0_26.direct(runner, places, self._counters.loads[index], unpadded)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        _to_vllm.info(
            "%s: rank %d: experts: %d bytes in VRAM, %d bytes in host RAM of node %d, %d layers, plan %s",
            SAYS,
            self.rank,
            self._ranges.device_bytes + self._placing.plain_bytes,
            self._ranges.host_bytes,
            self._node,
            len(self._placing.layers),
            self._residency.plan_id,
        )

    def compile_or_warm_up_model(self) -> Any:
        """As vLLM does; its made-up requests are not counted."""
        done = super().compile_or_warm_up_model()
        self._counters.begin()
        return done

    def execute_model(self, scheduler_output: Any) -> Any:
        """One step."""
        self._counters.step(scheduler_output.total_num_scheduled_tokens)
        return super().execute_model(scheduler_output)

    def shutdown(self) -> None:
        """As vLLM does; then the ranges go, when nothing runs on them any more."""
        super().shutdown()
        if ranges := getattr(self, "_ranges", None):
            ranges.free_all()

    def sleep(self, level: int = 1) -> NoReturn:
        """Refused."""
        raise ResidencyError("sleep would move weights that the plan has placed")

    def reload_weights(self, *arguments: Any, **named: Any) -> NoReturn:
        """Refused."""
        raise ResidencyError("weights that are reloaded come back in another order; restart the engine instead")

    init_weight_transfer_engine = start_weight_update = update_weights = finish_weight_update = reload_weights
    start_draft_weight_update = elastic_ep_execute = add_lora = reload_weights
