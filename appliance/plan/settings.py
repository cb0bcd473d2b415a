"""The table `[plan]` of appliance.toml: which plan the engine is loaded by. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from appliance.engine.tables import PathSetting


class PlanSettings(BaseModel):
    """`[plan]`: which plan file, for which checkpoint. With one, the cards and the host's memory are checked against it
    at every start."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    file: PathSetting | None = None
    """The plan file. Default: none, then no card is asked for."""
    checkpoint: PathSetting | None = None
    """Folder (or .gguf file) of the model's weights. Only headers are read. Default: none, then the plan's figures
    cannot be recomputed, and that is a finding."""
    make: Annotated[bool, Field(strict=True)] = False
    """Make the plan at the start when `file` is not there: as few experts to host RAM as fit the cards, the same number
    in each layer. Needs `checkpoint`. Default false."""
    kv_gib: Annotated[float, Field(strict=True, gt=0, le=1024)] = 8.0
    """KV cache that a plan made here leaves room for on each card, GiB. Default 8."""

    @model_validator(mode="after")
    def _together(self) -> PlanSettings:
        if self.checkpoint is not None and self.file is None:
            raise ValueError('checkpoint alone plans nothing: set file as well, for instance file = "plan.json"')
        if self.make and self.checkpoint is None:
            raise ValueError("make needs checkpoint, the folder whose headers it plans by")
        return self
