"""A client that sees what a client sees on the wire: every byte, when it came, and how the connection ended.

Touches loopback sockets and threads. Rules: it never retries, never pools and never hides an end: `clean` is true
only when the response was whole by HTTP's own rules (length reached, or the terminating chunk).
"""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

LIMIT_S = 60.0


@dataclass
class Answer:
    """One response. Times are `time.monotonic()` values; `error` is how the connection broke, "" = it did not."""

    sent_s: float = 0.0
    raw: bytes = b""
    first_s: float | None = None
    ended_s: float | None = None
    error: str = ""

    @property
    def head(self) -> bytes:
        """Status line and headers, b"" until they are whole."""
        head, found, _ = self.raw.partition(b"\r\n\r\n")
        return head if found else b""

    @property
    def status(self) -> int:
        """The HTTP status, 0 when there was no response."""
        return int(self.head.split(b" ", 2)[1]) if self.head else 0

    @property
    def headers(self) -> dict[str, str]:
        """Lower-case names."""
        pairs = [line.decode("latin-1").partition(":") for line in self.head.split(b"\r\n")[1:]]
        return {name.lower(): value.strip() for name, _, value in pairs}

    def _parsed(self) -> tuple[bytes, bool]:
        rest = self.raw.partition(b"\r\n\r\n")[2]
        if not self.head:
            return b"", False
        if "content-length" in self.headers:
            return rest, len(rest) == int(self.headers["content-length"])
        body = b""
        while True:
            size, found, rest = rest.partition(b"\r\n")
            if not found:
                return body, False
            count = int(size, 16)
            if count == 0:
                return body, rest == b"\r\n"
            body += rest[:count]
            if len(rest) < count + 2:
                return body, False
            rest = rest[count + 2 :]

    @property
    def body(self) -> bytes:
        """As far as it came, without the chunk frames."""
        return self._parsed()[0]

    @property
    def clean(self) -> bool:
        """Whether the response ended as HTTP says that it is whole."""
        return self._parsed()[1]

    @property
    def events(self) -> list[str]:
        """The data lines of an event stream."""
        lines = self.body.decode(errors="replace").splitlines()
        return [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]

    @property
    def done(self) -> bool:
        """Whether the stream said [DONE]."""
        return "[DONE]" in self.events

    @property
    def in_stream_error(self) -> dict[str, Any] | None:
        """The error event, if one came."""
        for event in self.events:
            if event.startswith("{") and "error" in (parsed := json.loads(event)):
                error: dict[str, Any] = parsed["error"]
                return error
        return None

    @property
    def content(self) -> str:
        """The text of all chunks of a chat stream."""
        chunks = [json.loads(event) for event in self.events if event.startswith("{")]
        return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk.get("choices", ()))

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)

    @property
    def cut(self) -> bool:
        """Whether nobody can take it for a whole answer: neither [DONE] nor a clean end."""
        return not self.done and not self.clean

    def told(self) -> str:
        """For assertion messages."""
        return f"status {self.status}, clean {self.clean}, error {self.error!r}, tail {self.raw[-300:]!r}"


@dataclass
class Call:
    """One request under way in a thread of its own."""

    port: int
    request: bytes
    limit_s: float = LIMIT_S
    answer: Answer = field(default_factory=Answer)

    def __post_init__(self) -> None:
        self._sock = socket.socket()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        answer = self.answer
        try:
            with self._sock as sock:
                sock.settimeout(self.limit_s)
                sock.connect(("127.0.0.1", self.port))
                answer.sent_s = time.monotonic()
                sock.sendall(self.request)
                while data := sock.recv(65_536):
                    self._note(data)
        except OSError as error:
            answer.error = type(error).__name__
        answer.ended_s = time.monotonic()
        self._note(b"")

    def _note(self, data: bytes) -> None:
        with self._changed:
            if data and self.answer.first_s is None:
                self.answer.first_s = time.monotonic()
            self.answer.raw += data
            self._changed.notify_all()

    def wait_bytes(self, marker: bytes, limit_s: float = 10.0) -> None:
        """Until `marker` is in what came."""
        with self._changed:
            found = self._changed.wait_for(lambda: marker in self.answer.raw or self.answer.ended_s, limit_s)
        assert found, f"{marker!r} did not come: {self.answer.told()}"
        assert marker in self.answer.raw, f"{marker!r} did not come: {self.answer.told()}"

    def wait(self, limit_s: float = LIMIT_S) -> Answer:
        """Until the connection ended."""
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), f"still open after {limit_s} s: {self.answer.told()}"
        return self.answer

    def close(self) -> None:
        """Go away, if it is still there."""
        if self._thread.is_alive():
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                self._sock.close()
            self._thread.join(5)


def request_bytes(method: str, path: str, key: str | None, body: bytes | None = None) -> bytes:
    """One HTTP/1.1 request on a connection of its own."""
    lines = [f"{method} {path} HTTP/1.1", "host: box", "connection: close"]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def chat_body(text: str = "hello", *, stream: bool = True, max_tokens: int = 8, model: str = "fake-model") -> bytes:
    """A chat completion request."""
    messages = [{"role": "user", "content": text}]
    fields = {"model": model, "messages": messages, "stream": stream, "max_tokens": max_tokens}
    return json.dumps(fields).encode()
