"""What the residency plugin inside the engine counted last. Touches one small file, in a thread.

Rule: whatever cannot be believed (no file, half of one, another schema, one from before this start) means that nothing
was counted since the start, and is no error: figures are for people, and the engine serves without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from appliance.files import read_regular
from appliance.residency.deciding import FIGURES, FIGURES_SCHEMA, WRITE_S
from appliance.unwaited import unwaited
from gateway.state import ResidencyFigures

PERIOD_S = WRITE_S
"""Between two looks: the plugin writes no more often."""
LIMIT_BYTES = 1 << 14
"""Of the file, which has some 300."""
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Some = Annotated[int, Field(ge=1, lt=2**63)]


class _Said(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    schema_: Annotated[str, Field(alias="schema")]
    at: Annotated[float, Field(ge=0)]
    tokens: _Some
    seconds: Annotated[float, Field(gt=0)]
    visits: _Some
    cold_visits: _Count
    cold_bytes: _Count
    swapped: _Count


def parse(text: str | bytes, since_s: float) -> ResidencyFigures | None:
    """The figures in `text`; None when it has none that were counted at `since_s` (wall clock) or later."""
    try:
        said = _Said.model_validate_json(text)
    except ValidationError:
        return None
    if said.schema_ != FIGURES_SCHEMA or said.at < since_s or said.cold_visits > said.visits:
        return None
    return ResidencyFigures(at_s=said.at, **said.model_dump(exclude={"schema_", "at"}))


def read(folder: Path, since_s: float) -> ResidencyFigures | None:
    """What the plugin wrote into `folder`; as `parse`. A file of more than LIMIT_BYTES is none of its own."""
    try:
        return parse(read_regular(folder / FIGURES, LIMIT_BYTES), since_s)
    except OSError:
        return None


async def watch(folder: Path, since_s: float, tell: Callable[[ResidencyFigures], None]) -> None:
    """Read again and again, until it is cancelled; each time `tell` on the event loop."""
    nothing = ResidencyFigures(at_s=since_s)
    while True:
        found = await unwaited(lambda: read(folder, since_s))
        tell(found or nothing)
        await asyncio.sleep(PERIOD_S)
