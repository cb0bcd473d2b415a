"""The header of one safetensors file becomes a shard and its tensors, or what is wrong with it. Pure.

Layout: 8 bytes, the length of the JSON, little endian; the JSON; the data without holes.
Source: safetensors format 0.8, which also gives the limit of a header and the dtypes.

Rules:
- What a file says is checked to the last byte: dtype x shape = offsets, no overlap, no gap, the file's exact length.
- The loop over tensors is the one that has to be fast (190,000 of them); what is wrong is described outside of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from math import prod
from operator import attrgetter
from typing import Any

import orjson

from appliance.checkpoint.faults import Fault, plain
from appliance.checkpoint.tensors import Shard, Tensor

LENGTH_BYTES = 8
LIMIT_BYTES = 100_000_000
"""The longest header that the format allows. Source: safetensors, MAX_HEADER_SIZE."""
MOST_DIMENSIONS = 64
"""What engines can hold; the product over a header full of dimensions would take hours."""
SNIFF_BYTES = 512
"""So much of a file's beginning is enough to say what it is instead."""
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""dtype -> bits of one number. A tensor's bits must fill whole bytes."""
REFETCH = "fetch the file again: moe-appliance checkpoint fetch REPO@REV|URL --to DIR"
CONVERT = "the program that wrote the file is at fault: get another copy, or convert the model anew"
_TEXT = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+")(\s*+:\s*+\{)?+')
"""A JSON text, and whether it is the key of an object. Every text is consumed whole, or quotes inside of a long one
would each begin another search."""
_DTYPES = {name: (name, bits) for name, bits in BITS.items()}
_INSTEAD = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file that it points to", "git lfs pull   in its folder"),
    (b"<", "an HTML or XML page in place of data", REFETCH),
    (b"GGUF", "a GGUF file with another ending", "rename it to .gguf and give its path"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?), not safetensors", "convert it to safetensors"),
    (b"\x80\x02", "a Python pickle, not safetensors", "convert it to safetensors"),
    (b"\x1f\x8b", "compressed with gzip", "gunzip it"),
    (b"{", "JSON text in place of data (an error message of a server?)", REFETCH),
)


@dataclass(frozen=True, slots=True)
class Header:
    """One file as read. With `faults`, `tensors` are those that could be read."""

    shard: Shard
    tensors: tuple[Tensor, ...]
    faults: tuple[Fault, ...] = ()


def header_length(file: str, start: bytes, size_bytes: int) -> int | Fault:
    """Length of the JSON of a file of `size_bytes` that begins with `start` (8 bytes at least where it has so many;
    SNIFF_BYTES tell what it is when it is none)."""
    if size_bytes == 0:
        return Fault(file, "the file is empty", REFETCH)
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if size_bytes >= LENGTH_BYTES and 2 <= length <= min(LIMIT_BYTES, size_bytes - LENGTH_BYTES):
        return length
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    for magic, what, remedy in _INSTEAD:
        if text.startswith(magic):
            return Fault(file, f"{what} ({size_bytes:,} bytes)", remedy)
    if size_bytes < LENGTH_BYTES:
        return Fault(file, f"truncated: {size_bytes} bytes, not even the length of a header", REFETCH)
    if length > LIMIT_BYTES:
        said = f"the header would be {length:,} bytes, the format allows {LIMIT_BYTES:,}"
        return Fault(file, f"no safetensors file: {said}", REFETCH)
    if length < 2:
        return Fault(file, f"no safetensors file: a header of {length} bytes", REFETCH)
    needs = LENGTH_BYTES + length
    return Fault(file, f"truncated in its header: {size_bytes:,} bytes, the header alone ends at {needs:,}", REFETCH)


