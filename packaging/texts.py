"""The Debian changelog, the copyright file and the completions, made from what the project says already. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import format_datetime


def debian_changelog(changelog: str, version: str, maintainer: str, epoch_s: int) -> str:
    """The newest section of CHANGELOG.md as the entry of this version, in Debian's form."""
    newest = changelog.split("\n## ")[1].split("\n", 1)[1]
    lines = [f"moe-appliance ({version}) unstable; urgency=medium", ""]
    for item in f"\n{newest.strip()}".split("\n- ")[1:]:
        said = " ".join(item.split())
        lines += textwrap.wrap(said, 78, initial_indent="  * ", subsequent_indent="    ", break_on_hyphens=False)
    lines += ["", f" -- {maintainer}  {format_datetime(datetime.fromtimestamp(epoch_s, UTC))}"]
    return "\n".join(lines) + "\n"


def copyright_file(licences: Iterable[str], year: int) -> str:
    """Who holds what: this project, and the wheels that the package carries unchanged."""
    lines = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name: moe-appliance",
        "Comment: The archives in /usr/lib/moe-appliance/wheels are other projects' releases,",
        " unchanged, each with its own licence and copyright notices inside:",
        *(f"  {licence}" for licence in sorted(set(licences))),
        "",
        "Files: *",
        f"Copyright: {year} the moe-appliance authors",
        "License: Apache-2.0",
        " On Debian systems the licence is in /usr/share/common-licenses/Apache-2.0.",
    ]
    return "\n".join(lines) + "\n"


def zsh_function(script: str) -> str:
    """Typer's script for zsh as a file in zsh's function path.

    zsh looks for its mark in the first line, and the first call, which only loads the file, must complete too.
    """
    return script.strip() + '\n\n_moe_appliance_completion "$@"\n'
