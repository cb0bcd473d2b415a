"""Ends the engine's process when something of ours fails while it serves. Touches stderr.

Of ranks other than the first vLLM logs an error and goes on: the next all-reduce would hang, or rows would have been
exchanged on one rank and not on another. Source: vLLM 0.26.0, v1/executor/multiproc_executor.py, worker_busy_loop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import SAYS


@contextmanager
def ending() -> Iterator[None]:
    """Whatever fails inside is said, and raised as SystemExit."""
    try:
        yield
    except Exception as error:
        sys.stderr.write(f"{SAYS}: the engine ends: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
        raise SystemExit(1) from error
