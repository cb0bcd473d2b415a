"""`python -m appliance.engine.gguf_extent FILE`: prints how many bytes a GGUF file must have by its header.

A process of its own, because the package `gguf` takes seconds and much memory over a large vocabulary.
Imports nothing of the project.
Exit code 0 and a number; 3 when the package is missing; 4 and the reason when the header cannot be read.
"""

from __future__ import annotations

import sys
from pathlib import Path

NO_PACKAGE = 3
UNREADABLE = 4


def extent_bytes(path: Path) -> int:
    """Where the last tensor of the file ends, bytes. Raises ImportError, or whatever the reader does."""
    from gguf import GGMLQuantizationType
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.gguf_reader import GGUFReader, ReaderField

    class HeaderReader(GGUFReader):  # type: ignore[misc,unused-ignore]
        """Reads extents only: the reader's own step fails on the data that a cut file lacks."""

        end_bytes = 0

        def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
            self.end_bytes = int(start_offs)
            for field in fields:
                _, _, _, dims, kind, offset = field.parts
                elements = 1
                for dim in dims.tolist():
                    elements *= dim
                per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
                end = int(start_offs) + int(offset[0]) + elements * block_bytes // per_block
                self.end_bytes = max(self.end_bytes, end)

    return HeaderReader(path).end_bytes


def main(argv: list[str]) -> int:
    """The exit code; see the top of the module."""
    try:
        end = extent_bytes(Path(argv[0]))
    except ImportError as error:
        return _fail(NO_PACKAGE, error)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, OSError, MemoryError) as error:
        return _fail(UNREADABLE, error)
    sys.stdout.write(f"{end}\n")
    return 0


def _fail(code: int, error: Exception) -> int:
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
