"""Memory: of the cards, of the KV cache, of the host. Pure.

Source: vLLM 0.26.0 on an H200, measured where tests/data/vllm-0.26.0 has a log of it; else read in its source, or in
the messages of torch and the kernel.
"""

from __future__ import annotations

from appliance.engine.failures.pattern import row
from appliance.engine.failures.room import gpu_memory, kv_small, no_kv, taken

_KV_FRAMES = r"kv_offload|offloading_connector"
_PIN_FRAMES = r"/offloader/(?:uva|prefetch)|pin_memory|engram|host_register|cuda_view"
_DEVICE_OOM = r"CUDA (?:error|failure):? '?out of memory"
_PINNED = r"cudaHostRegister failed|cudaHostRegister did not pin|cudaHostAlloc|cuMemHostAlloc"
_OOM = (
    r"(?:torch\.(?:cuda\.)?)?OutOfMemoryError|CUDA out of memory|cudaMalloc failed: out of memory|not enough GPU memory"
)
_HOST_KV = ("engine.host_kv", "set [engine] host_kv_gib = 0, or host_kv_args as your engine wants them")
_PIN_REMEDY = (
    "moe-appliance preflight --deep (measures what can be pinned), then fewer bytes in host RAM: "
    "moe-appliance plan make --max-host-gib GIB"
)
_DISK_REMEDY = "df -h (of the state folder, engines/*/cache may be deleted while the engine is down)"

ROWS = (
    row(
        r"CPU Offloading is currently only supported on|unrecognized arguments: --kv-offloading"
        r"|cpu_bytes_to_use must be",
        _HOST_KV[0],
        "The engine cannot keep KV cache in host RAM as it was told to.",
        _HOST_KV[1],
    ),
    row(
        rf"{_DEVICE_OOM}|{_PINNED}|Cannot allocate memory|can't allocate memory",
        _HOST_KV[0],
        "The host RAM of the KV tier cannot be pinned.",
        "lower [engine] host_kv_gib (0 = none); moe-appliance preflight says what the host has free",
        frames=_KV_FRAMES,
    ),
    row(
        rf"{_DEVICE_OOM}|{_PINNED}",
        "engine.host_pinning",
        "The host RAM that the plan keeps weights in cannot be pinned.",
        _PIN_REMEDY,
        retry=False,
        frames=_PIN_FRAMES,
    ),
    row(
        _PINNED,
        "engine.host_pinning",
        "Host RAM cannot be pinned for the cards.",
        _PIN_REMEDY,
        retry=False,
    ),
    row(
        r"(?i)RLIMIT_MEMLOCK|memlock|mlock(?:all)?\b.*(?:fail|cannot allocate)|ibv_reg_mr",
        "engine.memlock",
        "The engine may not lock as much memory as it has to.",
        "LimitMEMLOCK=infinity in the unit, or: docker run --ulimit memlock=-1:-1; then: moe-appliance preflight",
        retry=False,
    ),
    row(
        rf"{_OOM}|{_DEVICE_OOM}",
        "engine.gpu_memory_graphs",
        "The GPU ran out of memory while CUDA graphs were captured.",
        "lower [engine] kv_cache_gib or gpu_memory_utilization, so that graphs have room, or serve fewer streams",
        moment="graphs",
        refine=gpu_memory,
    ),
    row(
        rf"{_OOM}|{_DEVICE_OOM}",
        "engine.gpu_memory_serving",
        "The GPU ran out of memory while the engine served.",
        "lower [engine] kv_cache_gib, {context} or {streams_now}: a long prompt needs more than was kept for it",
        moment="serving",
        refine=gpu_memory,
    ),
    row(
        rf"{_OOM}|{_DEVICE_OOM}",
        "engine.gpu_memory",
        "The GPU has not enough free memory for the model and its caches.",
        "nvidia-smi (end other programs on the GPU), or lower the context or the number of streams",
        refine=gpu_memory,
    ),
    row(
        r"max seq len \((?P<asked>\d+)\), \(?(?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the"
        r" available KV cache memory \((?P<there>[\d.]+) GiB\)(?:.*maximum model length is (?P<fits>\d+))?",
        "engine.kv_small",
        "One context of {asked} tokens needs {needed} GiB of KV cache, and there are {there} GiB.",
        "more [engine] kv_cache_gib or gpu_memory_utilization",
        retry=False,
        refine=kv_small,
    ),
    row(
        r"No available memory for the cache blocks|Cannot auto-fit max_model_len",
        "engine.kv_none",
        "The weights leave no room for KV cache on the cards.",
        "raise [engine] gpu_memory_utilization, or plan for smaller cards: moe-appliance plan make",
        retry=False,
        refine=no_kv,
    ),
    row(
        r"Free memory on device (?P<card>\S*) ?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than"
        r" desired GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
        "engine.gpu_taken",
        "Card {card} has {free} of {total} GiB free, and the engine wants {wanted} GiB.",
        "nvidia-smi (who holds the rest: end it)",
        refine=taken,
    ),
    row(
        r"std::bad_alloc|^MemoryError|DefaultCPUAllocator|Cannot allocate memory|\[Errno 12\]",
        "engine.host_memory",
        "The host has not enough free memory for the engine.",
        "free -g (end other programs), or fewer bytes in host RAM: moe-appliance plan make --max-host-gib GIB",
    ),
    row(
        r"Error while (?:creating|attaching to) shared memory segment (?P<path>\S*)"
        r"|(?P<path2>/dev/shm\S*).{0,80}No space left|No space left.{0,80}/(?:dev/shm|psm_)|Bus error",
        "engine.shm_small",
        "The shared memory at /dev/shm is too small for the engine's processes to talk.",
        "df -h /dev/shm; larger: mount -o remount,size=32G /dev/shm, or: docker run --ipc host --shm-size 32g",
        retry=False,
    ),
    row(
        r"No space left on device: '(?P<path>[^']+)'",
        "engine.disk_full",
        "The disk is full: {path} cannot be written.",
        _DISK_REMEDY,
    ),
    row(
        r"No space left on device|Disk quota exceeded",
        "engine.disk_full",
        "A disk that the engine writes to is full.",
        _DISK_REMEDY,
    ),
    row(
        r"Too many open files",
        "engine.open_files",
        "The engine may not open as many files as it needs.",
        "LimitNOFILE=65536 in the unit, or: ulimit -n 65536; then: moe-appliance restart",
        retry=False,
    ),
)
