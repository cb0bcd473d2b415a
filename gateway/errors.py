"""Errors that both packages raise: each carries a remedy that an operator can type. Pure.

Expected refusals (a full queue, a bad key) are values, not exceptions; see admission.py and dialects/.
"""

from __future__ import annotations

from pathlib import Path

EXIT_CONFIG = 78
"""sysexits(3) EX_CONFIG: nothing was started, and starting again without a change will not help."""

PACKAGE_STATE_DIR = Path("/var/lib/moe-appliance")
"""The state folder of the Debian package's configuration."""


def start_command(state_dir: Path) -> str:
    """What starts the box that keeps its state there. By hand, root would run all of the package's."""
    return "sudo systemctl start moe-appliance" if state_dir == PACKAGE_STATE_DIR else "moe-appliance run"


class MoeError(Exception):
    """Something is broken that the program cannot mend.

    `message` says what, naming the key, file, line or check; `remedy` is what to type or change;
    `exit_code` is what the command line exits with.
    """

    exit_code = 1

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  remedy: {self.remedy}"


class ConfigError(MoeError):
    """A configuration, seat or admin file that cannot be used; nothing of it was applied."""

    exit_code = EXIT_CONFIG
