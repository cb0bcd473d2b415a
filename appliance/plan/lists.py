"""What people write to choose experts by hand: layers in order, and a file of experts. Pure, but for `expert_table`,
which reads one file."""

from __future__ import annotations

from pathlib import Path

from appliance.errors import PlanError
from appliance.plan import jsonfile, ranges
from appliance.printable import printable


def layer_list(text: str) -> tuple[int, ...]:
    """The layers of "39,20-22", in the order in which they are written. Raises PlanError."""
    layers: list[int] = []
    try:
        for part in text.split(","):
            layers += ranges.parse(part)
        ranges.parse(text)
    except ValueError as error:
        raise PlanError(f"--layers: {printable(str(error))}", "--layers 20-39, or --layers 3,1,2") from error
    return tuple(layers)


def expert_table(path: Path) -> dict[int, tuple[int, ...]]:
    """Layer -> experts, from a JSON file in the form of host.experts: {"3": "0-11,40"}. Raises PlanError."""
    file = printable(str(path))
    remedy = 'write it as host.experts of a plan: {"3": "0-11,40"}'
    table = jsonfile.value(jsonfile.content(path, "a list of experts", remedy), str(path), remedy)
    if not isinstance(table, dict):
        raise PlanError(f"{file}: must be a table of layers", remedy)
    experts: dict[int, tuple[int, ...]] = {}
    for key, text in table.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 6 and key == str(int(key))):
            raise PlanError(f"{file}: {printable(key, 40)}: is not a layer's number", remedy)
        if not isinstance(text, str):
            raise PlanError(f"{file}: {key}: must be a text of ranges", remedy)
        try:
            experts[int(key)] = ranges.parse(text)
        except ValueError as error:
            raise PlanError(f"{file}: {key}: {printable(str(error))}", remedy) from error
    return experts
