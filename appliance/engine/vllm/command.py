"""The command of a vLLM engine: every flag and variable with its reason. Pure.

Rules:
- Nothing without a reason and a source. A flag that the release in use does not have is left out.
- No secret: the key goes in by launcher.py, from its file.
- appliance.toml's args come last and take the place of flags that are the same setting; its env wins over all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from appliance.engine.vllm import nodes
from appliance.engine.vllm.arguments import draft_tokens, parse, setting
from appliance.engine.vllm.caches import cache_env
from appliance.engine.vllm.flags import Build, EnvVar, Flag, capture_sizes, known_to
from appliance.engine.vllm.links import link_env, link_flags, numa_flags
from appliance.engine.vllm.request import INHERITED, Request, from_hub, withheld
from appliance.engine.vllm.settings import ALLOCATORS, DEV_MODE, VllmSettings

TOML = "appliance.toml"
MEASURED = "measured with vLLM 0.26.0"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True, slots=True)
class Command:
    """`tier`: what starts the KV tier in host RAM; a start that goes without it leaves that out. `replaced`: flags of
    ours whose place appliance.toml's args took. `withheld`: names in the daemon's own environment that the engine does
    not get."""

    flags: tuple[Flag, ...]
    env: tuple[EnvVar, ...]
    tier: tuple[Flag, ...] = ()
    replaced: tuple[Flag, ...] = ()
    withheld: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """The flags as words, without the tier."""
        return tuple(word for flag in self.flags for word in flag.words)


def command_of(request: Request) -> Command:
    """What is run."""
    ours = [flag for flag in _flags(request) if known_to(flag.name, request.version)]
    theirs = [
        Flag(argument.name, argument.values, "appliance.toml says so", "[engine] args", "operator")
        for argument in parse(request.settings.args)
    ]
    taken = {setting(flag.name) for flag in theirs}
    kept = tuple(flag for flag in ours if setting(flag.name) not in taken)
    replaced = tuple(flag for flag in ours if setting(flag.name) in taken)
    tier, kept_back = tier_flags(request.settings), withheld(request.box.environ)
    return Command((*kept, *theirs), _env(request), tier, replaced, kept_back)


def tier_flags(settings: VllmSettings) -> tuple[Flag, ...]:
    """What starts the KV tier in host RAM."""
    if not settings.host_kv_gib:
        return ()
    why = "a prompt that the cards' cache dropped comes back from host RAM instead of being read again"
    return (Flag("--kv-offloading-size", (f"{settings.host_kv_gib:.12g}",), why, "[engine] host_kv_gib"),)


def _flags(request: Request) -> Iterator[Flag]:
    yield from _model(request)
    if not request.settings.nodes.headless:
        yield from _server(request)
    yield from _sizes(request)
    yield from _parallel(request)
    yield from request.profile.flags
    yield from _talk(request)
    yield from request.placed


def _model(request: Request) -> Iterator[Flag]:
    settings = request.settings
    source = "[engine] model" if settings.model is not None else "[plan] checkpoint"
    yield Flag("--model", (request.model,), "the weights to serve", source)
    if settings.revision is not None:
        yield Flag("--revision", (settings.revision,), "this commit and no other", "[engine] revision")
    yield Flag(
        "--served-model-name",
        (request.served_model,),
        "the name by which the gateway asks, instead of a path",
        "[engine] served_model" if settings.served_model else source,
    )
    if settings.trust_remote_code:
        yield Flag(
            "--trust-remote-code", (), "the operator lets the model's own code run", "[engine] trust_remote_code"
        )


def _server(request: Request) -> Iterator[Flag]:
    yield Flag(
        "--uds", (request.socket,), "a socket in a 0700 folder: some of vLLM's paths want no key", "vLLM, measured"
    )
    yield Flag(
        "--enable-prompt-tokens-details",
        (),
        "usage says how much of a prompt came from the cache; the gateway learns from it",
        MEASURED,
    )
    yield Flag(
        "--enable-per-request-metrics",
        (),
        "a whole reply, and a stream's usage, say how long it waited and how fast it was",
        "vLLM, entrypoints/openai/cli_args.py",
    )
    yield Flag("--enable-request-id-headers", (), "the gateway's request id is in vLLM's log as well", MEASURED)
    yield Flag(
        "--enable-force-include-usage",
        (),
        "tokens are counted by vLLM in every chunk, so that a reply that is broken off is counted as well",
        MEASURED,
    )
    yield Flag(
        "--disable-access-log-for-endpoints",
        ("/health,/metrics",),
        "the daemon asks every other second, and the log's last lines are for faults",
        "vLLM, entrypoints/openai/cli_args.py",
    )


def _sizes(request: Request) -> Iterator[Flag]:
    settings, profile, streams = request.settings, request.profile, request.streams
    of_profile = f"profile {profile.name}"
    why = "as many sequences as the gateway sends; what is above waits in the gateway, where people see why"
    yield Flag("--max-num-seqs", (str(streams),), why, "the cap: [engine] streams, or the plan's profile")
    yield Flag("--max-num-active-seqs", (str(streams),), why, "the cap: [engine] streams, or the plan's profile")
    context = settings.context_tokens or profile.context_tokens
    if context is not None:
        source = "[engine] context_tokens" if settings.context_tokens else of_profile
        yield Flag("--max-model-len", (str(context),), "the longest prompt and answer together", source)
    step = settings.max_batched_tokens or profile.max_batched_tokens
    if step is not None:
        source = "[engine] max_batched_tokens" if settings.max_batched_tokens else of_profile
        why = "a step of a long prompt freezes the streams that run, for as long as it takes"
        yield Flag("--max-num-batched-tokens", (str(step),), why, source)
    if request.kv_bytes is not None:
        size, source = request.kv_bytes
        where = "of each card" if profile.cuda else "in RAM"
        why = f"KV cache {where}, bytes; nothing is guessed from a trial run"
        yield Flag("--kv-cache-memory-bytes", (str(size),), why, source)
    if not profile.cuda:
        return
    share = settings.gpu_memory_utilization or profile.gpu_memory_utilization
    if share is not None:
        source = "[engine] gpu_memory_utilization" if settings.gpu_memory_utilization else of_profile
        yield Flag("--gpu-memory-utilization", (f"{share:g}",), "share of a card that vLLM may take", source)
    drafted = draft_tokens(settings.args, profile.speculative)
    if drafted is not None:  # else vLLM knows it, and takes sizes of its own
        yield Flag(
            "--cudagraph-capture-sizes",
            tuple(map(str, capture_sizes(streams, drafted))),
            f"reaches {streams} streams x {1 + drafted} tokens; a larger step would run without a graph",
            "flags.py, capture_sizes",
        )


def _parallel(request: Request) -> Iterator[Flag]:
    settings, plan = request.settings, request.plan
    source = "[engine] tensor_parallel" if settings.tensor_parallel else ""
    source = source or ("plan, topology.tp" if plan is not None else f"profile {request.profile.name}")
    yield Flag("--tensor-parallel-size", (str(request.tensor_parallel),), "cards that share each layer", source)
    if settings.pipeline_parallel > 1:
        size = (str(settings.pipeline_parallel),)
        yield Flag("--pipeline-parallel-size", size, "groups of cards with layers of their own", "[engine]")
    for name, value, why, where in nodes.flags(settings.nodes):
        yield Flag(name, () if value is None else (value,), why, where)
    yield from link_flags(request)
    yield from numa_flags(request)


def _talk(request: Request) -> Iterator[Flag]:
    """How text becomes tokens, and tokens become thoughts and tool calls."""
    settings = request.settings
    if request.template is not None:
        why = "without a named template vLLM moves a later system message to the top, and what it cached is lost"
        source = "[engine] chat_template" if settings.chat_template else "the model's folder"
        yield Flag("--chat-template", (request.template,), why, f"{source}; {MEASURED}")
    if request.tool_call_parser:
        source, build = _parser(request, "tool_call_parser")
        words = (request.tool_call_parser,)
        yield Flag("--tool-call-parser", words, "what the model's tool calls look like", source, build)
        yield Flag("--enable-auto-tool-choice", (), "agents let the model choose; without it they get 400", MEASURED)
    if request.reasoning_parser:
        source, build = _parser(request, "reasoning_parser")
        words = (request.reasoning_parser,)
        yield Flag("--reasoning-parser", words, "what the model's thoughts look like", source, build)
    if settings.thinking != "as the model does":
        on = "true" if settings.thinking == "on" else "false"
        yield Flag(
            "--default-chat-template-kwargs",
            (f'{{"enable_thinking":{on},"thinking":{on}}}',),
            "where a request does not say; a template knows one of the two names and passes over the other",
            "[engine] thinking",
        )


def _parser(request: Request, key: str) -> tuple[str, Build]:
    """Who chose a parser, and whose vLLM has it."""
    if getattr(request.settings, key) is not None:
        return f"[engine] {key}", "pinned"
    return f"profile {request.profile.name}", "operator" if request.profile.operator_parsers else "pinned"


def _env(request: Request) -> tuple[EnvVar, ...]:
    """The last of each name wins."""
    settings, inherited = request.settings, request.box.environ
    merged: dict[str, EnvVar] = {}
    of_nodes = (EnvVar(*one) for one in nodes.variables(settings.nodes))
    ours = (*_ours(request), *cache_env(request))
    for one in (*ours, *request.profile.env, *link_env(request), *of_nodes, *request.placed_env):
        merged[one.name] = one
    for name in sorted(inherited):
        if name.startswith(INHERITED):
            why = "the operator's choice of how cards reach each other, for every process of the engine"
            merged[name] = EnvVar(name, inherited[name], why, "the daemon's environment")
    for name, value in settings.env.items():
        merged[name] = EnvVar(name, value, "appliance.toml says so", "[engine] env")
    return tuple(merged.values())


def _ours(request: Request) -> Iterator[EnvVar]:
    settings, profile = request.settings, request.profile
    plugins = ",".join(settings.plugins or profile.plugins)
    yield EnvVar(
        "VLLM_PLUGINS",
        plugins,
        "these plugins and no others" if plugins else "no plugin: by itself vLLM loads all that are installed",
        "vLLM, plugins/__init__.py",
    )
    ready_s = int(settings.start_timeout_s)
    why = "vLLM's own limit for a start ends after the appliance's, which says what took so long"
    yield EnvVar("VLLM_ENGINE_READY_TIMEOUT_S", str(ready_s), why, "[engine] start_timeout_s")
    yield EnvVar("VLLM_NO_USAGE_STATS", "1", "nothing of the box is told to anybody", "vLLM, usage/usage_lib.py")
    why = "the steps of a start, and why it failed, are read from the log"
    yield EnvVar("VLLM_CONFIGURE_LOGGING", "1", why, "vLLM, logger.py")
    yield EnvVar("VLLM_LOGGING_LEVEL", "INFO", why, "vLLM, logger.py")
    yield EnvVar("VLLM_LOGGING_COLOR", "0", why, "vLLM, logger.py")
    if not from_hub(request.model):
        for name in OFFLINE:
            yield EnvVar(name, "1", "the model is a folder; nothing is looked up elsewhere", "huggingface_hub")
    if profile.cuda:
        why = "cards are counted as the driver and nvidia-smi count them"
        yield EnvVar("CUDA_DEVICE_ORDER", "PCI_BUS_ID", why, "CUDA C++ Programming Guide, environment variables")
    if profile.engram_disk:
        engram = request.plan.host.engram if request.plan is not None else None
        value = "1" if engram is not None and engram.mode == "disk" else "0"
        why = "whether the Engram tables stay on disk, or are pinned in host RAM"
        yield EnvVar(profile.engram_disk, value, why, "the plan" if engram is not None else f"profile {profile.name}")
    yield from _memory(request)


def _memory(request: Request) -> Iterator[EnvVar]:
    """Torch's allocator, and the paths by which the tier in host RAM is proven."""
    if request.settings.host_kv_gib:
        why = "the warm-up empties the cards' cache to see a prompt come back; only the gateway reaches the socket"
        yield EnvVar(DEV_MODE, "1", why, "[engine] host_kv_gib")
    elif request.profile.expandable_segments:
        why = "less of a card is lost between its allocations; what the tier pins must stay where it is"
        yield EnvVar(ALLOCATORS[0], "expandable_segments:True", why, f"profile {request.profile.name}")