def parse_header(file: str, data: bytes, size_bytes: int) -> Header:
    """The tensors of a file of `size_bytes` whose JSON is `data`, checked."""
    start = LENGTH_BYTES + len(data)
    entries, faults = _entries(file, data)
    tensors: list[Tensor] = []
    end_of_last, in_order = 0, True
    for name, entry in entries.items():
        try:
            dtype, bits = _DTYPES[entry["dtype"]]
            begin, end = entry["data_offsets"]
            shape = entry["shape"]
            if len(shape) > MOST_DIMENSIONS:
                raise ValueError
            for number in shape:
                if type(number) is not int or number < 0:
                    raise ValueError
            if type(begin) is not int or type(end) is not int or begin < 0 or (end - begin) * 8 != prod(shape) * bits:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            faults.append(Fault(file, _wrong(name, entry), CONVERT))
            continue
        tensors.append(Tensor(name, dtype, tuple(shape), file, start + begin, end - begin))
        in_order = in_order and begin == end_of_last
        end_of_last = end
    if not faults and (not in_order or start + end_of_last != size_bytes):
        faults.extend(_layout(file, tensors, start, size_bytes))
    shard = Shard(file, size_bytes, start, sha256(data).hexdigest(), len(tensors))
    return Header(shard, tuple(tensors), tuple(faults))


def _entries(file: str, data: bytes) -> tuple[dict[str, Any], list[Fault]]:
    """Name -> entry, the metadata left out."""
    try:
        entries = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return {}, [Fault(file, f"the header is no JSON: {error}", REFETCH)]
    if not isinstance(entries, dict) or not data.startswith(b"{"):
        return {}, [Fault(file, "the header is no JSON object", REFETCH)]
    metadata = entries.pop("__metadata__", {})
    faults = []
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        faults.append(Fault(file, "__metadata__ does not map texts to texts", CONVERT))
    if data.count(b'"data_offsets"') > len(entries):  # the parser keeps the last of names that occur twice
        faults.extend(Fault(file, f"tensor {plain(name)}: twice in the header", CONVERT) for name in _duplicates(data))
    return entries, faults


def _duplicates(data: bytes) -> list[str]:
    keys = (orjson.loads(match[1]) for match in _TEXT.finditer(data) if match[2])
    return [key for key, times in Counter(keys).items() if times > 1]


def _wrong(name: str, entry: Any) -> str:
    """What is wrong with one entry, which is known to be wrong."""
    said = f"tensor {plain(name)}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        return f"{said}: not an object with dtype, shape and data_offsets"
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        return f"{said}: unknown dtype {plain(repr(dtype))}"
    if not _whole_numbers(shape):
        return f"{said}: shape {plain(shape)} is no list of whole numbers from 0"
    if len(shape) > MOST_DIMENSIONS:
        return f"{said}: {len(shape):,} dimensions, {MOST_DIMENSIONS} is the most"
    if not _whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return f"{said}: data_offsets {plain(offsets)} are no begin and end"
    bits = prod(shape) * BITS[dtype]
    if bits.bit_length() > 64:
        return f"{said}: {dtype} x {plain(shape)} is more than any file can hold"
    if bits % 8:
        return f"{said}: {dtype} x {plain(shape)} is {bits:,} bits, which fill no whole number of bytes"
    took = offsets[1] - offsets[0]
    return f"{said}: {dtype} x {plain(shape)} is {bits // 8:,} bytes, its offsets hold {took:,}"


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def _layout(file: str, tensors: list[Tensor], start: int, size_bytes: int) -> Iterator[Fault]:
    """What is wrong with where the tensors are; nothing when they only stand in another order."""
    ordered = sorted(tensors, key=attrgetter("begin", "nbytes"))
    if ordered and ordered[0].begin > start:
        gap = ordered[0].begin - start
        yield Fault(file, f"tensor {plain(ordered[0].name)}: a gap of {gap:,} bytes before it", CONVERT)
    for one, two in pairwise(ordered):
        end = one.begin + one.nbytes
        if two.begin < end:
            both = f"tensors {plain(one.name)} and {plain(two.name)}"
            yield Fault(file, f"{both}: their data overlap by {end - two.begin:,} bytes", CONVERT)
        elif two.begin > end:
            between = f"between {plain(one.name)} and {plain(two.name)}"
            yield Fault(file, f"a gap of {two.begin - end:,} bytes {between}", CONVERT)
    end = max((tensor.begin + tensor.nbytes for tensor in ordered), default=start)
    if size_bytes < end:
        cut = next(tensor for tensor in ordered if tensor.begin + tensor.nbytes > size_bytes)
        said = f"truncated: {size_bytes:,} of {end:,} bytes, tensor {plain(cut.name)} is the first that is cut"
        yield Fault(file, said, REFETCH)
    elif size_bytes > end:
        yield Fault(file, f"{size_bytes - end:,} bytes longer than its tensors, which end at {end:,}", REFETCH)
