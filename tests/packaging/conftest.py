"""One build for all tests that look at the archives, and views of the root to install into."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packaging.chroot import Chroot
from tests.packaging.parts import ROOT


@dataclass(frozen=True, slots=True)
class Built:
    """What packaging/build made."""

    deb: Path
    wheel: Path
    sdist: Path


def build(out: Path, source: Path = ROOT) -> Built:
    """Run packaging/build; it names what it made, one path a line."""
    environ = {"SOURCE_DATE_EPOCH": "1767225600"} | os.environ
    ran = subprocess.run(
        [source / "packaging/build", "--out", out], env=environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-5000:]
    return Built(*map(Path, ran.stdout.split()))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The archives of this checkout."""
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, built: Built) -> Iterator[Chroot]:
    """A root with the package installed."""
    view = Chroot(tmp_path_factory.mktemp("root"))
    view.put(built.deb, "/root/moe.deb")
    view.ok("dpkg --install /root/moe.deb")
    yield view
    view.close()


@pytest.fixture
def bare(tmp_path_factory: pytest.TempPathFactory, built: Built) -> Iterator[Chroot]:
    """A root with the package's file, not installed, and 640 MiB to write to."""
    view = Chroot(tmp_path_factory.mktemp("bare"), size_mib=640)
    view.put(built.deb, "/root/moe.deb")
    yield view
    view.close()
