"""The table `[preflight]` of appliance.toml: what the box is checked for. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from appliance.engine.tables import PathSetting


class PreflightSettings(BaseModel):
    """`[preflight]`: what is checked before the engine starts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    gpus: Annotated[int, Field(strict=True, ge=0, le=64)] = 0
    """Cards that the engine uses; fewer or sick ones keep it from starting. 0 = as many as the plan is for, and without
    a plan none. Default 0."""
    engine_python: PathSetting | None = None
    """The Python of the engine's own environment, for the NCCL test of `preflight --deep`. Default: the one beside the
    program of `[engine] command`, if there is one."""
