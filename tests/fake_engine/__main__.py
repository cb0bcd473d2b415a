"""The fake engine as a process of its own: `python -m tests.fake_engine --port P [--set NAME=VALUE ...]`.

Touches everything a real engine does: a port, stderr, signals, child processes. Rules: the first line on stdout
is one JSON object with url, pid and grandchildren, printed once it accepts connections (with bind_delay_s: once
the port is bound); stderr is the engine's log.
Grandchildren inherit stderr, as real workers do, so whoever reads it to the end waits for them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import uvloop

from tests.fake_engine.knobs import HOST_TOKENS_PER_GIB, KnobError, Knobs, merged, parse_patch
from tests.fake_engine.server import FakeEngine
from tests.fake_engine.serving import bind, listen

GRANDCHILD = (
    "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "'setsid' in sys.argv and os.setsid(); os.write(1, b'up\\n'); os.close(1); time.sleep(120)"
)
NO_TIER = "Exception: CPU Offloading is currently only supported on CUDA-alike and XPU GPUs"
GRANDCHILD_MARK = "fake-engine-grandchild"


def log(line: str) -> None:
    """One line of the engine's log, in llama.cpp's form."""
    ms = int(time.monotonic() * 1000)
    print(f"{ms // 60_000}.{ms // 1000 % 60:02}.{ms % 1000:03}.000 I fake {line}", file=sys.stderr, flush=True)


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; `knobs` holds the checked Knobs. Exits with 2 on a mistake."""
    parser = argparse.ArgumentParser(prog="fake_engine", description="A fake OpenAI-compatible engine")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--knobs", default="{}", help="a JSON object, or @FILE")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="one knob; VALUE is JSON")
    parser.add_argument("--key-file", type=Path, help="file with the bearer token that clients must send")
    parser.add_argument("--ready-file", type=Path, help="write the first line of stdout there too")
    parser.add_argument("--watch-stdin", action="store_true", help="end, with all children, when stdin closes")
    parser.add_argument("--kv-offloading-size", type=float, metavar="GIB", help="a tier in host RAM, as vLLM's")
    args = parser.parse_args(argv)
    try:
        text = Path(args.knobs[1:]).read_text() if args.knobs.startswith("@") else args.knobs
        args.knobs = merged(Knobs(), parse_patch(text) | dict(_assignment(item) for item in args.set))
        if args.kv_offloading_size:
            args.knobs = _with_tier(args.knobs, args.kv_offloading_size)
    except (KnobError, OSError) as error:
        parser.error(str(error))
    return args


def _with_tier(knobs: Knobs, gib: float) -> Knobs:
    broken = {"fail_load": NO_TIER} if knobs.host_fault == "load" else {}
    return merged(knobs, {"host_cache_tokens": int(gib * HOST_TOKENS_PER_GIB), **broken})


def _assignment(item: str) -> tuple[str, object]:
    """`name=value`; a value that is not JSON is text."""
    name, _, value = item.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def start_grandchildren(knobs: Knobs) -> list[int]:
    """Start them and wait until each ignores SIGTERM; returns their pids."""
    pids = []
    for _ in range(knobs.grandchildren):
        argv = [sys.executable, "-I", "-S", "-c", GRANDCHILD, GRANDCHILD_MARK]
        child = subprocess.Popen(
            argv + ["setsid"] * knobs.grandchildren_setsid, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.read()
        child.stdout.close()
        pids.append(child.pid)
    return pids


def die(knobs: Knobs) -> None:
    """End this process at once, as the knobs say, without any clean-up."""
    if knobs.last_words:
        log(knobs.last_words)
    if knobs.exit_signal:
        if knobs.exit_signal not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(knobs.exit_signal, signal.SIG_DFL)
        os.kill(os.getpid(), knobs.exit_signal)
    os._exit(knobs.exit_code)


def _exit_with(pids: Sequence[int]) -> NoReturn:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def watch_signals(engine: FakeEngine, pids: Sequence[int], *, watch_stdin: bool) -> None:
    """SIGTERM and SIGINT as the knobs of that moment say; the end of stdin ends everything."""
    loop = asyncio.get_running_loop()

    def stop(name: str) -> None:
        knobs = engine.knobs
        log(f"{name} ignored" if knobs.ignore_sigterm else f"{name}, stopping")
        if not knobs.ignore_sigterm:
            loop.call_later(knobs.sigterm_delay_s, os._exit, knobs.sigterm_exit_code)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    if watch_stdin:
        loop.add_reader(0, lambda: os.read(0, 4096) or _exit_with(pids))


async def load(knobs: Knobs) -> None:
    """Log the phases over load_s, then fail if the knobs say so."""
    step_s = knobs.load_s / max(len(knobs.load_log), 1)
    for line in knobs.load_log[: -1 if knobs.never_ready or knobs.fail_load else None]:
        log(line)
        await asyncio.sleep(step_s)
    if knobs.fail_load:
        log(knobs.fail_load)
        die(knobs)


def announce(line: str, ready_file: Path | None) -> None:
    """Say where the engine is, on stdout and in the ready file, which appears whole."""
    if ready_file is not None:
        part = ready_file.with_suffix(".part")
        part.write_text(line + "\n")
        part.rename(ready_file)
    print(line, flush=True)


async def main(args: argparse.Namespace) -> None:
    """Run until death."""
    knobs: Knobs = args.knobs
    try:
        sock = bind(args.host, args.port)
    except OSError:
        log(f"couldn't bind HTTP server socket, hostname: {args.host}, port: {args.port}")
        os._exit(1)
    key = args.key_file.read_text().strip() if args.key_file else None
    pids = start_grandchildren(knobs)
    engine = FakeEngine(knobs, key=key, on_death=die)
    engine.extra = {"pid": os.getpid(), "grandchildren": pids}
    watch_signals(engine, pids, watch_stdin=args.watch_stdin)
    line = json.dumps({"url": f"http://{args.host}:{sock.getsockname()[1]}", **engine.extra})
    if knobs.bind_delay_s > 0:
        announce(line, args.ready_file)
        await asyncio.sleep(knobs.bind_delay_s)
        door = await listen(engine, sock)
    else:
        door = await listen(engine, sock)
        announce(line, args.ready_file)
    await load(knobs)
    await door.listener.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(parse_args(sys.argv[1:])))
