"""Builds a shared library for tests with the C compiler. Touches the compiler and a temporary folder.

Needs gcc and libc6-dev. Takes about a second.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from pathlib import Path


def built(name: str, source: Path, more: str = "") -> Path:
    """The folder with the library `name`, removed at the end of this process. `more`: C beside `source`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "the fake libraries need a C compiler: apt-get install gcc libc6-dev"
    made = tempfile.TemporaryDirectory(prefix=f"fake-{name}-")
    atexit.register(made.cleanup)
    folder = Path(made.name)
    generated = folder / "more.c"
    generated.write_text(more)
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O0", "-shared", "-fPIC", "-I", Path(__file__).parent]
    subprocess.run([compiler, *flags, "-o", folder / name, source, generated], check=True)
    return folder
