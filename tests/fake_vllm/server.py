"""The fake vLLM's server process: flags, key, boot log, children, socket, and then the fake engine.

Touches what the real one does: a Unix socket, standard error, signals, child processes. As measured with 0.26.0:
SIGTERM is not heard while it loads, a core that dies while it serves ends the server with 0, a core that is stopped
leaves /health at 200, the socket's file stays.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import uvloop

from tests.fake_engine.knobs import HOST_TOKENS_PER_GIB, Knobs, merged
from tests.fake_engine.server import FakeEngine
from tests.fake_engine.serving import listen
from tests.fake_vllm import KNOBS
from tests.fake_vllm.forced import ForcedUsage
from tests.fake_vllm.knobs import VllmKnobs, read

DATA = Path(__file__).parents[1] / "data"
CORE = Path(__file__).with_name("core.py")
LOOK_S = 0.05
NO_CORE = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
STOPPED, GONE = "T", "ZX"


def say(line: str) -> None:
    """One line of the log."""
    print(line, file=sys.stderr, flush=True)


def parse(argv: list[str]) -> argparse.Namespace:
    """By the flags of the real parser. Exits with 2 on any other."""
    parser = argparse.ArgumentParser(prog="api_server.py", add_help=False)
    add_flags(parser)
    return parser.parse_args(argv)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of the real parser."""
    known = json.loads((DATA / "vllm-0.26.0-parser.json").read_text())
    for name, one in known.items():
        switch = one["nargs"] == 0 or name in ("-h", "--help")
        dest = one["dest"] if not name.startswith("--no-") else f"no_{one['dest']}"
        if switch:
            parser.add_argument(name, dest=dest, action="store_true")
        else:
            parser.add_argument(name, dest=dest, nargs=one["nargs"], choices=one["choices"])


def start_child(name: str, knobs: VllmKnobs) -> int:
    """A child under that name; its pid, once it has the name."""
    argv = [name, "-I", "-S", str(CORE), name, str(os.getpid()), "orphan" if knobs.orphans else "bound"]
    child = subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read()
    child.stdout.close()
    return child.pid


def children(args: argparse.Namespace, knobs: VllmKnobs) -> list[int]:
    """The core first, then a worker for each rank where there are several."""
    ranks = int(args.tensor_parallel_size or 1) * int(args.pipeline_parallel_size or 1)
    names = ["VLLM::EngineCore", *(f"VLLM::Worker_TP{rank}" for rank in range(ranks) if ranks > 1)]
    return [start_child(name, knobs) for name in names]


def state_of(pid: int) -> str:
    """The letter of /proc, "X" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


async def boot(args: argparse.Namespace, knobs: VllmKnobs) -> list[int]:
    """Log the real boot; the pids of the children. Ends the process where the knobs say so."""
    lines = (DATA / "vllm-0.26.0-boot.log").read_text().splitlines()
    pids: list[int] = []
    given = {name: value for name, value in vars(args).items() if value not in (None, False)}
    for line in lines[:-1]:
        if not pids and "(EngineCore" in line:
            pids = children(args, knobs)
        if "Starting to load model" in line and knobs.plugin_line:
            say(f"(EngineCore pid={pids[0]}) {knobs.plugin_line}")
        line = line.replace("pid=612", f"pid={os.getpid()}").replace("pid=730", f"pid={pids[0] if pids else 0}")
        say(line.partition("non-default")[0] + f"non-default args: {given}" if "non-default args" in line else line)
        await asyncio.sleep(knobs.boot_s / len(lines))
        if knobs.fail_at and knobs.fail_at in line:
            end(list(knobs.fail_log), knobs.exit_code)
        if knobs.hang_at and knobs.hang_at in line:
            await asyncio.Event().wait()
        if pids and knobs.kill_core_at and knobs.kill_core_at in line:
            os.kill(pids[0], signal.SIGKILL)
        if pids and state_of(pids[0]) in GONE:
            end([NO_CORE], 1)
    return pids


def end(words: list[str], code: int) -> NoReturn:
    """Say the last words and go, without any clean-up."""
    for word in words:
        say(word)
    os._exit(code)


async def watch(core: int, engine: FakeEngine) -> NoReturn:
    """What the core does, the server's answers follow."""
    normal = engine.knobs
    hung = False
    while True:
        state = state_of(core)
        if state in GONE:
            end([f"(APIServer pid={os.getpid()}) ERROR EngineDeadError: EngineCore encountered an issue."], 0)
        if (state == STOPPED) != hung:
            hung = not hung
            normal = engine.knobs if hung else normal
            engine.apply(merged(engine.knobs, {"hang": True}) if hung else normal)
        await asyncio.sleep(LOOK_S)


def engine_knobs(args: argparse.Namespace, knobs: VllmKnobs) -> Knobs:
    """The fake engine as the flags describe it."""
    told: dict[str, object] = {"style": "vllm", "reset_path": os.environ.get("VLLM_SERVER_DEV_MODE", "0") != "0"}
    if args.served_model_name:
        told["model"] = args.served_model_name[0]
    if args.max_model_len:
        told["context_tokens"] = int(args.max_model_len)
    if args.kv_offloading_size:
        told["host_cache_tokens"] = int(float(args.kv_offloading_size) * HOST_TOKENS_PER_GIB)
    return merged(Knobs(), told | knobs.engine)


async def main(args: argparse.Namespace, knobs: VllmKnobs) -> None:
    """Bind, boot, serve, until a signal or the core's end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(args.uds)
    pids = await boot(args, knobs)
    kind = ForcedUsage if args.enable_force_include_usage else FakeEngine
    engine = kind(engine_knobs(args, knobs), key=os.environ["VLLM_API_KEY"], on_death=lambda _: end([], 0))
    engine.extra = {"pid": os.getpid(), "children": pids}
    door = await listen(engine, sock)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, os._exit, 0)
    say(f"(APIServer pid={os.getpid()}) INFO:     Application startup complete.")
    watching = asyncio.ensure_future(watch(pids[0], engine))
    await door.listener.serve_forever()
    watching.cancel()


def run() -> None:
    """The whole process."""
    knobs = read(os.environ.get(KNOBS, ""))
    args = parse(sys.argv[1:])
    if "VLLM_API_KEY" not in os.environ:
        end(["the fake vLLM wants VLLM_API_KEY"], 1)
    uvloop.run(main(args, knobs))
