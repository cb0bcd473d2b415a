"""How the cards of one engine reach each other and their memory: NCCL, all-reduce, NUMA. Pure.

Cards whose matrix says that they reach each other may still move no byte, and a boot then hangs at its first
collective with a silent log. So peer access stays off until `moe-appliance preflight --deep` has seen it work.
Source: nccl#1999, vllm#51513, rtx6kpro#15, club-3090#873.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.engine.vllm.flags import EnvVar, Flag
from appliance.engine.vllm.request import Request

_PROBE = "moe-appliance preflight --deep"


def peers_trusted(request: Request) -> bool:
    """Whether one card may read another's memory: there is one alone, or it was seen to work."""
    return request.ranks == 1 or request.box.peers is True


def link_flags(request: Request) -> Iterator[Flag]:
    """What must be off as well where peer access is."""
    if not request.profile.cuda or request.ranks == 1:
        return
    if not peers_trusted(request):
        yield Flag("--disable-custom-all-reduce", (), "it reads the other card's memory directly", _source(request))
        if all(flag.name != "--kernel-config" for flag in request.profile.flags):
            why = "with peer access off, boots hung in FlashInfer's autotuning"
            yield Flag("--kernel-config", ('{"enable_flashinfer_autotune":false}',), why, "rtx6kpro#15")
    elif not request.profile.custom_all_reduce:
        why = "vLLM's own all-reduce fails while graphs are captured on these cards"
        yield Flag("--disable-custom-all-reduce", (), why, f"profile {request.profile.name}")


def link_env(request: Request) -> Iterator[EnvVar]:
    """NCCL's settings; symmetric memory stays off in any case."""
    if not request.profile.cuda:
        return
    why = "it needs NVLink multicast, which one process cannot have to itself on a shared host"
    yield EnvVar("VLLM_ALLREDUCE_USE_SYMM_MEM", "0", why, "vLLM, envs.py: on by default")
    if not peers_trusted(request):
        why = "peer access between these cards is not known to work, and a boot would hang without a word"
        yield EnvVar("NCCL_P2P_DISABLE", "1", why, _source(request))


def _source(request: Request) -> str:
    return f"{_PROBE} failed" if request.box.peers is False else f"{_PROBE} was not run on these cards"


def wants_numa(request: Request) -> bool:
    """Whether binding ranks to nodes means something here: cards on a host with several nodes, all of them known."""
    box = request.box
    return (
        request.profile.cuda
        and request.settings.nodes.nnodes == 1
        and box.nodes > 1
        and len(box.numa) >= request.ranks
        and all(node is not None for node in box.numa)
    )


def numa_flags(request: Request) -> Iterator[Flag]:
    """Each rank on the processors and in the memory next to its card."""
    if wants_numa(request) and request.box.numactl:
        found = tuple(str(node) for node in request.box.numa if node is not None)
        why = "each rank and what it pins next to its card"
        yield Flag("--numa-bind", (), why, "this box's cards and nodes; vLLM, config/parallel.py")
        yield Flag("--numa-bind-nodes", found, why, "this box's cards and nodes")
