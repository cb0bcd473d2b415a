"""Boxes whose engine is the real vLLM on the CPU, and the models that it serves.

The environment is the one that scripts/test --vllm made with `moe-appliance engine install vllm-cpu`; a box finds it in
its own state folder, as a link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.environments import folders
from tests.e2e.box import ROOT
from tests.model import demo_wheel
from tests.vllm import models
from tests.vllm.vllm_box import VllmBox

HERE = ROOT / ".vllm"
STATE = HERE / "state"
TINY: dict[str, Any] = {
    "kind": "vllm",
    "profile": "vllm-cpu-tiny",
    "served_model": "fake-model",
    "context_tokens": 4096,
    "streams": 2,
    "start_timeout_s": 400.0,
    "grace_s": 5.0,
}
"""What every test's engine is told; the rest is the profile's. The clients of tests/e2e ask for that model."""

MakeVllm = Callable[..., VllmBox]


@pytest.fixture(scope="session")
def model_folders() -> Path:
    """The folder with both models; skips where vLLM is not installed."""
    if folders.find(STATE, "vllm-cpu") is None:
        pytest.skip("no vLLM here: run scripts/test --vllm")
    made = HERE / "models"
    models.make(made, demo_wheel())
    return made


@pytest.fixture(scope="session")
def tiny_moe(model_folders: Path) -> Path:
    """A Qwen3-MoE of random weights."""
    return model_folders / models.MOE


@pytest.fixture(scope="session")
def smol(model_folders: Path) -> Path:
    """A small model that writes words."""
    return model_folders / models.SMOL


@pytest.fixture(scope="session")
def transcript() -> Iterator[Callable[..., None]]:
    """Takes rows of what was done and what came of it; they are in .vllm/transcript.md at the end."""
    rows: list[str] = []

    def row(*cells: object) -> None:
        told = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in cells]
        rows.append(" | ".join([*told, *[""] * (5 - len(told))]))

    yield row
    head = ["done | noticed, s | gone, s | serves again, s | cause", "--- | ---: | ---: | ---: | ---"]
    (HERE / "transcript.md").write_text("".join(f"| {line} |\n" for line in (*head, *rows)))


@pytest.fixture(scope="module")
def make_vllm(tmp_path_factory: pytest.TempPathFactory, model_folders: Path) -> Iterator[MakeVllm]:
    """Makes boxes, not yet started; keywords go into [engine]. Ends them after the module."""
    assert model_folders
    boxes: list[VllmBox] = []

    def make(*, patches: dict[str, float | str] | None = None, **engine: Any) -> VllmBox:
        home = tmp_path_factory.mktemp("box")
        (home / "state").mkdir()
        (home / "state/engines").symlink_to(STATE / "engines")
        boxes.append(VllmBox(home, tables={"engine": TINY | engine}, patches=patches))
        return boxes[-1]

    yield make
    faults = [fault for box in boxes if (fault := box.close())]
    assert not faults, "\n".join(faults)
