"""A fake box with NVIDIA cards: a libnvidia-ml.so.1 built here with the C compiler, an `nvidia-smi`, /sys and /proc.

    fake = FakeNvml(tmp_path)                               # two good cards
    fake = FakeNvml(tmp_path, scenarios.SYS_TWO_NODES)
    fake.configure(hang="nvmlDeviceGetName")                # changes what it was; also while a child runs
    gather(fake.root, environ=fake.environ())

Touches the C compiler (once a test run, about a second) and the given folder. Needs gcc and libc6-dev.
What is not written in fake_nvml.c and pynvml knows of is generated: it answers NOT_SUPPORTED.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.fake_library import built
from tests.fake_nvml.setup import Card, Process, Setup

__all__ = ["Card", "FakeNvml", "Process", "Setup", "library", "symbols"]

SOURCE = Path(__file__).with_name("fake_nvml.c")
NAME = "libnvidia-ml.so.1"
_NVIDIA = "0x10de"
_VGA = "0x030000"


def symbols() -> frozenset[str]:
    """Every function of the library that pynvml may call, by the names in its source; the module is not imported."""
    spec = find_spec("pynvml")
    assert spec is not None, "nvidia-ml-py is not installed"
    assert spec.origin is not None
    return frozenset(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', Path(spec.origin).read_text()))


@cache
def library() -> Path:
    """The folder with the library, built once a process."""
    written = set(re.findall(r"^(?:CALL|TEXT)\((\w+)\)", SOURCE.read_text(), re.M))
    stubs = [f'int {name}(void) {{ return fake_enter("{name}", 3); }}' for name in sorted(symbols() - written)]
    return built(NAME, SOURCE, "\n".join(["int fake_enter(const char *name, int otherwise);", *stubs, ""]))


class FakeNvml:
    """A fake box in `folder`. `load`: while this file exists, the links show their generation under load."""

    def __init__(self, folder: Path, setup: Setup | None = None) -> None:
        self._folder = folder / "fake-nvml"
        self.root = self._folder / "root"
        self.load = self._folder / "load"
        self._config = self._folder / "config"
        self._bin = self._folder / "bin"
        self._no_library = self._folder / "no-library"
        for made in (self.root, self._bin, self._no_library):
            made.mkdir(parents=True, exist_ok=True)
        (self._no_library / NAME).touch()  # the loader stops at it, also where a real one is installed
        self.setup = setup or Setup()
        self.configure()

    def configure(self, **changes: Any) -> FakeNvml:
        """Change fields of the Setup and write everything anew; files that others put under `root` stay, but for those
        of a card that is gone."""
        before = {self._device(card) for card in self.setup.cards}
        self.setup = replace(self.setup, **changes)
        for gone in before - {self._device(card) for card in self.setup.cards}:
            shutil.rmtree(gone)
        new = self._config.with_suffix(".new")
        new.write_text(self.setup.text(str(self.load)))
        new.replace(self._config)
        self._write_nvidia_smi()
        self._write_root()
        return self

    def environ(self) -> Mapping[str, str]:
        """For processes that shall see this box: this process's own, with the fake library and nvidia-smi first."""
        library_path = library() if self.setup.library else self._no_library
        return {
            **os.environ,
            "PATH": f"{self._bin}:{os.environ.get('PATH', os.defpath)}",
            "LD_LIBRARY_PATH": str(library_path),
            "FAKE_NVML_CONFIG": str(self._config),
        }

    def _write_nvidia_smi(self) -> None:
        text = self._folder / "topo"
        if self.setup.topo is not None:
            text.write_text(self.setup.topo)
        script = "exit 127" if self.setup.topo is None else f"cat '{text}'"
        program = self._bin / "nvidia-smi"
        program.write_text(f'#!/bin/sh\n[ "$1 $2" = "topo -m" ] || exit 2\n{script}\n')
        program.chmod(0o755)

    def _write_root(self) -> None:
        driver = self.root / "proc/driver/nvidia"
        shutil.rmtree(driver, ignore_errors=True)
        control = self.root / "dev/nvidiactl"
        control.unlink(missing_ok=True)
        if self.setup.module:
            _put(
                driver / "version",
                f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {self.setup.module}  Release Build\n"
                "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
            )
            _put(control, "")
        for card in self.setup.cards:
            device = self._device(card)
            _put(device / "numa_node", f"{card.numa_node}\n")
            _put(device / "local_cpulist", f"{card.cpus}\n")
            _put(device / "vendor", f"{_NVIDIA}\n")
            _put(device / "class", f"{_VGA}\n")
            if self.setup.module:
                _put(driver / "gpus" / device.name / "information", f"Model: \t\t {card.name}\n")
            for process in card.processes:
                if process.name:
                    _put(self.root / f"proc/{process.pid}/comm", f"{process.name[:15]}\n")

    def _device(self, card: Card) -> Path:
        return self.root / "sys/bus/pci/devices" / card.bus_id.lower()[-12:]


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
