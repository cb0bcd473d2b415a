"""Each `moe-appliance ...` in the pages has verbs and options that exist, and each link leads somewhere."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from typer.main import get_command

from appliance.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "plans").glob("*.md")])
PATHS = [str(path.relative_to(ROOT)) for path in PAGES]
FENCE = re.compile(r"(?ms)^( *)```[^\n`]*\n(.*?)^ *```$")
SPAN = re.compile(r"`([^`]+)`")


def split(text: str) -> tuple[str, list[str]]:
    """Prose with its code spans, and the lines of code, with those that end in a backslash joined."""
    blocks = [textwrap.dedent(found[2]) for found in FENCE.finditer(text)]
    prose = FENCE.sub("", text)
    indented = re.findall(r"(?m)^ {4,}.*$", prose)
    lines = "\n".join([*blocks, *map(str.strip, indented)])
    return re.sub(r"(?m)^ {4,}.*$", "", prose), re.sub(r"\\\n\s*", "", lines).splitlines()


def invocations(text: str) -> Iterator[str]:
    """What stands behind `moe-appliance` wherever it is to be typed."""
    prose, lines = split(text)
    for code in [*(" ".join(span.split()) for span in SPAN.findall(prose)), *lines]:
        found = re.match(r"(?:\$ )?(?:sudo )?(?:\S*/)?moe-appliance (.+)", code)
        if found:  # what follows a comment's sign, several blanks or a semicolon is no part of it
            yield re.split(r" #| {2,}|; ?|&&", found[1])[0]


def fault(words: list[str]) -> str:
    """What of a command line does not exist, "" = all does. `[ ]`, `|` and names in capitals stand for the reader's."""
    command: click.Command = get_command(app)  # type: ignore[assignment]  # typer has a copy of click's classes
    takes_value = False
    for word in words:
        if word.startswith("-") and len(word) > 1:
            options = {name: param for param in command.params for name in (*param.opts, *param.secondary_opts)}
            name = word.partition("=")[0]
            if name != "--help" and name not in options:
                return f"{command.name} has no option {name}"
            takes_value = name in options and "=" not in word and not getattr(options[name], "is_flag", False)
        elif takes_value:
            takes_value = False
        elif hasattr(command, "commands") and not re.fullmatch(r"[A-Z.]+", word):
            if word not in command.commands:
                return f"{command.name} has no verb {word}"
            command = command.commands[word]
    return ""


def readable(words: str) -> list[str]:
    """Without the signs that say what may be left out. Alternatives are one after the other."""
    return shlex.split(re.sub(r"[\[\]()]|\s\|\s|\.\.\.", " ", words).replace("'", ""))


def anchors(page: Path) -> set[str]:
    """Of each heading, as GitHub makes them."""
    titles = re.findall(r"(?m)^#{1,6} +(.+?) *$", FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links(text: str) -> list[str]:
    """Where links and pictures lead to."""
    return re.findall(r"\]\(([^()\s]+)\)", SPAN.sub("", split(text)[0]))


@pytest.mark.parametrize("path", PATHS)
def test_what_a_page_says_to_type_has_verbs_and_options_that_exist(path: str) -> None:
    faults = {words: fault(readable(words)) for words in invocations((ROOT / path).read_text())}
    assert {words: what for words, what in faults.items() if what} == {}


@pytest.mark.parametrize("path", PATHS)
def test_the_links_of_a_page_lead_somewhere(path: str) -> None:
    page = ROOT / path
    broken = []
    for link in links(page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_verbs_and_options_that_do_not_exist_are_seen() -> None:
    text = (
        "`moe-appliance seats add ana --max-stream 2`\n\n    $ moe-appliance fly  # away\n\n```\nmoe-appliance\n```\n"
    )
    assert [fault(readable(words)) for words in invocations(text)] == [
        "add has no option --max-stream",
        "moe-appliance has no verb fly",
    ]
    assert fault(readable("seats size [DIR] [--profile FILE | --from-ledger] --config x.toml")) != ""
    assert fault(readable("--config appliance.toml seats limit NAME [--max-streams N]")) == ""


def test_commands_and_links_are_found_in_the_pages() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert len(list(invocations(text))) > 80
    assert len(links(text)) > 30
