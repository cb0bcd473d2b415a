"""Requests whose length can be read in two ways, in all known forms: the engine gets one, byte for byte, or none.

The engine here writes down whatever arrives on each of its connections, so that a second request could not hide.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.gateway.running import Running, running
from tests.gateway.wire import CHAT, chat, connect, head, post

pytestmark = pytest.mark.anyio

BODY = json.dumps(chat("the one request")).encode()
HIDDEN = post(chat("SMUGGLED"))
REPLY = b'{"id":"1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'
HERE = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
PIECE = b"%x" % len(BODY)


@dataclass(slots=True)
class Recorder:
    """An engine that answers one request a connection and keeps every byte. `raw`: one entry a connection."""

    raw: list[bytearray] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read to the end of the connection; answer when the first request is whole."""
        seen, answered = bytearray(), False
        self.raw.append(seen)
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                seen += data
                top, end, rest = bytes(seen).partition(b"\r\n\r\n")
                if end and not answered and len(rest) >= length_of(top):
                    answered = True
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                    writer.write(b"content-length: %d\r\n\r\n%s" % (len(REPLY), REPLY))
        writer.close()

    def bodies(self) -> list[bytes]:
        """What a strict reader finds: every connection is one request, its length said once and in one way."""
        found = []
        for raw in self.raw:
            top, end, body = bytes(raw).partition(b"\r\n\r\n")
            lines = top.lower().split(b"\r\n")
            assert end
            assert lines[0].startswith(b"post /v1/")
            assert sum(line.startswith(b"content-length:") for line in lines) == 1
            assert not any(line.startswith(b"transfer-encoding") for line in lines)
            assert not any(b"\n" in line or b"\r" in line for line in lines)
            assert len(body) == length_of(top)
            found.append(body)
        return found


def length_of(top: bytes) -> int:
    """The length that a head says."""
    return int(top.lower().split(b"content-length:")[1].split(b"\r\n")[0])


@asynccontextmanager
async def recorded() -> AsyncIterator[tuple[Running, Recorder]]:
    recorder = Recorder()
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with running(engine_url=url) as gateway:
            yield gateway, recorder
    finally:
        server.close()
        for writer in recorder.writers:
            writer.transport.abort()
        await asyncio.sleep(0.001)


async def all_answers(gateway: Running, data: bytes) -> bytes:
    """Whatever comes back until the connection ends, or nothing more is under way."""
    async with connect(gateway, data) as client:
        said = bytearray()
        with contextlib.suppress(TimeoutError, ConnectionError):
            while True:
                async with asyncio.timeout(0.15 if said else 5.0):
                    if not (piece := await client.reader.read(65_536)):
                        break
                said += piece
        return bytes(said)


def request(lines: bytes, body: bytes, start: bytes | None = None) -> bytes:
    """A chat request whose head ends in `lines`."""
    return (start or head(CHAT, "a").removesuffix(b"\r\n")) + lines + b"\r\n" + body


