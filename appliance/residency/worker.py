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
from contextlib import ExitStack
from typing import Any, NoReturn

import torch
import vllm
from vllm.v1.worker.gpu_worker import Worker

from .decided import check_model, check_versions
from .document import load
from .ending import ending
from .errors import ResidencyError
from .options import options
from .resident import Resident

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
        self._options = options(os.environ)
        self._residency = load(self._options.file)
        vllm_0_26.check_config(self.vllm_config)
        vllm_0_26.check_tied(self.vllm_config, self._residency.tensors)
        layers = self.vllm_config.model_config.get_total_num_hidden_layers()
        check_model(self._residency, layers, self.vllm_config.parallel_config.tensor_parallel_size)

    def init_device(self) -> None:
        """As vLLM does; then there is a card to place on."""
        super().init_device()
        self._resident = Resident(self._residency, self._options, self._at_vllm, self.device, self.rank)

    def load_model(self, **named: Any) -> None:
        """As vLLM does, layers placed as they are built; then the rest, before all profiling. What fails gives the
        ranges back: an engine in the caller's own process would keep them."""
        with ExitStack() as failed:
            failed.callback(self._resident.close)
            with self._at_vllm.placed_by(self._resident.placing):
                super().load_model(**named)
            runners, steps = self._at_vllm.routed(self.vllm_config), self._at_vllm.steps_of(self.vllm_config)
            with self._at_vllm.booked(self.model_runner):
                line = self._resident.loaded(self.model_runner.get_model(), runners, steps)
            failed.pop_all()
        sys.stderr.write(
            f"{line}\n"
        )  # not by vLLM's logger: a level or a configuration of the operator's may silence it
        sys.stderr.flush()

    def compile_or_warm_up_model(self) -> Any:
        """As vLLM does; its made-up requests are not counted."""
        done = super().compile_or_warm_up_model()
        self._resident.warm()
        return done

    def execute_model(self, scheduler_output: Any) -> Any:
        """One step."""
        with ending():
            self._resident.step(scheduler_output.total_num_scheduled_tokens)
        return super().execute_model(scheduler_output)

    def shutdown(self) -> None:
        """As vLLM does; then the ranges go, when nothing runs on them any more."""
        try:
            super().shutdown()
        finally:
            if resident := getattr(self, "_resident", None):
                resident.close()

    sleep, wake_up = _refused("sleep"), _refused("wake_up")
    update_config, reload_weights = _refused("update_config"), _refused("reload_weights")
    init_weight_transfer_engine = start_weight_update = start_draft_weight_update = _refused("weight update")
    update_weights = finish_weight_update = _refused("weight update")
    save_sharded_state = save_tensorized_model = _refused("saving the weights")
    elastic_ep_execute, add_lora = _refused("elastic expert parallelism"), _refused("add_lora")
