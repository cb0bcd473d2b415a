"""One all-reduce over NCCL between processes of one box, one a card, in the engine's own environment.

Touches the cards, a folder it is given, processes. Run by path with the engine's Python (3.8 or newer, with torch):
`PYTHON nccl_child.py SPEC`, SPEC being {world, folder, bytes, limit_s} as JSON. It starts itself once a rank.

Rules:
- Standard library, and torch in the ranks only; nothing of this project.
- NCCL's own variables are left as they come: it is to behave as it will in the engine.
- The ranks stay in the process group, and SIGALRM's default action ends each process after `limit_s`.
- A sum counts only when every element is right: a broken peer path can answer at once and move nothing. So each call
  reduces new values, other ones for each rank, and more bytes than any buffer that NCCL keeps.

Events, one JSON a line: step{text}; reduced{version,s,gb_s} by rank 0, gb_s being the bus bandwidth that nccl-tests
print as well: 2 (n - 1) / n of the bytes over the median time; failed{rank,error}.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

ROUNDS = 5
NO_TORCH = 3
"""Exit code: this Python has no torch that knows CUDA."""
IMPORTING = "importing torch"
PERIOD = 1021
"""Values repeat after this many elements; small, so that sums are exact in float32."""
_POLL_S = 0.05
_OTHERS_S = 2.0
"""How long the other ranks have to end when one has failed."""


def say(event: str, **fields: Any) -> None:
    """Write one event, in one piece: ranks share the pipe."""
    os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())


def rank_main(spec: dict[str, Any], rank: int) -> int:
    """One rank, from import to the last check."""
    if rank == 0:
        say("step", text=IMPORTING)
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
        import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
    except (ImportError, OSError) as error:  # OSError: a library of its own is not there
        say("failed", rank=rank, error=f"{sys.executable}: {error}")
        return NO_TORCH
    if torch.version.cuda is None:
        say("failed", rank=rank, error=f"{sys.executable}: its torch was built without CUDA")
        return NO_TORCH
    world = spec["world"]
    if rank == 0:
        say("step", text="starting NCCL")
    try:
        torch.cuda.set_device(rank)
        dist.init_process_group(
            "nccl",
            init_method=f"file://{spec['folder']}/rendezvous",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=spec["limit_s"]),
        )
        took_s = [reduce_once(torch, dist, spec["bytes"] // 4, rank, world, number) for number in range(ROUNDS + 1)]
    except (RuntimeError, ValueError, OSError, AssertionError) as error:
        say("failed", rank=rank, error=f"{type(error).__name__}: {error}")
        return 1
    if rank == 0:
        median_s = statistics.median(took_s[1:])  # the first one makes the connections
        moved = 2 * (world - 1) / world * spec["bytes"]
        version = ".".join(map(str, torch.cuda.nccl.version()))
        say("reduced", version=version, s=median_s, gb_s=round(moved / median_s / 1e9, 3))
    dist.destroy_process_group()
    return 0


def reduce_once(torch: Any, dist: Any, count: int, rank: int, world: int, number: int) -> float:
    """All-reduce values that only this round has and check every sum; seconds. Raises RuntimeError on a wrong one."""
    if rank == 0:
        say("step", text=f"all-reduce {number + 1}")
    base = torch.arange(count, device=f"cuda:{rank}", dtype=torch.float32) % PERIOD
    values = base + (rank + number)
    torch.cuda.synchronize()
    started = time.monotonic()
    dist.all_reduce(values)
    torch.cuda.synchronize()
    took_s = time.monotonic() - started
    if not torch.equal(values, base * world + sum(other + number for other in range(world))):
        raise RuntimeError("the sum is wrong: NCCL answered, and what it moved is not what was sent")
    return took_s


def launch(argument: str, world: int) -> int:
    """Start the ranks and wait for them; 0 when all are well, else the first bad exit code."""
    ranks = [subprocess.Popen([sys.executable, __file__, argument, str(rank)]) for rank in range(world)]
    deadline: float | None = None
    bad = 0
    while True:
        codes = [one.poll() for one in ranks]
        for rank, code in enumerate(codes):
            if code and not bad:
                bad, deadline = code, time.monotonic() + _OTHERS_S
                if code < 0:
                    say("failed", rank=rank, error=f"ended by {signal.Signals(-code).name}")
        if None not in codes:
            return bad if bad >= 0 else 128 - bad
        if deadline is not None and time.monotonic() > deadline:
            for one in ranks:
                one.kill()
        time.sleep(_POLL_S)


def main() -> int:
    """`SPEC` starts all ranks, `SPEC RANK` is one."""
    spec = json.loads(sys.argv[1])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(spec["limit_s"]))
    if len(sys.argv) > 2:
        return rank_main(spec, int(sys.argv[2]))
    return launch(sys.argv[1], spec["world"])


if __name__ == "__main__":
    sys.exit(main())
