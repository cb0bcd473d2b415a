"""Parts of files over HTTP: ranges, retries, redirects, and where the token goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint.answers import pause_s, strong_etag
from appliance.checkpoint.transport import Body, NotThereError, Span, Transport, TransportError
from appliance.errors import CheckpointError
from tests.checkpoint.naps import Naps
from tests.checkpoint.range_server import Page, RangeServer, Trouble

DATA = bytes(range(256)) * 40
NAME = "/file.bin"
pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    (tmp_path / "file.bin").write_bytes(DATA)
    (tmp_path / "empty.bin").write_bytes(b"")
    with RangeServer(tmp_path) as running:
        yield running


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RangeServer]:
    """Another origin: the same host, another port."""
    with RangeServer(tmp_path) as running:
        yield running


async def test_a_body_that_drips_is_given_up(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.checkpoint.transport.SLOW_S", 0.0)
    monkeypatch.setattr("appliance.checkpoint.transport.SLOWEST_BYTES_S", 1e12)
    async with Transport(sleep=Naps(), retries=1) as transport:
        with pytest.raises(TransportError, match=r"the server sent .* bytes in 0 s, 2 times"):
            await transport.span(server.url + NAME, 0, 99)
        with pytest.raises(TransportError, match=r"the server sent .* bytes in 0 s, 2 times"):
            await transport.get(server.url + NAME, len(DATA))


@pytest.mark.parametrize(
    "said", ["Mon, 01 Jan 2024 00:00:00 +99999999999999999999", "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"]
)
def test_a_retry_after_that_is_no_time_is_as_none(said: str) -> None:
    assert pause_s(0, said, datetime.now(UTC), 0.5) == 0.5


async def span_of(transport: Transport, url: str, first: int = 0, last: int = 99) -> Span:
    found = await transport.span(url, first, last)
    assert found is not None
    return found


async def test_a_span_is_the_bytes_that_were_asked_for(server: RangeServer) -> None:
    async with Transport() as transport:
        found = await span_of(transport, server.url + NAME, 10, 19)

    assert (found.body, found.first, found.total_bytes) == (DATA[10:20], 10, len(DATA))
    assert found.etag is not None
    assert (transport.requests, transport.received_bytes) == (1, 10)
    assert server.seen[0].range == "bytes=10-19"


async def test_a_span_ends_where_the_file_ends(server: RangeServer) -> None:
    async with Transport() as transport:
        assert (await span_of(transport, server.url + NAME, len(DATA) - 5, 10**12)).body == DATA[-5:]
        assert (await span_of(transport, server.url + NAME, len(DATA) + 5, 10**12)).body == b""
        empty = await span_of(transport, server.url + "/empty.bin")
    assert (empty.body, empty.total_bytes) == (b"", 0)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RangeServer]:
    """A server for many examples."""
    folder = tmp_path_factory.mktemp("lasting")
    (folder / "file.bin").write_bytes(DATA)
    with RangeServer(folder) as running:
        yield running


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(DATA) + 2), st.integers(0, 2 * len(DATA)))
async def test_any_span_is_a_slice(lasting: RangeServer, first: int, more: int) -> None:
    async with Transport() as transport:
        found = await span_of(transport, lasting.url + NAME, first, first + more)
    assert found.body == DATA[first : first + more + 1]
    assert found.total_bytes == len(DATA)


async def test_unchanged_files_send_no_bytes(server: RangeServer) -> None:
    async with Transport() as transport:
        first = await span_of(transport, server.url + NAME)
        assert await transport.span(server.url + NAME, 0, 99, unless=first.etag) is None
        changed = await transport.span(server.url + NAME, 0, 99, unless='"another"')
    assert changed == first
    assert [seen.status for seen in server.seen] == [206, 304, 206]


async def test_a_weak_etag_is_none(server: RangeServer) -> None:
    server.etag = "weak"
    async with Transport() as transport:
        assert (await span_of(transport, server.url + NAME)).etag is None


async def test_a_small_file_comes_whole_or_is_none(server: RangeServer) -> None:
    async with Transport() as transport:
        assert await transport.get(server.url + NAME, len(DATA)) == DATA
        assert await transport.get(server.url + "/absent", 10) is None
        with pytest.raises(CheckpointError, match=r"is longer than 9 bytes"):
            await transport.get(server.url + NAME, 9)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 0])
async def test_what_passes_is_tried_again_with_growing_pauses(server: RangeServer, status: int) -> None:
    server.troubles.append(Trouble(3, status=status))
    naps = Naps()

    async with Transport(sleep=naps) as transport:
        assert (await span_of(transport, server.url + NAME)).body == DATA[:100]

    assert transport.requests == 4
    for nap, mean in zip(naps.taken, (0.5, 1.0, 2.0), strict=True):
        assert 0.75 * mean <= nap <= 1.25 * mean


async def test_a_cut_body_is_fetched_again(server: RangeServer) -> None:
    server.troubles.append(Trouble(2, cut_after_bytes=50))
    async with Transport(sleep=Naps()) as transport:
        assert (await span_of(transport, server.url + NAME)).body == DATA[:100]
        server.troubles.append(Trouble(1, cut_after_bytes=50))
        assert await transport.get(server.url + NAME, 10**6) == DATA


async def test_a_server_that_stays_broken_is_given_up(server: RangeServer) -> None:
    server.troubles.append(Trouble(99, status=503))
    naps = Naps()

    async with Transport(sleep=naps, retries=3) as transport:
        with pytest.raises(TransportError, match=r"the server answered 503, 4 times") as caught:
            await transport.span(server.url + NAME, 0, 99)

    assert caught.value.pause_s is not None
    assert len(naps.taken) == 3


async def test_nobody_listening_is_told(server: RangeServer) -> None:
    with RangeServer(server.folder) as gone:
        url = gone.url
    async with Transport(sleep=Naps(), retries=1) as transport:
        with pytest.raises(TransportError, match=r"the connection failed \(ConnectError\), 2 times"):
            await transport.span(url + NAME, 0, 99)


async def test_the_pause_is_the_servers_when_it_names_one(server: RangeServer) -> None:
    server.troubles.append(Trouble(1, status=429, retry_after="7"))
    naps = Naps()
    async with Transport(sleep=naps) as transport:
        await span_of(transport, server.url + NAME)
    assert naps.taken == [7.0]


async def test_a_pause_that_is_too_long_is_told_at_once(server: RangeServer) -> None:
    server.troubles.append(Trouble(1, status=429, retry_after="3600"))
    naps = Naps()
    async with Transport(sleep=naps) as transport:
        with pytest.raises(TransportError, match="429") as caught:
            await transport.span(server.url + NAME, 0, 99)
    assert naps.taken == []
    assert caught.value.remedy == "try again in 3,600 s"
    assert caught.value.pause_s == 3600


def test_pauses_are_read_from_seconds_and_dates() -> None:
    now = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
    assert pause_s(0, "Mon, 30 Nov 2026 12:00:09 GMT", now, 0.5) == 9.0
    assert pause_s(0, "Mon, 30 Nov 2026 11:00:00 GMT", now, 0.5) == 0.0
    assert pause_s(0, "soon", now, 0.5) == 0.5
    assert pause_s(2, None, now, 0.0) == 1.5
    assert pause_s(99, None, now, 1.0) == 20.0


def test_only_a_quoted_etag_is_strong() -> None:
    assert strong_etag({"ETag": '"a"'}) == '"a"'
    assert [strong_etag({"ETag": said}) for said in ('W/"a"', "a", '""', "", '"')] == [None] * 5


async def test_a_server_that_ignores_ranges_is_refused_before_its_body(server: RangeServer) -> None:
    server.ignores = lambda _range: True
    with (server.folder / "huge.bin").open("wb") as file:
        file.truncate(300 << 30)
    async with Transport() as transport:
        with pytest.raises(TransportError, match=r"ignores ranges and would send all 322,122,547,200 bytes") as caught:
            await transport.span(server.url + "/huge.bin", 0, 99)
        assert transport.received_bytes == 0
    assert caught.value.pause_s is None


async def test_a_small_file_is_taken_from_a_server_that_ignores_ranges(server: RangeServer) -> None:
    server.ignores = lambda _range: True
    async with Transport() as transport:
        assert (await span_of(transport, server.url + NAME, 0, len(DATA) - 1)).body == DATA


async def test_a_page_in_place_of_a_file_is_told_as_one(server: RangeServer) -> None:
    server.pages[NAME] = Page(b"<html>" + b"x" * 500)
    async with Transport() as transport:
        with pytest.raises(CheckpointError, match="sends an HTML page in place of the file"):
            await transport.span(server.url + NAME, 0, 99)


@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        "bytes 1-100/10240",
        "bytes 0-98/10240",
        "bytes 0-99/*",
        "bytes 0-99/50",
        "lines 0-99/10240",
        "bytes 0-",
    ],
)
async def test_another_range_than_asked_for_is_refused(server: RangeServer, said: str | None) -> None:
    server.content_range = lambda _said: said
    async with Transport() as transport:
        with pytest.raises(TransportError, match="asked for bytes 0-99, the server answered with the range"):
            await transport.span(server.url + NAME, 0, 99)


@pytest.mark.parametrize("status", [400, 405, 451])
async def test_other_refusals_are_final(server: RangeServer, status: int) -> None:
    server.pages[NAME] = Page(b"no", status=status)
    async with Transport(sleep=Naps()) as transport:
        with pytest.raises(TransportError, match=str(status)):
            await transport.span(server.url + NAME, 0, 99)
    assert server.requests == 1


async def test_a_missing_file_is_told_apart(server: RangeServer) -> None:
    async with Transport() as transport:
        with pytest.raises(NotThereError, match="no such file"):
            await transport.span(server.url + "/absent", 0, 99)


async def test_redirects_are_followed_relative_and_to_other_hosts(server: RangeServer, other: RangeServer) -> None:
    server.redirect = {"/a": "b?x=1", "/b": f"{other.url}{NAME}?signature=1"}.get
    async with Transport() as transport:
        assert (await span_of(transport, server.url + "/a")).body == DATA[:100]
    assert transport.requests == 3
    assert other.seen[0].query == "signature=1"


async def test_a_loop_of_redirects_ends(server: RangeServer) -> None:
    server.redirect = lambda path: path
    async with Transport() as transport:
        with pytest.raises(TransportError, match="more than 10 redirects"):
            await transport.span(server.url + NAME, 0, 99)
    assert server.requests == 11


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x"])
async def test_a_redirect_to_another_scheme_is_not_followed(server: RangeServer, target: str) -> None:
    server.redirect = lambda _path: target
    async with Transport() as transport:
        with pytest.raises(TransportError, match="is not followed"):
            await transport.span(server.url + NAME, 0, 99)


async def test_the_token_goes_to_the_first_origin_only(server: RangeServer, other: RangeServer) -> None:
    server.token = "sesame"
    server.redirect = {"/near": NAME, "/far": f"{other.url}/back"}.get
    other.redirect = {"/back": f"{server.url}{NAME}"}.get

    async with Transport("sesame") as transport:
        await span_of(transport, server.url + "/near")
        await span_of(transport, server.url + "/far")

    assert [seen.authorization for seen in server.seen] == ["Bearer sesame"] * 4
    assert [seen.authorization for seen in other.seen] == [None]


async def test_a_refusal_names_the_variable_and_never_the_token(server: RangeServer) -> None:
    server.token = "sesame"
    async with Transport("wrong-sesame", "SOME_TOKEN") as transport:
        with pytest.raises(TransportError, match="401") as caught:
            await transport.span(f"{server.url}{NAME}?signature=s3cret", 0, 99)
    assert "SOME_TOKEN" in caught.value.remedy
    assert "sesame" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_a_stream_goes_on_from_where_it_is_told(server: RangeServer) -> None:
    async with Transport() as transport:
        async with transport.stream(server.url + NAME, 1000) as body:
            assert (body.first, body.total_bytes) == (1000, len(DATA))
            assert b"".join([piece async for piece in body.aiter()]) == DATA[1000:]
        async with transport.stream(server.url + NAME, len(DATA)) as body:
            assert [piece async for piece in body.aiter()] == []
            assert body.total_bytes == len(DATA)


async def test_a_stream_begins_anew_when_the_file_changed(server: RangeServer) -> None:
    async with Transport() as transport:
        async with transport.stream(server.url + NAME, 1000, unchanged='"another"') as body:
            assert (body.first, body.total_bytes) == (0, len(DATA))
            assert b"".join([piece async for piece in body.aiter()]) == DATA
        async with transport.stream(server.url + NAME, 1000, unchanged=body.etag) as body:
            assert body.first == 1000


async def test_a_stream_that_breaks_says_that_another_try_makes_sense(server: RangeServer) -> None:
    server.troubles.append(Trouble(1, cut_after_bytes=500))
    got = bytearray()

    async def take(body: Body) -> None:
        async for piece in body.aiter():
            got.extend(piece)

    async with Transport() as transport, transport.stream(server.url + NAME, 0) as body:
        with pytest.raises(TransportError, match="the connection broke in the body") as caught:
            await take(body)
    assert got == DATA[:500]
    assert caught.value.pause_s is not None


async def test_a_stream_that_is_refused_for_now_says_how_long(server: RangeServer) -> None:
    server.troubles.append(Trouble(1, status=429, retry_after="9"))
    async with Transport() as transport:
        with pytest.raises(TransportError, match="429") as caught:
            async with transport.stream(server.url + NAME, 0):
                pass
    assert caught.value.pause_s == 9.0


async def test_connections_are_used_again_and_bounded(server: RangeServer) -> None:
    async with Transport(concurrency=3) as transport, asyncio.TaskGroup() as tasks:
        for at in range(30):
            tasks.create_task(transport.span(server.url + NAME, at, at))

    assert server.requests == 30
    assert server.connections <= 3
