"""Reads the headers of GGUF files on this machine, in a child process. Touches the file system, starts the child.

One model may be split over several files (`-00001-of-00003.gguf`): the first has the metadata, each has its tensors.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson

from appliance.checkpoint import gguf_child
from appliance.checkpoint.faults import Fault, complaint, plain
from appliance.checkpoint.tensors import Checkpoint, Format, Shard, Tensor
from appliance.errors import DEMO_EXTRA, CheckpointError

DEADLINE_S = 300.0
_AGAIN = "download the file again, or continue the download: curl -C - -O URL"
_SPLIT = "get all files of one split; llama-gguf-split --merge   makes one file of them"
_CHILD = Path(gguf_child.__file__)
_HIDDEN = ("tokenizer.", "GGUF.")


def read_gguf(folder: Path, model: str, files: Sequence[str], progress: Callable[[int, int], None]) -> Checkpoint:
    """The model whose `files`, in order, are in `folder`. Metadata without the tokenizer's become the configuration.

    Raises CheckpointError: a file is missing, cut or damaged, the split is not whole, or the package gguf is missing.
    """
    origin = str(folder / model)
    missing = [Fault(name, "missing", _SPLIT) for name in files if not (folder / name).is_file()]
    if missing:
        raise complaint(origin, missing)
    headers = _headers(folder, files)
    progress(len(files), len(files))
    shards, tensors, faults = [], [], []
    for name, header in zip(files, headers, strict=True):
        found = [Tensor(tensor, kind, tuple(shape), name, begin, nbytes)
                 for tensor, kind, shape, begin, nbytes in header["tensors"]]  # fmt: skip
        size_bytes = (folder / name).stat().st_size
        shards.append(Shard(name, size_bytes, header["data_offset"], header["header_sha256"], len(found)))
        faults += _layout_faults(name, found, size_bytes)
        tensors += found
    config = {key: value for key, value in headers[0]["fields"].items() if not key.startswith(_HIDDEN)}
    faults += _split_faults(files, config, tensors)
    if faults:
        raise complaint(origin, faults)
    return Checkpoint(origin, Format.GGUF, tuple(shards), tuple(tensors), config)


def _headers(folder: Path, files: Sequence[str]) -> list[dict[str, Any]]:
    paths = [str(folder.absolute() / name) for name in files]
    try:
        child = subprocess.run(
            [sys.executable, "-P", str(_CHILD), *paths],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckpointError(
            f"{plain(paths[0])}: its header was not read within {DEADLINE_S:.0f} s", "check the disk: dmesg | tail"
        ) from None
    said = (child.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
    if child.returncode == gguf_child.NO_PACKAGE:
        raise CheckpointError(
            f"{plain(paths[0])}: reading GGUF needs the package gguf, which is not installed",
            DEMO_EXTRA,
        )
    if child.returncode != 0:
        number, colon, reason = said.partition(": ")
        known = child.returncode == gguf_child.UNREADABLE and colon and number.isdigit()
        name = files[int(number)] if known else files[0]
        size = (folder / name).stat().st_size
        why = plain(reason if known else said)
        text = f"the header cannot be read, the file is cut or damaged ({size:,} bytes; {why})"
        raise complaint(str(folder), [Fault(name, text, _AGAIN)])
    headers: list[dict[str, Any]] = orjson.loads(child.stdout)
    return headers


def _layout_faults(name: str, tensors: Sequence[Tensor], size_bytes: int) -> list[Fault]:
    faults = []
    ordered = sorted(tensors, key=attrgetter("begin", "nbytes"))
    for one, two in pairwise(ordered):
        if two.begin < one.begin + one.nbytes:
            both = f"tensors {plain(one.name)} and {plain(two.name)}"
            faults.append(Fault(name, f"{both}: their data overlap", "convert the model anew"))
    end = max((tensor.begin + tensor.nbytes for tensor in ordered), default=0)
    if size_bytes < end:
        cut = next(tensor for tensor in ordered if tensor.begin + tensor.nbytes > size_bytes)
        said = f"truncated: {size_bytes:,} of {end:,} bytes, tensor {plain(cut.name)} is the first that is cut"
        faults.append(Fault(name, said, _AGAIN))
    return faults


def _split_faults(files: Sequence[str], config: dict[str, Any], tensors: Sequence[Tensor]) -> list[Fault]:
    faults = []
    seen: dict[str, str] = {}
    for tensor in tensors:
        other = seen.setdefault(tensor.name, tensor.file)
        if other != tensor.file:
            faults.append(Fault(tensor.file, f"tensor {plain(tensor.name)}: also in {plain(other)}", _SPLIT))
    count = config.get("split.count", len(files))
    if count not in (0, len(files)):
        faults.append(
            Fault(files[0], f"split into {plain(count)} files by its header, {len(files)} by its name", _SPLIT)
        )
    wanted = config.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        faults.append(
            Fault(files[0], f"the split has {plain(wanted)} tensors, the files hold {len(tensors):,}", _SPLIT)
        )
    return faults
