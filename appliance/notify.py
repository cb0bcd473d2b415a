"""Tells the service manager how the daemon is: sd_notify(3) in the few words that we need. Touches one datagram socket
and, once, the environment.

Rules:
- Without NOTIFY_SOCKET every call does nothing. No call raises or blocks: a word that cannot be sent is lost, and the
  answer says so, so that the one that matters (READY=1) can be sent again.
- NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are taken out of the environment: a child that found them would speak
  for the daemon.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass

STATUS_MAX = 400
"""Letters of a status; systemd drops a datagram of more than 4096 bytes whole, and a letter has 4 at most."""


@dataclass(frozen=True, slots=True)
class Notify:
    """`address`: a socket's path, or a name that begins with "@" (abstract), "" = nobody listens. `watchdog_s`: within
    so many seconds the service manager wants the next `watchdog()`, None = it does not watch."""

    address: str = ""
    watchdog_s: float | None = None

    @classmethod
    def taken_from(cls, environ: MutableMapping[str, str], pid: int) -> Notify:
        """What the environment says to the process `pid`; its three variables are removed."""
        address = environ.pop("NOTIFY_SOCKET", "")
        limit, watched = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", str(pid))
        watchdog_s = int(limit) / 1e6 if limit.isascii() and limit.isdecimal() and watched == str(pid) else None
        return cls(address if address[:1] in ("/", "@") else "", watchdog_s or None)

    def ready(self) -> bool:
        """It serves; `systemctl start` returns."""
        return self._send("READY=1")

    def stopping(self) -> bool:
        """It ends, as it was asked to."""
        return self._send("STOPPING=1")

    def status(self, text: str) -> bool:
        """The line that `systemctl status` shows."""
        line = "".join(char if char.isprintable() else " " for char in text[:STATUS_MAX])
        return self._send(f"STATUS={line}")

    def watchdog(self) -> bool:
        """It is alive."""
        return self._send("WATCHDOG=1")

    def extend_timeout(self, by_s: float) -> bool:
        """Start or stop takes longer: wait for so many seconds from now, also beyond the unit's own limit."""
        return self._send(f"EXTEND_TIMEOUT_USEC={round(by_s * 1e6)}")

    def _send(self, text: str) -> bool:
        """Whether it is with the service manager. A socket for each word: the manager may have made its own anew."""
        if not self.address:
            return True
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with contextlib.suppress(OSError, ValueError):  # ValueError: letters that no path has
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
                sock.sendto(text.encode(errors="replace"), address)
            return True
        return False
