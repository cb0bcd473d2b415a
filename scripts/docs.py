"""Writes the pages of docs/ that say what the code says: settings, fields of key files and plans, checks of preflight,
and what `moe-appliance connect` prints.

`--check` writes nothing and ends with 1 when a page differs from what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a file, from anywhere

from appliance.box.checks.page import page as preflight
from appliance.box.settings import PreflightSettings
from appliance.config import ENGINES, PREFIX, Config
from appliance.engine.vllm.nodes import Nodes
from appliance.engine.vllm.settings import VllmSettings
from appliance.plan import pages
from appliance.plan.settings import PlanSettings
from gateway.agents.text import page as agents
from gateway.keyfile import AdminRow, PreviousKey, SeatRow
from gateway.prewarm.settings import PrefixSettings, PrewarmSettings
from gateway.settings import AdmissionSettings, LedgerSettings, LimitSettings

DOCS = Path(__file__).parents[1] / "docs"
TABLES: dict[str, type[BaseModel]] = {
    "admission": AdmissionSettings,
    "gateway": LimitSettings,
    "ledger": LedgerSettings,
    "prewarm": PrewarmSettings,
    "plan": PlanSettings,
    "preflight": PreflightSettings,
}
TYPES = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path", dict: "table"}
HEAD = """\
# Configuration

<!-- Written by scripts/docs from the settings themselves. Change their docstrings, then run scripts/docs. -->

One file, `appliance.toml`, holds what an operator may set. The first of these that exists is read: the file named with
`--config`, the one named in `$MOE_APPLIANCE_CONFIG`, `./appliance.toml`, `/etc/moe-appliance/appliance.toml`. Without a
file the defaults hold. Seats and admins have files of their own: [seats.md](seats.md).

On a box with the package, root, and whoever else may look into `/etc/moe-appliance`, gets the file there from any
folder: `./appliance.toml` is not looked for, since anybody may have put it there. `--config` and
`$MOE_APPLIANCE_CONFIG` name another.

- An unknown key is refused, with the file, the line and the key. Nothing of a file with a mistake is applied.
- A path that does not begin with / is relative to the folder of the file, or to the current one without a file.
- Each setting has an environment variable, given below, that wins over the file. Text and paths are written as they
  are, numbers and true or false as in the file, lists and tables as JSON: `["10.0.0.1"]`. A variable that begins
  with `MOE_APPLIANCE_` and is no setting is refused too.
- Units are in the names: `_s` seconds, `_bytes` bytes, `_tokens` tokens, `_tok_per_s` tokens a second.
"""


def configuration() -> str:
    """The whole page."""
    parts = [HEAD, "\n## Top of the file\n"]
    tables = {"engine", "prefix", *TABLES}
    for name, field in Config.model_fields.items():
        if name not in tables:
            parts.append(_entry(name, field, PREFIX + name.upper()))
    for kind, model in ENGINES.items():
        parts.append(f'\n## [engine], kind = "{kind}"\n\n{_about(model)}\n')
        first = {"kind": model.model_fields["kind"]}
        parts += (_entry(n, f, f"{PREFIX}ENGINE__{n.upper()}") for n, f in (first | model.model_fields).items())
        if model is VllmSettings:
            parts.append(f"\n## [engine.nodes]\n\n{_about(Nodes)} The variable holds all of it.\n")
            parts += (_entry(n, f, f"{PREFIX}ENGINE__NODES") for n, f in Nodes.model_fields.items())
    for table, model in TABLES.items():
        parts.append(f"\n## [{table}]\n\n{_about(model)}\n")
        parts += (_entry(n, f, f"{PREFIX}{table.upper()}__{n.upper()}") for n, f in model.model_fields.items())
    parts.append(f"\n## [[prefix]]\n\n{_about(PrefixSettings)} The variable holds all of them.\n")
    parts += (_entry(n, f, f"{PREFIX}PREFIX") for n, f in PrefixSettings.model_fields.items())
    return "".join(parts)


def _about(model: type[BaseModel]) -> str:
    """A model's docstring without the table that it begins with, which is the heading already."""
    said = " ".join((model.__doc__ or "").split()).rpartition("`: ")[2]
    return said[:1].upper() + said[1:]


def _entry(name: str, field: FieldInfo, variable: str) -> str:
    required = " Required." if field.is_required() else ""
    said = " ".join((field.description or "").split())
    return f"\n### {name}\n\n{said}{required}\n\nType: {_type(field)}. Variable: `{variable}`.\n"


def _type(field: FieldInfo) -> str:
    kind: Any = field.annotation
    members = [member for member in get_args(kind) if member is not type(None)]
    if type(None) in get_args(kind) and members:
        kind = get_args(members[0])[0] if hasattr(members[0], "__metadata__") else members[0]
    words = TYPES.get(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        words = "table"
    elif get_origin(kind) is tuple:
        words = "list of text"
    elif get_origin(kind) is dict:
        words = "table of text"
    elif words is None:
        words = " or ".join(f'"{value}"' for value in get_args(kind))
    return words + "".join(_bounds(field, members))


def _bounds(field: FieldInfo, members: list[Any]) -> Iterator[str]:
    inner = [item for member in members for item in getattr(member, "__metadata__", ())]
    for item in [*field.metadata, *(bound for wrap in inner for bound in getattr(wrap, "metadata", [wrap]))]:
        match item:
            case Ge(ge=bound):
                yield f", at least {bound}"
            case Gt(gt=bound):
                yield f", more than {bound}"
            case Le(le=bound):
                yield f", at most {bound}"
            case Lt(lt=bound):
                yield f", less than {bound}"


def fields_of(model: type[BaseModel]) -> str:
    """The fields of a row of a key file, as a list."""
    lines = []
    for name, field in model.model_fields.items():
        required = " Required." if field.is_required() else ""
        lines.append(f"- `{name}`: {' '.join((field.description or '').split())}{required}\n")
    return "".join(lines)


def seats(page: str) -> str:
    """The page with its field lists brought up to date; the prose around them stays."""
    for name, model in (("seats", SeatRow), ("previous", PreviousKey), ("admins", AdminRow)):
        begin, end = f"<!-- fields: {name} -->\n", "<!-- end -->"
        before, _, rest = page.partition(begin)
        page = before + begin + fields_of(model) + end + rest.partition(end)[2]
    return page


def wanted() -> dict[str, str]:
    """Each page's name and what must be in it."""
    return {
        "configuration.md": configuration(),
        "seats.md": seats((DOCS / "seats.md").read_text()),
        "agents.md": agents(),
        "plans.md": pages.page(),
        "plan.schema.json": pages.schema_json(),
        "preflight.md": preflight(),
    }


def main(argv: list[str]) -> int:
    """Write or check the pages; returns the exit code."""
    stale = 0
    for name, text in wanted().items():
        path = DOCS / name
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in argv:
            print(f"error: docs/{name} is not what the code says\nremedy: scripts/docs", file=sys.stderr)
            stale = 1
        else:
            path.write_text(text)
            print(f"docs/{name} written")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
