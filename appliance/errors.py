"""Errors of the box and the engine, each with an exit code and a remedy. Pure."""

from __future__ import annotations

from gateway.errors import EXIT_CONFIG, ConfigError, MoeError

__all__ = [
    "EXIT_CONFIG",
    "AlreadyRunning",
    "CheckpointError",
    "ConfigError",
    "ModelError",
    "MoeError",
    "NotRunning",
    "PlanError",
    "PortTaken",
]


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
