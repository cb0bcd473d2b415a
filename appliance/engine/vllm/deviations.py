"""Where the profile for two cards is not the public recipe, and why. Pure.

A test compares the profile with the recipe (tests/data/recipe-2x-rtx-pro-6000.json) item by item, both ways: whatever
differs stands here with both values, and nothing else does. The recipe is the one with its Engram tables in host RAM.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deviation:
    """`item`: a flag or a variable; `recipe`, `ours`: its values, None = it is not there, () = a switch. In `ours`
    `{socket}`, `{model}` and `{cache}` stand for the box's own."""

    item: str
    recipe: tuple[str, ...] | None
    ours: tuple[str, ...] | None
    reason: str


_LOG = "steps and causes are read from the log"
_CACHE = "another version never meets what this one compiled, and a way back finds its own"
_PACK = "it describes the recipe's own pack of 4-bit tables; for such a pack: [engine] env"
_KERNELS = "it names a folder of kernels that the operator built; with such kernels: [engine] env"
_KNOWN = "the gateway reads it: cached tokens, exact counts, one id in both logs"

DEVIATIONS = (
    Deviation("--api-key", ("{key}",), None, "the key is in no argument, which anybody on the box can read"),
    Deviation("--host", ("0.0.0.0",), None, "vLLM listens on no network: only the gateway reaches it"),
    Deviation("--port", ("8000",), None, "vLLM listens on no network: only the gateway reaches it"),
    Deviation("--uds", None, ("{socket}",), "a socket in a folder that only the appliance may open"),
    Deviation("--model", None, ("{model}",), "the recipe names the model without a flag, as `vllm serve` takes it"),
    Deviation("--trust-remote-code", (), None, "code that comes with a model runs only when the operator says so"),
    Deviation("--max-num-seqs", ("8",), ("4",), "the cap that was validated; more people wait in the gateway"),
    Deviation(
        "--cudagraph-capture-sizes",
        ("1", "2", "4", "6", "8", "12", "16", "24", "32", "48"),
        ("1", "2", "4", "6", "12", "18", "24"),
        "reaches 4 streams x 6 tokens, a size for each number of streams; fewer graphs take less memory and time",
    ),
    Deviation("--kv-cache-memory", ("8589934592",), None, "the recipe shortens the flag's name"),
    Deviation("--kv-cache-memory-bytes", None, ("8589934592",), "the flag's whole name"),
    Deviation("--enable-prompt-tokens-details", None, (), _KNOWN),
    Deviation("--enable-per-request-metrics", None, (), _KNOWN),
    Deviation("--enable-request-id-headers", None, (), _KNOWN),
    Deviation("--enable-force-include-usage", None, (), _KNOWN),
    Deviation(
        "--disable-access-log-for-endpoints", None, ("/health,/metrics",), "the daemon's own questions are not logged"
    ),
    Deviation("VLLM_NO_USAGE_STATS", None, ("1",), "nothing of the box is told to anybody"),
    Deviation("VLLM_CACHE_ROOT", None, ("{cache}/vllm",), _CACHE),
    Deviation("TORCHINDUCTOR_CACHE_DIR", None, ("{cache}/inductor",), _CACHE),
    Deviation("TRITON_CACHE_DIR", None, ("{cache}/triton",), _CACHE),
    Deviation("CUDA_CACHE_PATH", None, ("{cache}/cuda",), _CACHE),
    Deviation("FLASHINFER_WORKSPACE_BASE", None, ("{cache}/flashinfer",), _CACHE),
    Deviation("VLLM_CONFIGURE_LOGGING", None, ("1",), _LOG),
    Deviation("VLLM_LOGGING_LEVEL", None, ("INFO",), _LOG),
    Deviation("VLLM_LOGGING_COLOR", None, ("0",), _LOG),
    Deviation("HF_HUB_OFFLINE", None, ("1",), "the model is a folder; nothing is looked up elsewhere"),
    Deviation("TRANSFORMERS_OFFLINE", None, ("1",), "the model is a folder; nothing is looked up elsewhere"),
    Deviation("CUDA_DEVICE_ORDER", None, ("PCI_BUS_ID",), "cards are counted as the driver counts them"),
    Deviation("VLLM_ALLREDUCE_USE_SYMM_MEM", None, ("0",), "NVLink multicast stays off on hosts that are shared"),
    Deviation("DSV41_ENGRAM_QBITS", ("4",), None, _PACK),
    Deviation("DSV41_ENGRAM_PRESCALE", ("8.0",), None, _PACK),
    Deviation("DSV41_ENGRAM_BLOCK", ("32",), None, _PACK),
    Deviation("DSV41_ENGRAM_DISK_THREADS", ("32",), None, "it is for tables on disk"),
    Deviation("XMOE_EXT", ("xmoe",), None, _KERNELS),
    Deviation("XMOE_DIR", ("/opt/xmoe/build",), None, _KERNELS),
)
