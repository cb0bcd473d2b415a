"""Environments of engines as far as the state folder knows them: a manifest, and the name that means the last one."""

from __future__ import annotations

from pathlib import Path

from appliance.engine.environments import manifest
from appliance.engine.environments.manifest import Manifest


def environment_in(state_dir: Path, identity: str) -> Path:
    """The folder of one that `vllm` means from now on."""
    folder = state_dir / "engines" / f"vllm-{identity}"
    folder.mkdir(parents=True)
    made = Manifest("vllm", identity, "0" * 64, "3.11.7", {"vllm": "0.26.0"}, 1.0, 1.0, 1, "test")
    (folder / "manifest.json").write_bytes(manifest.to_json(made))
    link = state_dir / "engines" / "vllm"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    return folder
