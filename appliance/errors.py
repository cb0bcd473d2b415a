"""Errors of the box and the engine, each with an exit code and a remedy. Pure."""

from __future__ import annotations

from gateway.errors import EXIT_CONFIG, PACKAGE_STATE_DIR, ConfigError, MoeError, start_command

__all__ = [
    "DEMO_EXTRA",
    "EXIT_CONFIG",
    "PACKAGE_STATE_DIR",
    "AlreadyRunning",
    "CheckpointError",
    "ConfigError",
    "ModelError",
    "MoeError",
    "NotRunning",
    "PlanError",
    "PortTaken",
    "start_command",
]

DEMO_EXTRA = (
    "pip install 'moe-appliance[demo]'   (the Debian package has no embedded engine: "
    "set [engine] kind in /etc/moe-appliance/appliance.toml)"
)
"""What to do where a package of the extra `demo` is missing."""


class PortTaken(MoeError):
    """The public address cannot be bound."""

    exit_code = EXIT_CONFIG


class AlreadyRunning(MoeError):
    """Another daemon, `pid` if that is known, holds the state folder."""

    exit_code = EXIT_CONFIG

    def __init__(self, message: str, remedy: str, pid: int | None = None) -> None:
        super().__init__(message, remedy)
        self.pid = pid


class NotRunning(MoeError):
    """No daemon answers on the control socket."""

    exit_code = 3


class ModelError(MoeError):
    """The model file cannot be fetched, or is not what it should be."""


class CheckpointError(MoeError):
    """A checkpoint cannot be read, or is not what its headers and index say; names the file and the tensor."""


class PlanError(MoeError):
    """A plan file cannot be used, or none can be made; names the key."""
