"""What a command of vLLM is made from: settings, profile, plan and what is known of the box. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.box.facts import Facts, node_of
from appliance.box.gpu import Gpu
from appliance.engine.vllm.flags import EnvVar, Flag
from appliance.engine.vllm.profiles import PROFILES, Profile
from appliance.engine.vllm.settings import ALLOCATORS, VllmSettings, is_folder
from appliance.plan.schema import Plan
from appliance.units import GIB

INHERITED = ("NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_")
"""What the daemon's own environment says about cards that reach each other goes to every process of the engine."""
WITHHELD = ("PYTHON", "TORCHINDUCTOR_", "TRITON_", "VIRTUAL_ENV", "VLLM_", *ALLOCATORS)
"""What begins so in the daemon's own environment was meant for another program: only [engine] env and the adapter say
what the engine has of it."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the box. `cards`: those that the engine may see, in CUDA's order, None = nobody asked; `numa`:
    the node of each of them, `capabilities`: its compute capability; `nodes`: how many NUMA nodes the host has, 0 =
    unknown. `peers`: an all-reduce between these very cards with peer access was right; None = nobody tried. `numactl`:
    the program is there. `environ`: the daemon's environment."""

    cards: int | None = None
    numa: tuple[int | None, ...] = ()
    capabilities: tuple[tuple[int, int] | None, ...] = ()
    nodes: int = 0
    peers: bool | None = None
    numactl: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)


def known(facts: Facts | None, seen: tuple[Gpu, ...], *, numactl: bool, environ: Mapping[str, str]) -> Known:
    """From the last look at the box; `seen`: the cards that the engine may see."""
    if facts is None or facts.gpus is None:
        return Known(numactl=numactl, environ=environ)
    deep = facts.deep
    measured = (
        deep is not None
        and deep.nccl_p2p is not None
        and {uuid for _, uuid in deep.cards} >= {gpu.uuid for gpu in seen}
    )
    return Known(
        cards=len(seen),
        numa=tuple(node_of(gpu, facts.host) for gpu in seen),
        capabilities=tuple(gpu.capability for gpu in seen),
        nodes=len(facts.host.nodes) if facts.host is not None else 0,
        peers=bool(deep.nccl_p2p) and not deep.nccl_error if measured and deep is not None else None,
        numactl=numactl,
        environ=environ,
    )


@dataclass(frozen=True, slots=True)
class Request:
    """`version`: of the vLLM that will run; `model`: a folder or the hub's name; `template`: a Jinja file that is
    there, None = none is known. `streams`: how many the gateway sends at once. `placed`, `placed_env`: what tells vLLM
    of the plan's cold experts. `socket`: where it listens. `cache`: the folder for what is compiled, "" = where each
    library puts it."""

    settings: VllmSettings
    version: tuple[int, ...]
    model: str
    socket: str
    streams: int
    template: str | None = None
    plan: Plan | None = None
    placed: tuple[Flag, ...] = ()
    placed_env: tuple[EnvVar, ...] = ()
    box: Known = Known()
    cache: str = ""

    @property
    def profile(self) -> Profile:
        """What `[engine] profile` names."""
        return PROFILES[self.settings.profile]

    @property
    def served_model(self) -> str:
        """The model id of the engine: as it is said, else the last part of the model's name."""
        return self.settings.served_model or served_name(self.model)

    @property
    def tensor_parallel(self) -> int:
        """Cards that share each layer."""
        planned = self.plan.topology.tp if self.plan is not None else None
        return self.settings.tensor_parallel or planned or self.profile.tensor_parallel

    @property
    def ranks(self) -> int:
        """Cards in all, over all boxes."""
        return self.tensor_parallel * self.settings.pipeline_parallel

    @property
    def kv_bytes(self) -> tuple[int, str] | None:
        """KV cache of a card and who says so; None = vLLM takes what is left."""
        if self.settings.kv_cache_gib is not None:
            return int(self.settings.kv_cache_gib * GIB), "[engine] kv_cache_gib"
        if self.plan is not None and self.plan.targets.kv_bytes is not None:
            return self.plan.targets.kv_bytes, "plan, targets.kv_bytes"
        return None if self.profile.kv_bytes is None else (self.profile.kv_bytes, f"profile {self.profile.name}")

    @property
    def tool_call_parser(self) -> str:
        """By name, "" = none."""
        said = self.settings.tool_call_parser
        return self.profile.tool_call_parser if said is None else said

    @property
    def reasoning_parser(self) -> str:
        """By name, "" = none."""
        said = self.settings.reasoning_parser
        return self.profile.reasoning_parser if said is None else said


def withheld(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The names in it that the engine does not get."""
    return tuple(sorted(name for name in environ if name.startswith(WITHHELD)))


def served_name(model: str) -> str:
    """The last part of a folder's path or of a hub's name."""
    return model.rstrip("/").rpartition("/")[2] or model


def from_hub(model: str) -> bool:
    """Whether vLLM has to fetch it."""
    return not is_folder(model)
