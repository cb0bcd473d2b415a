"""Listens on a Unix datagram socket, as systemd and journald do. Touches sockets and a thread."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Datagrams:
    """What came to `address` ("@" begins an abstract name), in order, with when. A message that came as a file is read
    from it. Use it as a context."""

    address: str
    got: list[tuple[float, bytes]] = field(default_factory=list)
    _came: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> Datagrams:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.address[1:] if self.address.startswith("@") else self.address)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)
        self._thread.join(5)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            data, rights, _, _ = self._socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
            for _, _, raw in rights:
                (fd,) = array.array("i", raw)
                with os.fdopen(fd, "rb") as file:
                    file.seek(0)
                    data += file.read()
            if not data:
                return
            with self._came:
                self.got.append((time.monotonic(), data))
                self._came.notify_all()

    @property
    def texts(self) -> list[str]:
        """All messages so far."""
        return [data.decode() for _, data in self.got]

    def wait(self, what: str, look: Callable[[list[str]], object], limit_s: float = 10.0) -> None:
        """Until the messages satisfy `look`."""
        with self._came:
            assert self._came.wait_for(lambda: look(self.texts), limit_s), (
                f"not within {limit_s:g} s: {what}: {self.texts}"
            )
