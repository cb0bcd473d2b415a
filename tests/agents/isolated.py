"""Runs a command in a network namespace that has loopback only: `python -m tests.agents.isolated COMMAND ...`.

Touches namespaces, the loopback interface and the process itself, which becomes the command. Rules: root makes the
namespace directly, anybody else inside a user namespace of their own; where neither is allowed it says so and
exits with 78.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

OUTSIDE = ((socket.AF_INET, "1.1.1.1"), (socket.AF_INET6, "2606:4700:4700::1111"))
"""Addresses of the internet, reached on any machine that has a default route."""
_INSIDE = "--inside"
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_IFREQ = "16sh22x"


def routed() -> list[str]:
    """Addresses of OUTSIDE for which the kernel has a route. Sends nothing: a UDP connect only looks it up."""
    found = []
    for family, address in OUTSIDE:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect((address, 443))
            except OSError:
                continue
            found.append(address)
    return found


def loopback_up() -> None:
    """Switch `lo` on. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        _, flags = struct.unpack(_IFREQ, fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack(_IFREQ, b"lo", 0)))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack(_IFREQ, b"lo", flags | _IFF_UP))


def prefix() -> list[str]:
    """The command that puts another into a namespace of its own."""
    program = shutil.which("unshare")
    if program is None:
        _refuse("the program unshare is not there", "apt-get install util-linux")
    namespace = [program, "--net"] if os.geteuid() == 0 else [program, "--net", "--map-root-user"]
    tried = subprocess.run([*namespace, "--", "true"], capture_output=True, text=True)
    if tried.returncode:
        _refuse(
            f"this machine lets nobody make a network namespace ({tried.stderr.strip()})",
            "run as root, in a container with --cap-add SYS_ADMIN, or with sysctl kernel.unprivileged_userns_clone=1",
        )
    return namespace


def _refuse(why: str, remedy: str) -> NoReturn:
    print(f"error: the tests with real clients run without a network, but {why}", file=sys.stderr)
    print(f"remedy: {remedy}", file=sys.stderr)
    sys.exit(78)


def main(argv: Sequence[str]) -> NoReturn:
    """Become the command, inside."""
    if argv[:1] == [_INSIDE]:
        loopback_up()
        os.execvp(argv[1], list(argv[1:]))
    here = [sys.executable, str(Path(__file__)), _INSIDE]
    command = [*prefix(), "--", *here, *argv]
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
