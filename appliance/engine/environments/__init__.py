"""The Python environments that engines run in: what they are made of, making them, looking whether they work.

`find(state_dir, "vllm")` is how others get one; who runs its Python shares its lock (see folders.py).
"""

from __future__ import annotations

from appliance.engine.environments.folders import Environment, find, newer
from appliance.engine.environments.manifest import Manifest

__all__ = ["Environment", "Manifest", "find", "newer"]
