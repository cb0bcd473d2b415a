"""`scripts/bench-gateway`: the gateway against nginx and against no proxy, on this machine.

Touches processes, loopback sockets, a temporary folder, stdout (the figures) and stderr (progress).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvloop

from tests.bench_gateway import contenders, procfs
from tests.bench_gateway.client import StreamError
from tests.bench_gateway.figures import Samples, summary, table
from tests.bench_gateway.rounds import MANY, Bench, Plan, Reports

FAILED = 1
STOPPED = 130
PACKAGES = ("uvloop", "uvicorn", "starlette", "httptools")


def main(argv: list[str] | None = None) -> int:
    """Measure and print; the exit code is 1 when a stream was not whole, 130 when it was stopped."""
    args = _parser().parse_args(argv)
    plan = Plan(args.seconds_per_run, args.rounds, args.samples, args.streams, args.interval_ms)
    for number in (signal.SIGINT, signal.SIGTERM):  # a script's `&` leaves SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    try:
        figures = _measure(plan, args)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped", file=sys.stderr)
        return STOPPED
    except (StreamError, contenders.StartError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    print(json.dumps(figures) if args.json else table(figures))
    return 0


def _parser() -> argparse.ArgumentParser:
    usual = Plan()
    parser = argparse.ArgumentParser(prog="scripts/bench-gateway", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--seconds-per-run", type=_positive, default=usual.seconds_per_run, metavar="N")
    parser.add_argument("--rounds", type=_whole, default=usual.rounds, help="direct, nginx, gateway, gateway, nginx")
    parser.add_argument("--samples", type=_whole, default=usual.samples, help="of large bodies and of aborts")
    parser.add_argument("--streams", type=_streams, default=usual.streams, help=f"at once, {MANY} at most")
    parser.add_argument("--interval-ms", type=_whole, default=usual.interval_ms, help="between chunks of a stream")
    parser.add_argument("--cores", type=_cores, help="PROXY,LOAD: cores to use instead of the first and the last")
    parser.add_argument("--no-realtime", dest="realtime", action="store_false", help="run at ordinary priority")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 60:
        raise argparse.ArgumentTypeError("must be above 0 and at most 60")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 1000")
    return value


def _streams(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MANY:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MANY}")
    return value


def _cores(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+),(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError("must be two core numbers, as in 0,1")
    return int(found[1]), int(found[2])


def _measure(plan: Plan, args: argparse.Namespace) -> dict[str, Any]:
    cores = args.cores or procfs.two_cores()
    theirs, ours = cores or (None, None)
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateway-")))
        process, port = stack.enter_context(contenders.upstream(ours))
        field = [contenders.Contender("direct", port, None, ("none",))]
        binary = contenders.find_nginx()
        if binary is None:
            print("nginx was not found, so the gateway is compared with nothing", file=sys.stderr)
            print("remedy: apt-get install nginx-light", file=sys.stderr)
        else:
            field.append(stack.enter_context(contenders.nginx(binary, folder, port, theirs)))
        field.append(stack.enter_context(contenders.gateway(folder, port, MANY, theirs)))
        if ours is not None:
            procfs.pin(0, ours)
        pids = [0, process.pid, *(one.pid for one in field if one.pid is not None)]
        realtime = args.realtime and all([procfs.hurry(pid) for pid in pids])
        gc.freeze()
        samples = uvloop.run(_rounds(plan, field, process))
    return {
        **summary(samples),
        "settings": {name: getattr(plan, name) for name in Plan.__dataclass_fields__},
        "cores": {"contender": theirs, "client_and_upstream": ours},
        "realtime": realtime,
        "load_average_1min": {"before": load_before, "after": os.getloadavg()[0]},
        "versions": _versions(binary),
    }


async def _rounds(
    plan: Plan, field: list[contenders.Contender], upstream: subprocess.Popen[bytes]
) -> dict[str, Samples]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    reports = Reports(upstream)
    try:
        bench = Bench(plan, field, reports, lambda text: print(text, file=sys.stderr, flush=True))
        await bench.run()
        return bench.samples
    finally:
        reports.close()


def _versions(nginx: str | None) -> dict[str, str | None]:
    found = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    if nginx is None:
        return {**found, "nginx": None}
    said = subprocess.run([nginx, "-v"], capture_output=True, text=True, check=False).stderr
    return {**found, "nginx": said.strip().rpartition("/")[2]}


if __name__ == "__main__":
    sys.exit(main())
