"""Boxes for end-to-end tests: each is ended, and what it left behind fails the test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.box import Box

MakeBox = Callable[..., Box]


@pytest.fixture(scope="module")
def shared_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A box that serves, one for the module: for tests that leave it as it was."""
    box = Box(tmp_path_factory.mktemp("shared")).start().wait_ready()
    yield box
    fault = box.close()
    assert not fault, fault


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a Unix socket's name."""
    with tempfile.TemporaryDirectory(prefix="moe-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def make_box(tmp_path: Path) -> Iterator[MakeBox]:
    """Makes boxes, not yet started; `Box` says which arguments there are."""
    boxes: list[Box] = []

    def make(name: str = "box", **options: Any) -> Box:
        home = tmp_path / name
        home.mkdir(exist_ok=True)
        boxes.append(Box(home, **options))
        return boxes[-1]

    yield make
    faults = [fault for box in boxes if (fault := box.close())]
    assert not faults, "\n".join(faults)


@pytest.fixture
def box(make_box: MakeBox) -> Box:
    """A box that serves."""
    return make_box().start().wait_ready()
