"""Expert placement inside stock vLLM: single experts of a layer in host RAM, the rest in VRAM, unmodified kernels.

Runs in vLLM's own processes, so it imports nothing of the rest of the appliance and only by relative names:
packaging/residency builds this folder as the distribution `moe-residency` (import name `moe_residency`).

    vllm serve MODEL --worker-cls moe_residency.worker.ResidentWorker     with MOE_RESIDENCY_FILE=FILE

FILE is what `moe-appliance plan export PLAN --to residency` writes; options.py says what else the environment may say.
Modules, from the outside in:
- worker (vLLM's worker class), resident (all of one rank's work), vllm_0_26 (all that hangs on vLLM's version), ending;
- placing and whole (which parameter goes where), tensors (torch), vmm (a range of two memories), driver (CUDA);
- staging and lane (cold rows for long steps);
- live (following traffic, step by step), counters, exchange, following and policy (what to exchange), deciding (files);
- document, options, layout, decided, errors: pure, as staging, following and policy are.
"""

from __future__ import annotations

__version__ = "0.1.0"
