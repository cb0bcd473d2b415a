"""The table `[engine]` with kind = "vllm". Pure."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from appliance.engine.tables import Declared, PathSetting, check_env
from appliance.engine.vllm.arguments import parse
from appliance.engine.vllm.nodes import Nodes
from appliance.residency.options import FOLLOW_MIB_PER_S, RESIDENCY

ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The two names of the setting of torch's allocator."""
DEV_MODE = "VLLM_SERVER_DEV_MODE"
_TIER_FLAG = "--kv-offloading-size"
_OURS = {
    "VLLM_API_KEY": "the appliance makes a new key at every start",
    "VLLM_PLUGINS": "name the plugins in [engine] plugins, with the log line that shows each of them",
}

Text = Annotated[str, Field(min_length=1)]
Parallel = Annotated[int, Field(strict=True, ge=1, le=64)]


class VllmSettings(Declared):
    """`[engine] kind = "vllm"`: vLLM on a Unix socket, started, watched and restarted by the appliance.
    `moe-appliance engine command` prints what is run, and why."""

    kind: Literal["vllm"]
    """Which engine: "embedded", "vllm", "command" or "external"."""
    profile: Literal["vllm-generic", "vllm-cpu-tiny", "deepseek-v4.1-flash-exl3-2x-rtx-pro-6000"] = "vllm-generic"
    """Flags that are known to go together: "vllm-generic" any model on cards, "vllm-cpu-tiny" a small one without
    cards, for trials, "deepseek-v4.1-flash-exl3-2x-rtx-pro-6000" the public recipe for two cards. Default
    "vllm-generic"."""
    environment: Text | None = None
    """Which environment of `moe-appliance engine list` it runs in. Default: none, the profile's."""
    python: PathSetting | None = None
    """A Python of your own that has vLLM, instead of an environment. Default: none."""
    model: Text | None = None
    """The model: a folder, beginning with / or ., or a name that vLLM's hub knows. Default: none, the folder of
    `[plan] checkpoint`."""
    revision: Text | None = None
    """The hub's commit of `model`. Default: none, the newest."""
    tensor_parallel: Parallel | None = None
    """Cards that share each layer. Default: none, as the plan says, else the profile, else 1."""
    pipeline_parallel: Parallel = 1
    """Groups of cards that have different layers. Default 1."""
    kv_cache_gib: Annotated[float, Field(strict=True, gt=0, le=4096)] | None = None
    """KV cache on each card, GiB; without cards, in RAM. Default: none, as the plan says, else the profile, else what
    gpu_memory_utilization leaves."""
    gpu_memory_utilization: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    """Share of a card's memory that vLLM may take. Default: none, the profile's, else vLLM's 0.9."""
    max_batched_tokens: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] | None = None
    """Tokens that one step computes at most: smaller steps freeze running streams less while a prompt is read. Default:
    none, the profile's, else vLLM's."""
    chat_template: PathSetting | None = None
    """A Jinja file. Default: none, chat_template.jinja in the model's folder where there is one."""
    tool_call_parser: str | None = None
    """vLLM's parser for tool calls, by name; "" = none, then tools are refused. Default: the profile's."""
    reasoning_parser: str | None = None
    """vLLM's parser for thoughts, by name; "" = none. Default: the profile's."""
    thinking: Literal["on", "off", "as the model does"] = "as the model does"
    """Whether the model thinks before it answers when a request does not say: "on", "off" or "as the model does".
    Default "as the model does"."""
    trust_remote_code: Annotated[bool, Field(strict=True)] = False
    """Run Python code that comes with the model. Default false."""
    plugins: dict[str, str] = Field(default={})
    """vLLM plugins to load, and no others: name -> a regular expression of a log line that only the plugin writes. A
    start without that line has failed. Default: none, the profile's."""
    placement: Literal["none", "residency", "uva", "command"] = "none"
    """How the engine is told which experts `[plan]` moves to host RAM: "none", "residency", single experts of stock
    vLLM 0.26.0 by a plugin that comes with the appliance, "uva", vLLM's own offload, whole layers only, or "command",
    plan_args. Default "none"; with a plan that moves experts that is refused."""
    follow_mib_per_s: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = FOLLOW_MIB_PER_S
    """For placement = "residency": experts in host RAM that are visited change places with some in VRAM that are not,
    while the engine serves, for no more than so many MiB a second of the link to each card. 0 = all stay where the plan
    puts them. Default 2048."""
    staging_tokens: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] | None = None
    """For placement = "residency": in a step of more tokens a layer that visits many of its experts in host RAM reads
    them from VRAM, where all of them are copied ahead. 0 = no VRAM is set aside for it, and long prompts are read
    several times slower. Default: as many as bring 64 to each expert, 1024 for 128 experts of which a token visits
    8."""
    plan_args: tuple[str, ...] = ()
    """For placement = "command": arguments that tell an engine with such a patch, with `{plan_file}`, `{experts_json}`,
    `{engram}` and `{tensors}` filled in from the plan. Default: none."""
    args: tuple[str, ...] = ()
    """More arguments for vLLM, put last; one that the appliance would give as well takes its place. Default: none."""
    env: dict[str, str] = Field(default={})
    """Additions to vLLM's environment. No secrets. Default: none."""
    host_kv_gib: Annotated[float, Field(strict=True, ge=0, le=65_536)] = 0.0
    """KV cache in host RAM, GiB over all cards; a plan counts it as `kv_tier_bytes`. The warm-up proves that a prompt
    comes back from it, or starts the engine again without it and says why. vLLM pins each layer's part as a power of
    two, up to twice as much in all, unless env has `VLLM_USE_SIMPLE_KV_OFFLOAD = "1"`. 0 disables. Default 0."""
    nodes: Nodes = Nodes()
    """The table `[engine.nodes]`: one model over several boxes. Default: this box alone."""
    start_timeout_s: Annotated[float, Field(strict=True, gt=0, le=86_400)] = 3600.0
    """A start that does not serve after this long, seconds, has failed. Default 3600."""
    grace_s: Annotated[float, Field(strict=True, ge=0, le=600)] = 30.0
    """Time between SIGTERM and SIGKILL at a stop, seconds. 0 = SIGKILL at once. Default 30."""
    hang_s: Annotated[float, Field(strict=True, ge=0, le=86_400)] = 180.0
    """An engine that has work and moves no token for this long, seconds, hangs and is started anew. 0 disables. Default
    180."""
    canary_s: Annotated[float, Field(strict=True, ge=0, le=3600)] = 60.0
    """An idle engine is asked for one token now and then, and hangs when none comes in this long, seconds. 0 disables.
    Default 60."""
    allow_degraded: Annotated[bool, Field(strict=True)] = False
    """Serve although the warm-up saw that something which agents need does not work. Default false."""

    @model_validator(mode="after")
    def _args_and_env(self) -> VllmSettings:
        given = {argument.setting for argument in parse(self.args)}
        if self.host_kv_gib and _TIER_FLAG in given:
            raise ValueError(f"args: {_TIER_FLAG} and host_kv_gib are the same; leave it out of args")
        check_env(self.env)
        for name in self.env:
            if name.startswith(RESIDENCY):
                raise ValueError(f"env: {name} is set by the appliance; follow_mib_per_s and staging_tokens are yours")
        for name, why in _OURS.items():
            if name in self.env:
                raise ValueError(f"env: {name} is not for you to set: {why}")
        if not self.host_kv_gib and self.env.get(DEV_MODE, "0") != "0":
            raise ValueError(f"env: {DEV_MODE} opens paths that want no key; host_kv_gib sets it when it needs it")
        for name in ALLOCATORS:
            if self.host_kv_gib and "expandable_segments:true" in self.env.get(name, "").lower():
                raise ValueError(f"env: {name} with expandable_segments does not go together with host_kv_gib")
        return self

    @model_validator(mode="after")
    def _goes_together(self) -> VllmSettings:
        if self.host_kv_gib and self.profile == "vllm-cpu-tiny":
            raise ValueError("host_kv_gib needs cards; without them the whole KV cache is in host RAM")
        if self.host_kv_gib and self.nodes.nnodes > 1:
            raise ValueError("host_kv_gib is for one box: the others would not follow what its warm-up turns off")
        if self.python is not None and self.environment is not None:
            raise ValueError("python and environment both say where vLLM is; leave one of them out")
        if self.revision is not None and (self.model is None or is_folder(self.model)):
            raise ValueError("revision is for a model that comes from the hub, by its name")
        if self.placement == "command" and not self.plan_args:
            raise ValueError('plan_args is empty, so nothing would tell the engine of the plan; placement = "command"')
        if self.placement == "residency" and "PYTHONPATH" in self.env:
            raise ValueError('env: PYTHONPATH is where placement = "residency" puts its plugin; leave it out')
        if self.placement != "command" and self.plan_args:
            raise ValueError('plan_args is for placement = "command"')
        for name, pattern in self.plugins.items():
            if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
                raise ValueError(f"plugins: {name!r} is not a plugin's name")
            try:
                matches_all = re.compile(pattern).search("") is not None
            except re.error as error:
                raise ValueError(f"plugins: the pattern of {name} is no regular expression: {error}") from None
            if matches_all:
                raise ValueError(f"plugins: the pattern of {name} fits every line, so that it would show nothing")
        return self


def is_folder(model: str) -> bool:
    """Whether `model` is a folder rather than a name of the hub: by how it begins."""
    return model.startswith(("/", "."))
