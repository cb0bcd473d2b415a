"""`python -P gguf_child.py FILE...`: prints the headers of GGUF files as one JSON line. Touches those files.

A process of its own, because the package `gguf` takes much memory and raises anything over a damaged file.
Imports nothing of the project.
Exit code 0 and a JSON list with an object a file: data_offset, header_sha256, fields {key: value}, and tensors
[[name, type, shape, begin, nbytes]], the shape in the file's own order (innermost first), `begin` from its start.
3 when the package is missing; 4 and `FILE NUMBER: reason` when a header cannot be read.

Rules:
- Arrays of texts (vocabularies) are stepped over, not read: the package would take seconds and a gigabyte over them.
- What is left out of the fields: those arrays, arrays longer than a model has layers, texts longer than a page.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
from hashlib import sha256
from math import prod
from typing import Any

NO_PACKAGE = 3
UNREADABLE = 4
MOST_MEMORY_BYTES = 8 << 30
"""A damaged file may promise 2^60 tensors: the child fails, not the machine. The mapped file does not count."""
LONGEST_ARRAY = 4096
LONGEST_TEXT = 4096
_U64 = struct.Struct("<Q")


def header_of(path: str) -> dict[str, Any]:
    """One file's header; see the top. Raises ImportError, or whatever the reader does."""
    from gguf import GGMLQuantizationType, GGUFEndian, GGUFValueType
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.gguf_reader import GGUFReader, ReaderField

    class HeaderReader(GGUFReader):  # type: ignore[misc,unused-ignore]
        """The package's reader without the data and without long arrays."""

        def __init__(self, path: str) -> None:
            self.found: list[list[Any]] = []
            super().__init__(path)

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if GGUFValueType(raw_type) is not GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            kind = GGUFValueType(self._get(orig_offs, "u4")[0])
            count = int(self._get(orig_offs + 4, "u8")[0])
            begin = orig_offs + 12
            types = [GGUFValueType.ARRAY, kind]
            if kind is GGUFValueType.STRING:
                return self._end_of_texts(begin, count) - orig_offs, [], [], types
            scalar = self.gguf_scalar_to_np[kind]
            end = begin + count * scalar().itemsize
            if end > len(self.data):
                raise ValueError(f"an array of {count} numbers does not fit into the file")
            kept = [self._get(begin, scalar, count)] if count <= LONGEST_ARRAY else []
            return end - orig_offs, kept, [0] * len(kept), types

        def _end_of_texts(self, at: int, count: int) -> int:
            if self.endianess is not GGUFEndian.LITTLE:
                raise ValueError("big-endian files are not read")
            data = memoryview(self.data)  # type: ignore[arg-type,unused-ignore]
            for _ in range(count):
                at += 8 + _U64.unpack_from(data, at)[0]
            return at

        def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
            for field in fields:
                _, _, _, dims, kind, offset = field.parts
                shape = [int(dim) for dim in dims]
                nbytes = _nbytes(shape, *GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])])
                begin = int(start_offs) + int(offset[0])
                name = GGMLQuantizationType(kind[0]).name
                self.found.append([field.name, name, shape, begin, nbytes])

    reader = HeaderReader(path)
    fields = {key: value for key, field in reader.fields.items() if (value := _value(field)) is not None}
    return {
        "data_offset": int(reader.data_offset),
        "header_sha256": sha256(reader.data[: reader.data_offset].tobytes()).hexdigest(),
        "fields": fields,
        "tensors": reader.found,
    }


def _nbytes(shape: list[int], per_block: int, block_bytes: int) -> int:
    """What a tensor takes; its rows are whole blocks."""
    if shape and shape[0] % per_block:
        raise ValueError(f"a tensor of {shape} is no whole number of blocks of {per_block}")
    return prod(shape) // per_block * block_bytes


def _value(field: Any) -> Any:
    """A metadata value as JSON has it, None for what is left out."""
    if not field.data or not field.types:
        return None
    part = field.parts[field.data[0]]
    if field.types[0].name == "ARRAY":
        return part.tolist()
    if field.types[0].name == "STRING":
        return bytes(part).decode(errors="replace") if len(part) <= LONGEST_TEXT else None
    return part.tolist()[0]


def main(paths: list[str]) -> int:
    """The exit code; see the top of the module."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    headers = []
    for number, path in enumerate(paths):
        try:
            headers.append(header_of(path))
        except ImportError as error:
            sys.stderr.write(f"{number}: {error}\n")
            return NO_PACKAGE
        except (
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            OverflowError,
            OSError,
            MemoryError,
            struct.error,
        ) as error:
            reason = str(error).partition("\n")[0]
            sys.stderr.write(f"{number}: {type(error).__name__}: {reason}\n")
            return UNREADABLE
    sys.stdout.write(json.dumps(headers))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
