"""Expert placement inside stock vLLM: single experts of a layer in host RAM, the rest in VRAM, unmodified kernels.

Runs in vLLM's own processes, so it imports nothing of the rest of the appliance and only by relative names:
packaging/residency builds this folder as the distribution `moe-residency` (import name `moe_residency`).

    vllm serve MODEL --worker-cls moe_residency.worker.ResidentWorker     with MOE_RESIDENCY_FILE=FILE

FILE is what `moe-appliance plan export PLAN --to residency` writes. Modules, from the outside in: worker (vLLM's worker
class), placing (which parameter goes where), vllm_0_26 (all that hangs on vLLM's version), tensors (torch), vmm (a
range of two memories), driver (CUDA), document and layout (pure).
"""

from __future__ import annotations

__version__ = "0.1.0"
