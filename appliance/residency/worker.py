"""vLLM's worker with a residency document: `--worker-cls moe_residency.worker.ResidentWorker`.

Touches everything that vLLM's worker touches, and the environment for the document's path. Rules:
- What cannot be carried out stops the engine, before or while the model is built; nothing is left out in silence.
- One line says what sits where, once the weights are there: the supervisor requires it.
- Weights that are put to sleep, reloaded or replaced would come back in another order: all of that is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import vllm
from vllm.v1.worker.gpu_worker import Worker

from .counters import Counters
from .decided import VLLM, check_model, check_seen, check_versions
from .document import FILE, load
from .driver import CudaDriver
from .errors import SAYS, ResidencyError
from .placing import Placing
from .tensors import Ranges
from .whole import move_whole

_REORDERED = "the rows of experts stand in another order than vLLM's; restart the engine, or run without a plan"


def _refused(what: str) -> Callable[..., NoReturn]:
    def refuse(worker: Any, *arguments: Any, **named: Any) -> NoReturn:
        raise ResidencyError(f"{what}: {_REORDERED}")

    return refuse


class ResidentWorker(Worker):  # type: ignore[misc]
    """One rank."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        check_versions(vllm.__version__, torch.__version__)
        from . import vllm_0_26  # not before: another vLLM lacks what it imports

        self._at_vllm = vllm_0_26
        super().__init__(*arguments, **named)
        path = os.environ.get(FILE)
        if not path:
            raise ResidencyError(f"{FILE} is not set; it names the file of moe-appliance plan export --to residency")
        self._residency = load(Path(path))
        if self._residency.engram is not None:
            raise ResidencyError(f"vLLM {VLLM} has no Engram tables; this plan is for another engine: make one without")
        vllm_0_26.check_config(self.vllm_config)
        layers = self.vllm_config.model_config.get_total_num_hidden_layers()
        check_model(self._residency, layers, self.vllm_config.parallel_config.tensor_parallel_size)

    def init_device(self) -> None:
        """As vLLM does; then there is a card to place on."""
        super().init_device()
        driver = CudaDriver()
        card = self.device.index
        self._node = driver.node_of(card)
        self._ranges = Ranges(driver, card, self._node)
        self._placing = Placing(self._residency, self._ranges, self.vllm_config.parallel_config.tensor_parallel_size)

    def load_model(self, **named: Any) -> None:
        """As vLLM does, layers placed as they are built; then ids are mapped and counted, before all profiling."""
        with self._at_vllm.placed_by(self._placing):
            super().load_model(**named)
        check_seen(self._residency, self._placing.layers)
        move_whole(self._residency.tensors, self.model_runner.get_model(), self._ranges)
        runners = [(runner, self._placing.of(runner.layer_name)) for runner in self._at_vllm.routed(self.vllm_config)]
        most = max((len(placed.rows) for _, placed in runners), default=0)
        self._counters = Counters(len(runners), most, self.device)
        for index, (runner, placed) in enumerate(runners):
            places = torch.tensor(placed.places, dtype=torch.int64, device=self.device)[:, None].contiguous()
            is_draft = placed.number >= self._residency.layers
            unpadded = self._counters.unknown if is_draft else self._counters.unpadded
            self._at_vllm.direct(runner, places, self._counters.loads[index, : len(places)], unpadded)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._say()

    def _say(self) -> None:
        """Not by vLLM's logger: a level or a configuration of the operator's may silence that."""
        on_card, on_host = self._ranges.device_bytes + self._placing.plain_bytes, self._ranges.host_bytes
        sys.stderr.write(
            f"{SAYS}: rank {self.rank}: placed: {on_card} bytes in VRAM, {on_host} bytes in host RAM of node "
            f"{self._node}, {len(self._placing.layers)} layers, plan {self._residency.plan_id}\n"
        )
        sys.stderr.flush()

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

    sleep, wake_up = _refused("sleep"), _refused("wake_up")
    update_config, reload_weights = _refused("update_config"), _refused("reload_weights")
    init_weight_transfer_engine = start_weight_update = start_draft_weight_update = _refused("weight update")
    update_weights = finish_weight_update = _refused("weight update")
    save_sharded_state = save_tensorized_model = _refused("saving the weights")
    elastic_ep_execute, add_lora = _refused("elastic expert parallelism"), _refused("add_lora")
