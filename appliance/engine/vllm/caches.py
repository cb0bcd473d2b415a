"""Where vLLM, and what it compiles with, keep what they compiled: a folder that belongs to the environment. Pure.

So another version never meets what this one made, a way back finds its own still warm, and removing an environment
removes it as well. Models that are fetched by name are not in it: those are the same for every version.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.engine.vllm.flags import EnvVar
from appliance.engine.vllm.request import Request

_OWN = "no other environment uses it"


def cache_env(request: Request) -> Iterator[EnvVar]:
    """A variable for each folder. Ranks that Ray starts are on boxes that need not have the path, and vLLM tells them
    its variables (ray/ray_env.py): there all is where each library puts it."""
    nodes = request.settings.nodes
    if not request.cache or (nodes.executor == "ray" and nodes.nnodes > 1):
        return
    for name, folder, why, source in _folders(cuda=request.profile.cuda):
        yield EnvVar(name, f"{request.cache}/{folder}", f"{why}; {_OWN}", source)


def _folders(*, cuda: bool) -> Iterator[tuple[str, str, str, str]]:
    yield "VLLM_CACHE_ROOT", "vllm", "compiled graphs, and what was tuned and seen of the cards", "vLLM, envs.py"
    why = "what is compiled outside vLLM's own graphs, by default in /tmp, which a restart of the service empties"
    yield "TORCHINDUCTOR_CACHE_DIR", "inductor", why, "PyTorch, torch/_inductor"
    yield "TRITON_CACHE_DIR", "triton", "compiled kernels, by default in the home folder", "Triton, runtime/cache.py"
    if cuda:
        why = "what the driver compiles, by default in the home folder"
        yield "CUDA_CACHE_PATH", "cuda", why, "CUDA C++ Programming Guide, environment variables"
        why = "kernels that are built at run time, by default in the home folder"
        yield "FLASHINFER_WORKSPACE_BASE", "flashinfer", why, "FlashInfer, jit/env.py"
