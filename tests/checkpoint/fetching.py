"""What the tests of fetching share: a small checkpoint, a fetch that is cut short, the CLI as a process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint.fetch import Fetched, fetch
from appliance.checkpoint.progress import Progress
from tests.checkpoint.range_server import FileServer, Trouble
from tests.interrupts import heed_interrupts

REPO = Path(__file__).parents[2]
FIRST, SECOND, THIRD = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
_started: list[subprocess.Popen[str]] = []


def sha(data: bytes) -> str:
    """SHA-256 in hex digits."""
    return hashlib.sha256(data).hexdigest()


def shard(name: str, size: int) -> bytes:
    """A sound safetensors file with one U8 tensor `name` of `size` bytes, different for each name."""
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    seed = hashlib.sha256(name.encode()).digest()
    return len(header).to_bytes(8, "little") + header + (seed * (size // len(seed) + 1))[:size]


def checkpoint(shards: int = 3, size: int = 300_000) -> dict[str, bytes]:
    """Files of a whole checkpoint: shards, index, configuration, tokenizer."""
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    index = {"metadata": {}, "weight_map": {f"t{number}": name for number, name in enumerate(names)}}
    files = {name: shard(f"t{number}", size) for number, name in enumerate(names)}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    files["config.json"] = b'{"architectures": ["X"], "model_type": "x"}'
    files["tokenizer.json"] = b"{}"
    return files


def sums(files: dict[str, bytes]) -> bytes:
    """SHA256SUMS of files."""
    return "".join(f"{sha(data)}  {name}\n" for name, data in files.items()).encode()


def cuts(name: str, *after_bytes: int) -> list[Trouble]:
    """A body of `name` that ends early, then the next one."""
    return [Trouble(1, name, cut_after_bytes=count) for count in after_bytes]


async def fetched(url: str, folder: Path, **options: Any) -> Fetched:
    """`fetch` as tests want it: no environment, progress thrown away."""

    def ignore(_now: Progress) -> None:
        pass

    defaults: dict[str, Any] = {"environ": {}, "on_progress": ignore}
    return await fetch(url, folder, **(defaults | options))


async def interrupted(server: FileServer, folder: Path, at: int = 200_000) -> None:
    """A fetch that is cancelled when half of `at` bytes of the first shard came at least, and all else is there."""
    server.hold[FIRST] = at
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("appliance.checkpoint.download._WRITE_BYTES", 10_000)
        task = asyncio.create_task(fetched(server.url, folder))
        while not ({SECOND, THIRD} <= names(folder) and (folder / f"{FIRST}.part").stat().st_size >= at // 2):
            assert not task.done(), task
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    del server.hold[FIRST]
    server.release.set()


def names(folder: Path) -> set[str]:
    """What lies in a folder, our own hidden files left out."""
    return {path.name for path in folder.iterdir() if not path.name.startswith(".moe-appliance")}


def everything(folder: Path) -> bytes:
    """All bytes of all files of a folder."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """`moe-appliance checkpoint ...` as a process, as a terminal starts it: a script's `&` leaves SIGINT ignored."""
    own = {key: value for key, value in os.environ.items() if key not in ("HF_TOKEN", "MOE_CHECKPOINT_TOKEN")}
    process = subprocess.Popen(
        [sys.executable, "-m", "appliance", "checkpoint", *arguments],
        cwd=REPO,
        env=own | (env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    _started.append(process)
    return process


def end_started() -> None:
    """End what `start` started and no test finished."""
    for process in _started:
        with process:
            process.kill()
    _started.clear()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Return once the condition holds."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)
