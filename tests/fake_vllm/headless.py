"""The fake vLLM without a server: ranks that belong to a box 0. Touches a TCP connection to the master port, signals,
child processes.

As measured with 0.32.0: it does not notice when box 0 goes. `hang_at`, whatever it says: it never joins.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
from typing import NoReturn

from tests.fake_vllm.knobs import VllmKnobs
from tests.fake_vllm.server import say, start_child


def run(args: argparse.Namespace, knobs: VllmKnobs) -> NoReturn:
    """Find box 0, join, wait for ever."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    address, port = args.master_addr, int(args.master_port)
    say(
        f"(MainProcess pid={os.getpid()}) INFO 11-30 10:25:03 [serve.py:224] Launching vLLM (v0.32.0) headless "
        f"multiproc executor, with head node address {address}:{port} for torch.distributed process group."
    )
    rank = start_child(f"VLLM::Worker_PP{args.node_rank}", knobs)
    said = f"(Worker pid={rank}) INFO 11-30 10:25:23 [parallel_state.py:1906]"
    say(f"{said} world_size=2 rank=1 local_rank=0 distributed_init_method=tcp://{address}:{port} backend=gloo")
    with socket.create_connection((address, port)):
        if not knobs.hang_at:
            say(
                f"(Worker pid={rank}) INFO 11-30 10:25:42 [parallel_state.py:2350] rank 1 in world size 2 is assigned "
                "as DP rank 0, PP rank 1, PCP rank 0, TP rank 0, ETP rank 0, EP rank N/A, EPLB rank N/A"
            )
        while True:
            signal.pause()
