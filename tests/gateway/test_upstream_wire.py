"""The engine's client without a network: replies cut anywhere, and the moment at which the ticket goes back."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.meter import chat_usage
from gateway.taps import ChatTap, JsonTap
from gateway.upstream import EngineError, EngineReply
from tests.gateway.recording import cut, recorded
from tests.gateway.scripted import CHUNKED, CLOSE, OK, REPLIES, FakeTransport

EXPECTED = {
    "content-length": (200, b"hello"),
    "content-length, kept alive": (200, b"hello"),
    "chunked": (200, b"hello world"),
    "chunked, kept alive": (200, b"hello"),
    "chunked, empty": (200, b""),
    "chunked, trailing headers": (200, b"hello"),
    "until close": (200, b"hello\r\n\r\nworld"),
    "until close, empty": (200, b""),
    "HTTP/1.0": (200, b"hello"),
    "100 first": (200, b"ok"),
    "103 twice": (200, b"ok"),
    "204": (204, b""),
    "length 0": (200, b""),
    "no reason": (200, b"ok"),
    "an error": (429, b'{"error":{}}'),
}
UNFRAMED = {"until close", "until close, empty", "HTTP/1.0"}


class Bench:
    """A reply on a fake transport; `ends` says after how many pieces on_end was called."""

    def __init__(self, *, stream: bool = False) -> None:
        self.transport = FakeTransport()
        self.pieces = 0
        self.ends: list[int] = []
        self.reply = EngineReply(
            b"request",
            lambda *_: ChatTap(True) if stream else JsonTap(0, chat_usage),  # whole, whatever it is
            lambda: self.ends.append(self.pieces),
            asyncio.get_running_loop(),
        )
        self.reply.connection_made(self.transport)

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.pieces += 1
            if not self.transport.aborts:
                self.reply.data_received(piece)

    async def read(self) -> tuple[bytes, str]:
        """All that can be read without waiting, and how it ended: "whole", "open" or the error."""
        out = b""
        try:
            while (data := await self.reply.read(0)) is not None:
                if not data and not self.reply.ended:
                    return out, "open"
                out += data
        except EngineError as error:
            return out, error.problem.message
        return out, "whole"


def test_every_reply_has_an_expectation() -> None:
    assert REPLIES.keys() == EXPECTED.keys()


@pytest.mark.anyio
@pytest.mark.parametrize("name", REPLIES)
async def test_a_reply_cut_anywhere_ends_with_its_last_byte(name: str) -> None:
    raw, _ = REPLIES[name]
    for place in range(1, len(raw)):
        bench = Bench()
        bench.feed(raw[:place], raw[place:])
        bench.pieces = 3
        if name in UNFRAMED:
            assert bench.ends == []
            bench.reply.eof_received()
            bench.reply.connection_lost(None)
        assert bench.ends == ([3] if name in UNFRAMED else [2])
        assert bench.transport.aborts == (0 if name in UNFRAMED else 1)
        bench.reply.connection_lost(None)
        body, how = await bench.read()
        assert (bench.reply.status, body, how) == (*EXPECTED[name], "whole")
        assert len(bench.ends) == 1


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@given(st.lists(st.integers(0, 4000), max_size=20), st.lists(st.integers(0, 6000), max_size=20))
def test_a_stream_survives_any_chunks_in_any_pieces(chunk_cuts: list[int], piece_cuts: list[int]) -> None:
    stream = b"".join(recorded())
    raw = CHUNKED.replace(b"application/json", b"text/event-stream") + chunked(list(cut(stream, chunk_cuts)))

    async def run() -> None:
        bench = Bench(stream=True)
        bench.feed(*cut(raw, piece_cuts))
        assert len(bench.ends) == 1, "with its last event or with its last byte"
        body, how = await bench.read()
        expected = [event for event in recorded() if not event.startswith(b":") and event != recorded()[-2]]
        assert (body, how) == (b"".join(expected), "whole")

    asyncio.run(run())


@given(st.integers(1, len(REPLIES["chunked"][0]) - 1), st.booleans())
def test_a_reply_that_breaks_off_gives_its_beginning_and_an_error(length: int, reset: bool) -> None:
    raw, _ = REPLIES["chunked"]

    async def run() -> None:
        bench = Bench()
        bench.feed(raw[:length])
        bench.reply.connection_lost(ConnectionResetError("reset") if reset else None)
        assert bench.ends == [1]
        body, how = await bench.read()
        assert b"hello world".startswith(body)
        assert "The engine stopped" in how or (b"\r\n\r\n" not in raw[:length] and "cannot be reached" in how)

    asyncio.run(run())


@pytest.mark.anyio
async def test_an_unframed_reply_that_is_reset_is_not_whole() -> None:
    bench = Bench()
    bench.feed(OK + b"\r\nhello")
    bench.reply.connection_lost(ConnectionResetError("reset by peer"))
    assert await bench.read() == (
        b"hello",
        "The engine stopped in the middle of this request (reset by peer). Nothing is lost but this answer: retry.",
    )
    assert bench.ends == [1]


@pytest.mark.anyio
async def test_the_request_is_written_when_the_connection_is_there() -> None:
    assert Bench().transport.written == b"request"


def test_the_script_table_closes_where_there_is_no_framing() -> None:
    assert all(REPLIES[name][1] == CLOSE for name in UNFRAMED)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "after", [b"\r\n\r\n", b"garbage", b"HTTP/1.1 500 No\r\nx-note: other\r\ncontent-length: 3\r\n\r\nbad"]
)
@pytest.mark.parametrize("close", [b"", b"connection: close\r\n"])
async def test_what_follows_a_whole_reply_is_ignored(after: bytes, close: bytes) -> None:
    bench = Bench()
    bench.feed(OK + close + b"content-length: 2\r\n\r\nok" + after)
    assert await bench.read() == (b"ok", "whole")
    assert (bench.reply.status, bench.reply.headers["x-note"], bench.ends) == (200, "two words", [1])


@pytest.mark.anyio
async def test_a_stream_is_over_with_its_last_event_also_when_the_engine_does_not_end_it() -> None:
    bench = Bench(stream=True)
    bench.feed(CHUNKED.replace(b"application/json", b"text/event-stream"), b"8\r\ndata: 1\n\r\n1\r\n\n\r\n")
    assert bench.ends == []
    bench.feed(b"e\r\ndata: [DONE]\n\n\r\n")
    assert (bench.ends, bench.transport.aborts) == ([3], 1)
    assert await bench.read() == (b"data: 1\n\ndata: [DONE]\n\n", "whole")


@pytest.mark.anyio
async def test_an_error_event_ends_the_reply_at_once_and_is_kept_for_the_gateway_to_tell() -> None:
    bench = Bench(stream=True)
    bench.feed(CHUNKED.replace(b"application/json", b"text/event-stream"), b"9\r\ndata: 1\n\n\r\n")
    error = b'data: {"error":{"message":"x"}}\n\n'
    bench.feed(b"%x\r\n%s\r\n" % (len(error + b"data: 2\n\n"), error + b"data: 2\n\n"), b"0\r\n\r\n")
    assert (bench.ends, bench.transport.aborts) == ([3], 1)
    body, how = await bench.read()
    assert body == b"data: 1\n\n"
    assert "reported an error" in how
    assert bench.reply.tap is not None
    assert bench.reply.tap.meter.error == b'{"error":{"message":"x"}}'


@pytest.mark.anyio
async def test_an_engines_own_heartbeats_are_no_sign_of_life() -> None:
    bench = Bench(stream=True)
    bench.feed(CHUNKED.replace(b"application/json", b"text/event-stream"))
    bench.reply.last_event_s = -1.0
    waiting = asyncio.create_task(bench.reply.read())
    await asyncio.sleep(0)
    bench.feed(b"3\r\n:\n\n\r\n")
    await asyncio.sleep(0)
    assert (bench.reply.last_event_s, waiting.done()) == (-1.0, False)
    bench.reply.nudge()
    assert await waiting == b""
    bench.feed(b"9\r\ndata: 1\n\n\r\n")
    assert bench.reply.last_event_s > 0
    bench.reply.nudge()
    assert await bench.reply.read() == b"data: 1\n\n"


@pytest.mark.anyio
async def test_half_an_event_does_not_wake_the_reader() -> None:
    bench = Bench(stream=True)
    bench.feed(CHUNKED.replace(b"application/json", b"text/event-stream"))
    waiting = asyncio.create_task(bench.reply.read())
    await asyncio.sleep(0)
    for piece in (b"9\r\ndata:", b" 1\n"):
        bench.feed(piece)
        await asyncio.sleep(0)
        assert not waiting.done()
    bench.feed(b"\n\r\n")
    assert await waiting == b"data: 1\n\n"
