"""Writes moe-appliance.1 from the command line's own help. Pure.

Hidden verbs and options are left out. Text is escaped: no word of a help can be a request to roff.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

EXIT_CODES = (
    ("0", "Done."),
    ("1", "Failed; the reason and what to do are on standard error."),
    ("2", "Wrong usage."),
    ("3", "Nothing runs that could answer."),
    ("78", "The configuration, an address or a folder cannot be used, or the box would not serve."),
    ("130", "Ended by Ctrl-C."),
)
FILES = (
    (
        "/etc/moe-appliance/appliance.toml",
        "What an operator may set. Whoever may read it gets this one in every folder, unless --config or "
        "$MOE_APPLIANCE_CONFIG names another.",
    ),
    ("/etc/moe-appliance/seats.toml", "Digests of the seats' keys; changed by moe-appliance seats."),
    ("/etc/moe-appliance/admins.toml", "Digests of the admins' tokens; changed by moe-appliance admins."),
    (
        "/etc/moe-appliance/first-admin-token",
        "The token made at install, for root to read; remove it once it is kept elsewhere.",
    ),
    ("/var/lib/moe-appliance", "What outlives a restart."),
    ("/run/moe-appliance", "Sockets and keys of the running service."),
    ("/usr/share/moe-appliance/plans", "Ready plans."),
    ("/usr/share/doc/moe-appliance", "Every setting, plans, preflight, agents, TLS."),
)


def manual(root: Any, version: str, epoch_s: int) -> str:
    """The page, for a root command of Typer's, a version and the day of its making (seconds since 1970)."""
    day = datetime.fromtimestamp(epoch_s, UTC).date().isoformat()
    context = _context(root, "moe-appliance", None)
    lines = [
        f'.TH MOE\\-APPLIANCE 1 {day} "moe-appliance {_text(version)}" "User Commands"',
        ".SH NAME",
        "moe\\-appliance \\- coding-agent server for a team, on one box",
        ".SH SYNOPSIS",
        ".B moe\\-appliance",
        _text(" ".join(root.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(root.help or ""),
        ".SH OPTIONS",
        *_parameters(root, context),
        ".SH COMMANDS",
    ]
    for words, command, inner in verbs(root, context):
        lines += [f".SS {_text(' '.join(words))}"]
        if not hasattr(command, "commands"):
            lines += [_text(" ".join(["moe-appliance", *words, *command.collect_usage_pieces(inner)])), ".PP"]
        lines += [*_paragraphs(command.help or ""), *_parameters(command, inner)]
    for title, pairs in (("EXIT STATUS", EXIT_CODES), ("FILES", FILES)):
        lines.append(f".SH {title}")
        for term, said in pairs:
            lines += [".TP", f".B {_text(term)}", _text(said)]
    lines += [".SH SEE ALSO", ".BR systemctl (1),", ".BR journalctl (1)"]
    return "\n".join(lines) + "\n"


def verbs(command: Any, context: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """(words, command, context) of every command below one, groups included, in the order of the help."""
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            below = _context(inner, name, context)
            yield (*words, name), inner, below
            yield from verbs(inner, below, (*words, name))


def _context(command: Any, name: str, parent: Any) -> Any:
    import typer

    return typer.Context(command, info_name=name, parent=parent, terminal_width=80)


def _parameters(command: Any, context: Any) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            yield from (".TP", f".B {_text(record[0])}", _text(" ".join(record[1].split())) or "\\ ")


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped
