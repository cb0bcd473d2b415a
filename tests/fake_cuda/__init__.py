"""A fake libcuda.so.1, built with the C compiler here, and the file that configures it.

    environ = fake_cuda(tmp_path, ["0000:41:00.0", "0000:81:00.0"], {"h2d.1": 26.5}, os.environ)

Touches the C compiler (once a test run, about a second) and the given folder. Needs gcc and libc6-dev.

Keys: bus.I = address of card I; h2d.I, d2h.I, far.I, together.I = GB/s (50 unless given; far and together as h2d);
load = a path that is made when the first copy starts; fail.CALL.I = CUDA's code on card I; hang, crash, garbage =
CALL or CALL.I that never returns, ends by SIGSEGV, or prints what is no answer and exits 0. Calls that are of no card
are of card 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.fake_library import built

SOURCE = Path(__file__).with_name("fake_cuda.c")
NAME = "libcuda.so.1"


@cache
def library() -> Path:
    """The folder with the library, built once a process."""
    return built(NAME, SOURCE)


def fake_cuda(
    folder: Path, bus_ids: Sequence[str], knobs: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, str]:
    """`environ` with this library first; `folder` takes the file."""
    config = folder / "fake-cuda.conf"
    lines = [f"bus.{index}={bus_id}" for index, bus_id in enumerate(bus_ids)]
    lines += [f"{key}={value}" for key, value in knobs.items()]
    config.write_text("\n".join(lines) + "\n")
    path = f"{library()}:{environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return {**environ, "LD_LIBRARY_PATH": path, "FAKE_CUDA_CONFIG": str(config)}
