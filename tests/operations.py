"""What docs/operations.md tells an operator to type, and who types it in a test. Touches that page only.

Rules:
- Commands stand in ```console blocks, in lines that begin with "$ "; the lines below one are part of what it says, with
  ... for what was left out.
- A command of moe-appliance alone in its block is typed on a box with the fake engine, and on an installed one. A block
  with a command of the system is typed on an installed one only: what comes before may matter to what comes after.
- What no test can type is in LISTED, with the reason. A command that is in no class fails the tests.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PAGE = Path(__file__).parents[1] / "docs/operations.md"
SYSTEM = frozenset(
    ("apt", "apt-get", "cat", "df", "du", "journalctl", "mv", "nvidia-smi", "rm", "runuser", "systemctl", "tail", "tar")
)
"""Programs that an installed box has beside ours."""
LISTED = {
    "apt install --no-install-recommends ./moe-appliance_*_amd64.deb": "tests/systemd/test_install.py",
    "apt remove moe-appliance": "the other tests need the package; tests/systemd/test_life.py",
    "apt purge moe-appliance": "the other tests need the package; tests/systemd/test_life.py",
    "moe-appliance preflight --deep": "needs a GPU and a stopped engine; tests/box/test_deep.py",
    "nvidia-smi": "needs a GPU",
    "systemctl reboot": "ends the machine; what was set outlives it: tests/e2e/test_operator.py",
    "moe-appliance checkpoint fetch ORG/NAME@REVISION --to /srv/models/MODEL": "needs a hub; tests/checkpoint",
    "moe-appliance checkpoint verify /srv/models/MODEL": "hashes 57 GiB; tests/checkpoint/test_verify.py",
}
"""Command -> why no test types it, and where what it does is tested."""
ENDLESS = frozenset({"moe-appliance status --watch", "moe-appliance events --follow"})
"""They go on until Ctrl-C, which is what the test does; on a box with the fake engine only."""
EXITS = {
    "moe-appliance preflight": {0, 1},
    "moe-appliance preflight --cached": {0, 1},
    "moe-appliance plan diff /etc/moe-appliance/plan.json /etc/moe-appliance/plan.new.json": {1},
    "moe-appliance seats size --from-ledger": {1},
    "moe-appliance simulate --seats 5 --hours 1 --seeds 2 --measured": {0, 1},
    "moe-appliance doctor --out /var/backups/bundle.tar.gz": {0, 1},
    "journalctl -k -b --no-pager --grep 'NVRM|Xid'": {0, 1},
}
"""Command -> exit codes that are right, where 0 alone is not: findings of this machine, another plan, too little in
the ledger, too little measured."""

Tier = Literal["box", "systemd", "listed", "none"]


@dataclass(frozen=True, slots=True)
class Command:
    """One line to type. `said`: lines that it must print, in this order; `line`: where it stands in the page."""

    text: str
    said: tuple[str, ...]
    line: int
    tier: Tier

    @property
    def exits(self) -> set[int]:
        """Exit codes that are right."""
        return EXITS.get(self.text, {0})

    def missing(self, output: str) -> str:
        """The first line that should be in `output` and is not, "" = all are. Runs of white space are one space."""
        rest = " ".join(output.split())
        for wanted in self.said:
            pattern = r".*?".join(re.escape(" ".join(part.split())) for part in wanted.split("..."))
            found = re.search(pattern, rest)
            if found is None:
                return wanted
            rest = rest[found.end() :]
        return ""

    def fault(self, code: int, output: str) -> str:
        """What is wrong with how it ended, "" = nothing."""
        told = f"{PAGE.name}:{self.line}: $ {self.text}\n{output[-3000:]}"
        if code not in self.exits:
            return f"exit code {code}\n{told}"
        missing = self.missing(output)
        return f"it did not say {missing!r}\n{told}" if missing else ""


def commands(page: str | None = None) -> list[Command]:
    """All commands of the page, in its order."""
    text = PAGE.read_text() if page is None else page
    return [command for block in _blocks(text) for command in _commands(*block)]


def commands_for(tier: Literal["box", "systemd"]) -> list[Command]:
    """What a tier types, in the page's order: the systemd tier all but what is listed or goes on for ever."""
    if tier == "box":
        return [command for command in commands() if command.tier == "box"]
    return [command for command in commands() if command.tier in ("box", "systemd") and command.text not in ENDLESS]


def _blocks(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each ```console block: the number of its first line, its lines without what indents all of them."""
    for found in re.finditer(r"(?ms)^ *```console\n(.*?)^ *```$", text):
        yield text.count("\n", 0, found.start(1)) + 1, textwrap.dedent(found[1]).splitlines()


def _joined(lines: list[str], start: int) -> tuple[str, int]:
    """The command that begins at `start`, goes on where a line ends with a backslash; and where its output begins."""
    parts = [lines[start].removeprefix("$ ")]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1].removesuffix("\\").strip()
        parts.append(lines[start + len(parts)].strip())
    return " ".join(parts), start + len(parts)


def _commands(first: int, lines: list[str]) -> Iterator[Command]:
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"{PAGE.name}:{first}: a console block begins with a command"
    typed = [_joined(lines, start) for start in starts]
    ours = all(_is_ours(text) for text, _ in typed if text not in LISTED)
    for (text, begin), start, end in zip(typed, starts, [*starts[1:], len(lines)], strict=True):
        said = tuple(line for line in lines[begin:end] if line.strip())
        yield Command(text, said, first + start, _tier(text, ours))


def _tier(text: str, ours: bool) -> Tier:
    if text in LISTED:
        return "listed"
    if _is_ours(text):
        return "box" if ours else "systemd"
    return "systemd" if text.split()[0] in SYSTEM else "none"


def _is_ours(text: str) -> bool:
    return text.split()[0] == "moe-appliance"
