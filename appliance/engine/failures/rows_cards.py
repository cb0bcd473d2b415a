"""Cards, their driver, and what they say to each other. Pure.

Source: vLLM 0.26.0 where tests/data/vllm-0.26.0 has a log of it; else the messages of CUDA, torch and NCCL as read in
their sources and in reports of others.
"""

from __future__ import annotations

from appliance.engine.failures.pattern import row

PREFLIGHT = "moe-appliance preflight"
NCCL_REMEDY = (
    "moe-appliance preflight --deep (a probe with two ranks); until it passes: "
    'NCCL_P2P_DISABLE = "1" in [engine] env and --disable-custom-all-reduce in [engine] args'
)
_SERVING_IMAGE = r"_execute_mm_encoder|embed_multimodal|get_multimodal_embeddings|/multimodal/|vision_tower|visual\("

IMAGE_ROWS = (
    row(
        r"Error|Exception|error",
        "engine.image_request",
        "A request with an image ended the engine for everybody.",
        "--language-model-only in [engine] args (the gateway then refuses images)",
        frames=_SERVING_IMAGE,
        moment="serving",
    ),
)
"""Before all others: whatever the error is, without the image there is none."""

ROWS = (
    row(
        r"CUDA driver version is insufficient|The NVIDIA driver on your system is too old",
        "engine.driver_old",
        "The NVIDIA driver is too old for the engine's CUDA.",
        f"{PREFLIGHT} (says its version); a newer driver, or set [engine] environment to one built for this driver",
        retry=False,
    ),
    row(
        r"[Dd]river/library version mismatch|LibRmVersionMismatch|SYSTEM_DRIVER_MISMATCH|unsupported display driver"
        r"|[Ee]rror 803\b",
        "engine.driver_mismatch",
        "The NVIDIA driver's library and kernel module are of different versions.",
        f"reboot; then: {PREFLIGHT}",
        retry=False,
    ),
    row(
        r"out of bounds for 0 devices|No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device"
        r"|Failed to infer device type",
        "engine.cards_none",
        "The engine sees no card.",
        f"{PREFLIGHT}; nvidia-smi -L; CUDA_VISIBLE_DEVICES in [engine] env must name cards that are there",
    ),
    row(
        r"local rank (?P<rank>\d+) is out of bounds for (?P<cards>\d+) devices|invalid device ordinal",
        "engine.cards_few",
        "The engine was told to use more cards than it sees: {cards}.",
        f"set [engine] tensor_parallel to the cards that there are, or see where the others are: {PREFLIGHT}",
        retry=False,
    ),
    row(
        r"no kernel image is available|is not compatible with the current PyTorch installation",
        "engine.card_unsupported",
        "The engine was not built for cards of this kind.",
        "set [engine] environment to a build for them: moe-appliance engine verify {environment}",
        retry=False,
    ),
    row(
        r"uncorrectable (?:NVLink |ECC )?error|ECC error",
        "engine.ecc",
        "A card reports a memory error that it cannot correct.",
        f"{PREFLIGHT}; with the engine stopped: nvidia-smi --gpu-reset, or reboot",
    ),
    row(
        r"GPU is lost|device is lost|fallen off the bus|CUDA_ERROR_DEVICE_UNAVAILABLE|devices? unavailable",
        "engine.card_lost",
        "A card does not answer any more.",
        f"{PREFLIGHT}; power off, reseat the card and its plug, start",
    ),
    row(
        r"Watchdog caught collective operation timeout|collective operation timeout",
        "engine.nccl_timeout",
        "The cards waited for each other until NCCL's watchdog gave up.",
        NCCL_REMEDY,
    ),
    row(
        r"ncclSystemError|unhandled system error",
        "engine.nccl_system",
        "NCCL could not set up what the cards talk through: shared memory, sockets or pinned memory.",
        f"df -h /dev/shm; ulimit -l; {NCCL_REMEDY}",
    ),
    row(
        r"ncclUnhandledCudaError|unhandled cuda error|NCCL error|DistBackendError|nccl\w*Error",
        "engine.nccl",
        "NCCL failed between the cards.",
        NCCL_REMEDY,
    ),
    row(
        r"(?i)custom[ _]all[ _-]?reduce|flashinfer.*(?:autotun|allreduce)",
        "engine.all_reduce",
        "The engine's own way to add up over the cards failed.",
        "--disable-custom-all-reduce in [engine] args, and FlashInfer's autotuning off: "
        "--kernel-config as moe-appliance engine command shows it",
    ),
    row(
        r"CUDA error: (?P<what>an illegal (?:memory access|instruction)[^\n]*|device-side assert[^\n]*"
        r"|unspecified launch failure|misaligned address|the launch timed out[^\n]*)",
        "engine.cuda_fault",
        "A kernel of the engine failed on a card: {what}.",
        f"{PREFLIGHT} (Xid in the kernel's log); when it comes again, another version of the engine",
    ),
)