TE = b"Transfer-Encoding: chunked\r\n"
AMBIGUOUS = {
    # Both lengths
    "CL.TE": request(HERE + TE, CHUNKED),
    "TE.CL": request(TE + HERE, CHUNKED),
    "CL 0 and TE": request(b"Content-Length: 0\r\n" + TE, CHUNKED),
    "CL and TE in capitals": request(HERE + b"TRANSFER-ENCODING: CHUNKED\r\n", CHUNKED),
    # TE that some read and others do not
    "TE xchunked": request(b"Transfer-Encoding: xchunked\r\n", CHUNKED),
    "TE identity": request(b"Transfer-Encoding: identity\r\n", CHUNKED),
    "TE chunked, identity": request(b"Transfer-Encoding: chunked, identity\r\n", CHUNKED),
    "TE identity, then chunked": request(b"Transfer-Encoding: identity\r\n" + TE + HERE, CHUNKED),
    "TE chunked, then identity": request(TE + b"Transfer-Encoding: identity\r\n", CHUNKED),
    "TE twice": request(TE + b"Transfer-Encoding: x\r\n" + HERE, CHUNKED),
    "TE quoted": request(b'Transfer-Encoding: "chunked"\r\n', CHUNKED),
    "TE with a parameter": request(b"Transfer-Encoding: chunked;q=1\r\n", CHUNKED),
    "TE behind a vertical tab": request(b"Transfer-Encoding: \x0bchunked\r\n" + HERE, CHUNKED),
    "TE behind a form feed": request(b"Transfer-Encoding: \x0cchunked\r\n" + HERE, CHUNKED),
    "TE behind a no-break space": request(b"Transfer-Encoding: \xa0chunked\r\n" + HERE, CHUNKED),
    "TE before a NUL": request(b"Transfer-Encoding: chunked\x00\r\n" + HERE, CHUNKED),
    "TE name with a space": request(b"Transfer-Encoding : chunked\r\n" + HERE, CHUNKED),
    "TE name with a tab": request(b"Transfer-Encoding\t: chunked\r\n" + HERE, CHUNKED),
    "TE name with a NUL": request(b"Transfer-Encoding\x00: chunked\r\n" + HERE, CHUNKED),
    "TE name with a CR": request(b"Transfer-\rEncoding: chunked\r\n" + HERE, CHUNKED),
    "TE line with a space before it": request(b" Transfer-Encoding: chunked\r\n" + HERE, CHUNKED),
    "TE in a folded line": request(b"X-A: b\r\n Transfer-Encoding: chunked\r\n" + HERE, CHUNKED),
    "TE value in a folded line": request(b"Transfer-Encoding:\r\n chunked\r\n" + HERE, CHUNKED),
    "TE value in a line folded with a tab": request(b"Transfer-Encoding:\r\n\tchunked\r\n" + HERE, CHUNKED),
    "TE behind a lone CR": request(b"X-A: b\rTransfer-Encoding: chunked\r\n" + HERE, CHUNKED),
    "TE behind a lone LF": request(b"X-A: b\nTransfer-Encoding: chunked\r\n" + HERE, CHUNKED),
    "TE behind LF CR": request(b"X-A: b\n\rTransfer-Encoding: chunked\r\n" + HERE, CHUNKED),
    # Lengths
    "CL twice, different": request(HERE + b"Content-Length: 6\r\n", BODY),
    "CL twice, the same": request(HERE + HERE, BODY),
    "CL as a list": request(HERE[:-2] + b", 6\r\n", BODY),
    "CL as a list of one": request(HERE[:-2] + b",\r\n", BODY),
    "CL with a plus": request(HERE.replace(b": ", b": +"), BODY),
    "CL with a minus": request(b"Content-Length: -1\r\n", BODY),
    "CL in hex": request(b"Content-Length: 0x%x\r\n" % len(BODY), BODY),
    "CL with an exponent": request(b"Content-Length: 1e2\r\n", BODY),
    "CL with a point": request(HERE[:-2] + b".0\r\n", BODY),
    "CL with an underscore": request(b"Content-Length: 1_0\r\n", BODY),
    "CL with a space inside": request(b"Content-Length: 1 0\r\n", BODY),
    "CL with a NUL": request(HERE[:-2] + b"\x00\r\n", BODY),
    "CL in other digits": request("Content-Length: \u0665\r\n".encode(), BODY),
    "CL above 64 bits": request(b"Content-Length: %d\r\n" % (2**64 + len(BODY)), BODY),
    "CL empty": request(b"Content-Length:\r\n", BODY),
    "CL name with a space": request(HERE.replace(b":", b" :"), BODY),
    "CL in a folded line": request(b"X-A: b\r\n " + HERE, BODY),
    "CL value in a folded line": request(HERE.replace(b": ", b":\r\n "), BODY),
    "CL behind a lone LF": request(b"X-A: b\n" + HERE, BODY),
    "CL line that ends in LF": request(HERE[:-2] + b"\n", BODY),
    # Chunks
    "chunk size with a plus": request(TE, b"+" + CHUNKED),
    "chunk size with a minus": request(TE, b"-" + CHUNKED),
    "chunk size in 0x": request(TE, b"0x" + CHUNKED),
    "chunk size with an underscore": request(TE, b"0_" + CHUNKED),
    "chunk size behind a space": request(TE, b" " + CHUNKED),
    "chunk size with a NUL": request(TE, CHUNKED.replace(PIECE, PIECE + b"\x00", 1)),
    "chunk size above 64 bits": request(TE, b"1" + b"0" * 16 + CHUNKED),
    "chunk size empty": request(TE, b"\r\n" + CHUNKED),
    "chunk size that ends in LF": request(TE, CHUNKED.replace(b"\r\n", b"\n", 1)),
    "chunk size that ends in CR": request(TE, CHUNKED.replace(b"\r\n", b"\r", 1)),
    "chunk size that ends in CR CR LF": request(TE, CHUNKED.replace(b"\r\n", b"\r\r\n", 1)),
    "chunk extension with LF": request(TE, CHUNKED.replace(b"\r\n", b";a\n0\r\n", 1)),
    "chunk extension with CR": request(TE, CHUNKED.replace(b"\r\n", b";a\rb\r\n", 1)),
    "chunk without its end": request(TE, CHUNKED.replace(b"}\r\n0", b"}0")),
    "chunk that ends in LF": request(TE, CHUNKED.replace(b"}\r\n0", b"}\n0")),
    "chunk longer than said": request(TE, CHUNKED.replace(b"}\r\n0", b"}xx\r\n0")),
    "last chunk with LF": request(TE, CHUNKED.replace(b"\r\n0\r\n", b"\r\n0\n")),
    "trailers that say another length": request(TE, CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n"),
    # Lines
    "header line with a lone CR": request(b"X-A: b\rc\r\n" + HERE, BODY),
    "header line with a NUL": request(b"X-A: b\x00c\r\n" + HERE, BODY),
    "header without a colon": request(b"X-A\r\n" + HERE, BODY),
    "header without a name": request(b": b\r\n" + HERE, BODY),
    "folded header": request(b"X-A: b\r\n c\r\n" + HERE, BODY),
    "space before the first header": request(b"", BODY, b"POST /v1/chat/completions HTTP/1.1\r\n X: y\r\n" + HERE),
    "words behind the version": request(
        HERE, BODY, head(CHAT, "a").removesuffix(b"\r\n").replace(b".1\r", b".1 x\r", 1)
    ),
    "another version": request(HERE, BODY, head(CHAT, "a", version="1.2").removesuffix(b"\r\n")),
}
PLAIN = {
    "version 2": request(HERE, BODY, head(CHAT, "a", version="2.0").removesuffix(b"\r\n")),
    "two spaces": request(HERE, BODY, head(CHAT, "a").removesuffix(b"\r\n").replace(b" HTTP", b"  HTTP")),
    "CL": request(HERE, BODY),
    "CL with zeros": request(HERE.replace(b": ", b": 000"), BODY),
    "CL with spaces around": request(HERE.replace(b": ", b": \t ")[:-2] + b" \t\r\n", BODY),
    "CL without a space": request(HERE.replace(b": ", b":"), BODY),
    "chunked": request(TE, CHUNKED),
    "chunked in capitals": request(b"TRANSFER-ENCODING: CHUNKED\r\n", CHUNKED),
    "chunk size with zeros": request(TE, b"000" + CHUNKED),
    "chunk size in capitals": request(TE, CHUNKED.replace(PIECE, PIECE.upper(), 1)),
    "chunk extension": request(TE, CHUNKED.replace(b"\r\n", b';a="0";b\r\n', 1)),
    "underscored names": request(b"Transfer_Encoding: chunked\r\nContent_Length: 3\r\n" + HERE, BODY),
    "a name that only ends the same": request(b"X-Transfer-Encoding: chunked\r\nX-Content-Length: 3\r\n" + HERE, BODY),
    "a value that looks like a head": request(b"X-A: Transfer-Encoding: chunked\r\n" + HERE, BODY),
}


@pytest.mark.parametrize("form", AMBIGUOUS)
async def test_a_request_that_can_be_read_in_two_ways_reaches_nobody(form: str) -> None:
    async with recorded() as (gateway, engine):
        said = await all_answers(gateway, AMBIGUOUS[form] + HIDDEN)
        await gateway.idle()
        assert said.split(b"\r\n")[0].split(b" ")[1] in (b"400", b"505")
        assert said.lower().count(b"\r\nconnection: close\r\n") == said.count(b"HTTP/1.1 ") == 1
        assert engine.raw == []


@pytest.mark.parametrize("form", PLAIN)
async def test_a_request_that_can_be_read_in_one_way_reaches_the_engine_as_it_is_and_alone(form: str) -> None:
    async with recorded() as (gateway, engine):
        said = await all_answers(gateway, PLAIN[form] + HIDDEN)
        await gateway.idle()
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.count(b"HTTP/1.1 ") == 1
        assert engine.bodies() == [BODY]


@pytest.mark.parametrize("length", [b"Content-Length: %d\r\n" % len(HIDDEN), TE])
@pytest.mark.parametrize(
    "line",
    [
        "GET /health",
        "HEAD /",
        "GET /v1/models",
        "GET /v1/chat/completions",
        "GET /nowhere",
        "POST /nowhere",
        "GET /metrics",
        "GET /admin",
        "GET /admin/static/admin.css",
        "POST /admin/login",
        "POST /admin/logout",
        "OPTIONS /v1/models",
        "DELETE /v1/models",
        "TRACE /",
    ],
)
async def test_a_request_in_the_body_of_another_is_never_read_as_one(line: str, length: bytes) -> None:
    method, path = line.split(" ")
    body = HIDDEN if length != TE else b"%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)
    start = head(path, None, method=method).removesuffix(b"\r\n")
    async with recorded() as (gateway, engine):
        said = await all_answers(gateway, start + length + b"\r\n" + body)
        await gateway.idle()
        assert said.count(b"HTTP/1.1 ") == 1
        assert engine.raw == []
        assert gateway.done() == [] or [line["seat"] for line in gateway.done()] == [None]


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("form", ["CL.TE", "TE in a folded line", "chunk size that ends in LF", "CL twice, the same"])
async def test_it_does_not_matter_how_the_bytes_are_cut(form: str, size: int) -> None:
    data = AMBIGUOUS[form] + HIDDEN
    async with recorded() as (gateway, engine), connect(gateway) as client:
        with contextlib.suppress(ConnectionError):
            for start in range(0, len(data), size):
                await client.send(data[start : start + size])
                await asyncio.sleep(0)
            assert (await client.reader.read()).count(b"HTTP/1.1 ") <= 1  # the answer may be lost in a reset
        await gateway.idle()
        assert engine.raw == []


IDS = [b"a\tb", b"a b", b"x" * 5000, b"\xff\xfe", b"a;b=c", b"", b"http://elsewhere", b"<b>"]
KEYS = [b"moe-" + b"a" * 43, b"moe-admin-" + b"a-_" * 14 + b"a", b"id:moe-" + b"a" * 43]


@pytest.mark.parametrize("value", IDS + KEYS)
async def test_a_request_id_of_the_client_cannot_split_an_answer_nor_be_a_key(value: bytes) -> None:
    async with recorded() as (gateway, engine):
        said = await all_answers(gateway, request(b"X-Request-Id: %s\r\n" % value + HERE, BODY))
        await gateway.idle()
        (own,) = [line for line in said.split(b"\r\n") if line.lower().startswith(b"x-request-id: ")]
        assert all(0x21 <= byte < 0x7F for byte in own[len("x-request-id: ") :])
        assert not value or value not in own
        assert [line["request_id"] for line in gateway.done()] == [own.decode()[len("x-request-id: ") :]]
        assert engine.bodies() == [BODY]
