"""The adapter of the embedded engine: a small model on the CPU, run by embedded_child.py.

Touches the model folder (model.py). Settings of llama.cpp's server itself are in embedded_child.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from appliance.box import checks
from appliance.box.facts import Facts
from appliance.engine import embedded_child, model
from appliance.engine.adapter import LLAMA_STEPS, Launch, Progress, Step, read_step
from appliance.engine.settings import EmbeddedSettings
from gateway.state import EngineProfile, Finding

MEMORY_BYTES = 1_500_000_000
"""With the demo model: 0.9 GB once loaded (measured), plus 256 MiB prompt cache and buffers."""
CONTEXT_TOKENS = 8192
"""One stream's, with the demo model. Source: the model's n_ctx_train."""
FLOOR_TOK_PER_S = 10.0
COLD_TOKENS = 512
OWN_PREDICT_TOKENS = 4096
GRACE_S = 5.0
"""A stop takes 0.1 s; one that arrives during a start waits for the load, 1 to 2 s idle (measured)."""
CHILD = Path(embedded_child.__file__)
TEMPLATE = Path(__file__).with_name("chatml_tools.jinja")


class EmbeddedEngine:
    """An engine as `[engine] kind = "embedded"` describes it."""

    kind = "embedded"
    supervised = True
    environment = ""
    host_tier = None

    def __init__(self, settings: EmbeddedSettings, *, state_dir: Path) -> None:
        self._settings = settings
        self._model_dir = state_dir.absolute() / "model"
        self._slots_dir = state_dir.absolute() / "slots"
        self._model: Path | None = None
        source = settings.model_file
        self._own = source if source is not None and source.suffix.lower() != ".whl" else None
        self.served_model: str | None = self._own.stem if self._own else embedded_child.ALIAS
        self.context_tokens: int | None = None if self._own else CONTEXT_TOKENS
        self.profile = EngineProfile(
            name=f"{self._own.stem} (embedded)" if self._own else "SmolLM2-135M (demo)",
            floor_tok_per_s=FLOOR_TOK_PER_S,
            cold_tokens=COLD_TOKENS,
            streams=embedded_child.STREAMS,
            demo=self._own is None,
        )

    def findings(self, facts: Facts) -> tuple[Finding, ...]:
        """CPU, libraries, package, memory, and disk while the model is still to be fetched or unpacked."""
        return checks.kept(
            checks.engine_package(facts),
            checks.cpu_avx2(facts),
            checks.lib_gomp(facts),
            checks.lib_stdcxx(facts),
            checks.mem_free(facts, MEMORY_BYTES + self._own_bytes()),
            checks.disk_free(facts, self._disk_bytes()),
        )

    def _own_bytes(self) -> int:
        try:
            return self._own.stat().st_size if self._own else 0
        except OSError:
            return 0  # prepare() says what is wrong with the file

    def _disk_bytes(self) -> int:
        if self._own is not None or model.is_ready(self._model_dir):
            return 0
        return model.FETCH_BYTES if self._settings.model_file is None else model.DEMO.size_bytes

    async def prepare(self, progress: Progress) -> None:
        """Fetches, unpacks and checks the model, as far as needed. Raises ModelError."""

        def on_transfer(transfer: model.Transfer) -> None:
            progress(transfer.step, transfer.fraction)

        self._model = await model.ensure_model(self._model_dir, self._settings.model_file, on_transfer)

    def launch(self, port: int, key_file: Path) -> Launch:
        """The child's command line; only after `prepare`."""
        if self._model is None:
            raise RuntimeError("launch() before prepare()")
        threads = self._settings.threads or automatic_threads(_usable_cpus())
        # By its path, and -P: found from any folder, and this folder's module names shadow nothing.
        argv = [sys.executable, "-P", str(CHILD), "--model", str(self._model)]
        argv += ["--port", str(port), "--key-file", str(key_file), "--slots-dir", str(self._slots_dir)]
        argv += ["--threads", str(threads), "--alias", str(self.served_model)]
        if self._own is None:
            argv += ["--template", str(TEMPLATE)]
        else:
            argv += ["--predict", str(OWN_PREDICT_TOKENS)]
        return Launch(
            argv=tuple(argv),
            env=embedded_child.openmp_env(threads) | {"PYTHONUNBUFFERED": "1"},
            url=f"http://{embedded_child.HOST}:{port}",
            key_file=key_file,
            health_path="/health",
            start_timeout_s=self._settings.start_timeout_s,
            grace_s=GRACE_S,
            sequence_folder=self._slots_dir,
        )

    def phase_of(self, line: str) -> Step | None:
        """Steps of llama.cpp's log. Being served is /health's to say, not the log's."""
        return read_step(LLAMA_STEPS, line)


def automatic_threads(cpus: int) -> int:
    """All CPUs but one, at most 4; both of 2."""
    return cpus if cpus <= 2 else min(4, cpus - 1)


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
