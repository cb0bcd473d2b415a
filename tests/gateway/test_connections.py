"""gateway.connections: who finds room, who is given up for it, and that a request under way never is."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.connections import LEAST, NEWS_EVERY_S, Connection, Connections, News, most_with
from gateway.logs import EVENTS
from tests.gateway.running import Running, running
from tests.gateway.wire import CHAT, Wire, chat, connect, exchange, head, post, scripted

HERE, PROXY, ANA, BEN = "127.0.0.1", "10.0.0.2", "192.0.2.7", "192.0.2.8"
HEALTH = b"GET /health HTTP/1.1\r\nHost: box\r\n\r\n"


def opened(table: Connections, host: str, state: str = "new") -> Connection:
    """A connection that was let in, and is then as `state` says."""
    connection = Connection(host, lambda: None)
    assert table.enter(connection).admitted
    if state != "new":
        table.asks(connection)
    if state == "rested":
        table.rests(connection)
    return connection


def newcomer(table: Connections, host: str) -> Connection | bool:
    """Whom a newcomer displaces, or whether it finds room without."""
    entry = table.enter(Connection(host, lambda: None))
    return entry.given_up or entry.admitted


def test_the_longest_open_connection_that_never_asked_goes_first() -> None:
    table = Connections(most=3)
    opened(table, ANA, "rested")
    first, second = opened(table, ANA), opened(table, ANA)
    assert newcomer(table, BEN) is first
    assert newcomer(table, BEN) is second


def test_between_two_requests_the_longest_idle_goes_first() -> None:
    table = Connections(most=3)
    early, late, busy = (opened(table, ANA, state) for state in ("asking", "rested", "asking"))
    table.rests(early)
    assert newcomer(table, ANA) is late
    assert busy.asking


@pytest.mark.parametrize("host", [ANA, HERE, PROXY])
def test_where_all_ask_the_newcomer_is_refused(host: str) -> None:
    table = Connections(most=2, proxies=[PROXY])
    for _ in range(2):
        opened(table, ANA, "asking")
    assert newcomer(table, host) is False
    assert (table.open, table.refused, table.given_up) == (2, 1, 0)


def test_an_address_at_its_limit_pays_for_its_own_newcomers() -> None:
    table = Connections(most=100, per_address=2)
    own, other = opened(table, ANA), opened(table, BEN)
    busy = opened(table, ANA, "asking")
    assert newcomer(table, ANA) is own
    table.leave(own)  # its end is told of later
    assert table.open == 3
    assert {other.asking, busy.asking} == {False, True}


def test_an_address_that_asks_on_all_of_its_connections_is_refused_and_others_are_not() -> None:
    table = Connections(most=100, per_address=2)
    for _ in range(2):
        opened(table, ANA, "asking")
    assert newcomer(table, ANA) is False
    assert newcomer(table, BEN) is True


def test_when_all_is_full_the_address_that_holds_the_most_pays() -> None:
    table = Connections(most=5)
    opened(table, BEN)
    flood = [opened(table, ANA) for _ in range(4)]
    assert newcomer(table, BEN) is flood[0]


@pytest.mark.parametrize("host", [HERE, "127.9.9.9", "::1", "::ffff:127.0.0.1", PROXY, f"::ffff:{PROXY}"])
def test_this_machine_and_the_proxies_have_no_limit_of_their_own_and_go_last(host: str) -> None:
    table = Connections(most=5, per_address=1, proxies=[PROXY])
    for _ in range(4):
        opened(table, host)
    stranger = opened(table, ANA)
    assert newcomer(table, host) is stranger


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        (ANA, f"::ffff:{ANA}", True),
        (ANA, BEN, False),
        ("", "", True),
    ],
)
def test_an_ipv6_address_counts_with_its_64(one: str, other: str, same: bool) -> None:
    table = Connections(per_address=1)
    opened(table, one, "asking")
    assert (newcomer(table, other) is False) is same


def test_zero_is_no_limit_for_one_address() -> None:
    table = Connections(most=1000, per_address=0)
    assert all(newcomer(table, ANA) is True for _ in range(1000))


@pytest.mark.parametrize(("files", "most"), [(1024, 448), (524_288, 2048), (64, LEAST)])
def test_there_are_two_files_for_each_connection(files: int, most: int) -> None:
    assert most_with(files, 2048) == most


def test_a_reached_limit_is_told_of_once_a_minute() -> None:
    table = Connections(most=1)
    opened(table, ANA)
    assert table.news(0.0) is None
    newcomer(table, ANA)
    assert table.news(1.0) == News(refused=0, given_up=1, open=1)
    newcomer(table, ANA)
    assert table.news(NEWS_EVERY_S) is None
    assert table.news(1.0 + NEWS_EVERY_S) == News(refused=0, given_up=1, open=1)
    assert table.news(1e9) is None


STEPS = st.lists(st.tuples(st.sampled_from("eeearl"), st.integers(0, 30), st.sampled_from([HERE, ANA, BEN, "::2"])))


@given(STEPS, st.integers(1, 6), st.integers(0, 4))
def test_the_limits_hold_and_nobody_who_asks_is_given_up(
    steps: list[tuple[str, int, str]], most: int, per_address: int
) -> None:
    table, there = Connections(most, per_address), list[Connection]()
    for step, number, host in steps:
        connection = there[number % len(there)] if there else None
        if step == "e":
            made = Connection(host, lambda: None)
            entry = table.enter(made)
            if entry.given_up is not None:
                assert not entry.given_up.asking
                there.remove(entry.given_up)
            if entry.admitted:
                there.append(made)
            else:
                own = [c for c in there if c.host == host]
                at_its_limit = host != HERE and 0 < per_address <= len(own)
                assert all(c.asking for c in (own if at_its_limit else there))
        elif connection is not None and step == "a":
            table.asks(connection)
        elif connection is not None and step == "r":
            table.rests(connection)
        elif connection is not None:
            there.remove(connection)
            table.leave(connection)
            table.leave(connection)
        assert table.open == len(there) <= most
        if per_address:
            assert all(sum(c.host == host for c in there) <= per_address for host in (ANA, BEN, "::2"))
    for connection in there:
        table.leave(connection)
    assert (table.open, table._addresses) == (0, {})


# On the wire


async def fill(gateway: Running, stack: AsyncExitStack, count: int, data: bytes = b"") -> list[Wire]:
    """So many connections, told to the gateway."""
    before = gateway.core.connections.open
    clients = [await stack.enter_async_context(connect(gateway, data)) for _ in range(count)]
    await gateway.until(lambda: gateway.core.connections.open == before + count)
    return clients


@pytest.mark.anyio
@pytest.mark.parametrize("first", [b"", b"GET /he", HEALTH])
async def test_idle_connections_make_room_in_turn(first: bytes) -> None:
    async with running(limits={"connections": 16}) as gateway, AsyncExitStack() as stack:
        clients = await fill(gateway, stack, 16, first)
        if first == HEALTH:
            for client in clients:
                await client.answer()
        assert (await exchange(gateway, post(chat()))).status == 200
        assert await clients[0].closed()
        table = gateway.core.connections
        assert (table.open <= 16, table.given_up, table.refused) == (True, 1, 0)
        await gateway.until(lambda: any(line["event"] == "connections.full" for line in gateway.log))
        (said,) = [line for line in gateway.log if line["event"] == "connections.full"]
        assert (said["given_up"], said["refused"]) == (1, 0)
        assert said["event"] in EVENTS
        assert [event.kind for event in gateway.core.events.recent() if event.kind == "connections.full"]


@pytest.mark.anyio
async def test_streams_are_never_cut_for_a_newcomer_which_gets_a_503() -> None:
    async with running({"silent_s": 0.5}, streams=16, limits={"connections": 16}) as gateway, AsyncExitStack() as stack:
        streams = await fill(gateway, stack, 16, post(chat(stream=True)))
        await gateway.until(lambda: gateway.core.limiter.running == 16)
        async with connect(gateway) as late:
            answer = await late.answer()
            assert (answer.status, answer.headers["connection"], await late.closed()) == (503, "close", True)
        assert gateway.core.connections.refused == 1
        for stream in streams:
            got = await stream.answer()
            assert (got.status, got.whole) == (200, True)
        assert (await exchange(gateway, HEALTH)).status == 200, "one of those that are done makes room"
        await gateway.idle()


@pytest.mark.anyio
async def test_who_was_answered_and_dribbles_on_with_its_body_makes_room() -> None:
    request = head(CHAT, None, {"Content-Length": "1000"})
    async with running(limits={"connections": 16}) as gateway, AsyncExitStack() as stack:
        clients = await fill(gateway, stack, 16, request)
        for client in clients:
            assert (await client.answer()).status == 401
        assert (await exchange(gateway, HEALTH)).status == 200
        assert gateway.core.connections.given_up == 1


@pytest.mark.anyio
async def test_an_answer_that_is_still_on_its_way_arrives_whole_when_its_connection_is_given_up() -> None:
    words = b"x" * 3_000_000
    reply = json.dumps({"id": "1", "choices": [{"index": 0, "message": {"content": words.decode()}}]}).encode()

    async def answer(writer: asyncio.StreamWriter, body: bytes) -> None:
        top = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(top % len(reply) + reply)
        await writer.drain()

    async with (
        scripted(answer) as url,
        running(engine_url=url, limits={"connections": 16}) as gateway,
        connect(gateway, post(chat()), small=True) as slow,
        AsyncExitStack() as stack,
    ):
        await gateway.until(lambda: len(gateway.done()) == 1)
        for client in await fill(gateway, stack, 15, HEALTH):
            await client.answer()
        assert (await exchange(gateway, HEALTH)).status == 200
        assert gateway.core.connections.given_up == 1
        got = await slow.answer()
        assert (got.status, got.whole, got.body) == (200, True, reply)
        assert await slow.closed()


@pytest.mark.anyio
async def test_metrics_count_connections() -> None:
    async with running(limits={"connections": 16}) as gateway, AsyncExitStack() as stack:
        await fill(gateway, stack, 16)
        answer = await exchange(gateway, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    lines = answer.body.decode().splitlines()
    names = ("open", "max", "refused_total", "given_up_total")
    assert [line for name in names for line in lines if line.startswith(f"moe_connections_{name} ")] == [
        "moe_connections_open 16.0",
        "moe_connections_max 16.0",
        "moe_connections_refused_total 0.0",
        "moe_connections_given_up_total 1.0",
    ]
