"""The page's templates and static files, read once. Touches the package's own files.

Static files are addressed with a hash of their content, so that browsers may keep them for ever.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway.status import sparkline

_HERE = Path(__file__).parent
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file: bytes, content type, address below the server's root."""

    body: bytes
    content_type: str
    url: str


def static_files() -> dict[str, Asset]:
    """All static files by name; nothing else below /admin/static/ exists."""
    found = {}
    for path in sorted((_HERE / "static").iterdir()):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            url = f"/admin/static/{path.name}?v={hashlib.sha256(body).hexdigest()[:12]}"
            found[path.name] = Asset(body, _TYPES[path.suffix], url)
    return found


def templates(assets: dict[str, Asset]) -> Environment:
    """The environment: everything escaped, an unknown name is an error, `asset(NAME)` gives an address, the filters
    `spark_line` and `spark_area` draw points, `ticks` makes `this` code."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals["asset"] = lambda name: assets[name].url
    environment.filters |= {"spark_line": sparkline.line, "spark_area": sparkline.area, "ticks": _ticks}
    return environment


def _ticks(text: str) -> Markup:
    """Text whose parts between backticks are code; all of it escaped."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))
