"""Strangers at the public socket: addresses that climb, heads without measure, and hundreds who hold a connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway import connections
from gateway.pages.assets import static_files
from tests.gateway.running import ADMIN_TOKEN, Running, key_of, running
from tests.gateway.test_slow_clients import box, median_gap_s
from tests.gateway.wire import chat, connect, exchange, head, post

pytestmark = pytest.mark.anyio

HEALTH = b"GET /health HTTP/1.1\r\nHost: box\r\n\r\n"


# Paths

CLIMBS = [
    "/admin/static/../../etc/passwd",
    "/admin/static/../../../../../../etc/passwd",
    "/admin/static/..%2f..%2fetc%2fpasswd",
    "/admin/static/%2e%2e/%2e%2e/etc/passwd",
    "/admin/static/%252e%252e/admin.py",
    "/admin/static/..\\..\\etc\\passwd",
    "/admin/static/..%5c..%5cetc%5cpasswd",
    "/admin/static/....//....//etc/passwd",
    "/admin/static//etc/passwd",
    "/admin/static/%2fetc%2fpasswd",
    "/admin/static/admin.css%00.py",
    "/admin/static/admin.css%0d%0aX-Evil:%201",
    "/admin/static/%c0%ae%c0%ae/admin.py",
    "/admin/static/%ef%bc%8e%ef%bc%8e/admin.py",
    "/admin/static/./admin.py",
    "/admin/static/",
    "/admin/static/..;/admin.py",
    "/admin/static/../templates/page.html",
    "/admin/static/../status.json",
    "//admin/static/admin.css",
    "/admin//static/admin.css",
    "/admin/static/admin.css/",
    "/admin/static/ADMIN.CSS",
    "/%61dmin/static/..%2fstatus.json",
    "/../../../etc/passwd",
    "/.%2e/seats.toml",
    "/v1/models/../../../etc/passwd",
    "/v1/models/..%2f..%2fetc%2fpasswd",
    "file:///etc/passwd",
    "http://127.0.0.1/../etc/passwd",
]


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("token", [None, ADMIN_TOKEN])
async def test_no_address_leads_out_of_the_page_files(method: str, token: str | None) -> None:
    assets = {asset.body for asset in static_files().values()}
    async with running() as gateway:
        for path in CLIMBS:
            said = {"Authorization": f"Bearer {token}"} if token else {}
            async with connect(gateway, head(path, None, said | {"Content-Length": "0"}, method=method)) as client:
                status, headers = await client.head()
                body = (
                    await client.reader.read(100_000) if method != "HEAD" and headers["content-length"] != "0" else b""
                )
            assert status in (400, 401, 403, 404, 405), path
            assert "x-evil" not in headers
            assert b"root:" not in body
            assert b"digest" not in body
            assert body not in assets, path


# Heads

BOUNDED = {
    "a header of 60 KB": (head("/health", None, {"X-A": "a" * 60_000}, method="GET"), 200),
    "a header of 70 KB": (head("/health", None, {"X-A": "a" * 70_000}, method="GET"), 431),
    "7,000 headers": (head("/health", None, {f"h{n:x}": "" for n in range(7_000)}, method="GET"), 200),
    "30,000 headers": (head("/health", None, {f"h{n:x}": "" for n in range(30_000)}, method="GET"), 431),
    "a path of 60 KB": (head("/" + "a" * 60_000, None, method="GET"), 404),
    "a path of 70 KB": (head("/" + "a" * 70_000, None, method="GET"), 431),
    "a path of 10 MB": (head("/" + "a" * 10_000_000, None, method="GET"), 431),
    "a method of 70 KB": (head("/", None, method="A" * 70_000), 431),
    "a key of 60 KB": (head("/v1/models", None, {"Authorization": "Bearer " + "k" * 60_000}, method="GET"), 401),
    "a cookie of 60 KB": (
        head("/admin/status.json", None, {"Cookie": "moe_admin=" + "v1." * 20_000}, method="GET"),
        401,
    ),
    "20,000 cookies": (head("/admin/status.json", None, {"Cookie": "a=b;" * 15_000}, method="GET"), 401),
    "a query of 60 KB": (head("/health?" + "a=b&" * 15_000, None, method="GET"), 200),
}


@pytest.mark.parametrize("what", BOUNDED)
async def test_a_head_without_measure_is_bounded_and_costs_the_others_little(what: str) -> None:
    data, status = BOUNDED[what]
    async with running() as gateway, connect(gateway) as client:
        began_s = time.process_time()
        with contextlib.suppress(ConnectionError):
            await client.send(data)
        assert (await client.head())[0] == status
        assert time.process_time() - began_s < 0.25
        assert (await exchange(gateway, HEALTH)).status == 200


# Admin


@pytest.mark.parametrize("path", ["/admin/status.json", "/admin/fragment", "/metrics"])
async def test_what_only_an_admin_sees_opens_to_no_other_key_wherever_it_stands(path: str) -> None:
    seat, host = key_of("a"), {"Host": "box.example"}
    tries: list[tuple[str, dict[str, str]]] = [
        (path, {}),
        (path, {"Authorization": f"Bearer {seat}"}),
        (path, {"X-Api-Key": seat}),
        (path, {"X-Api-Key": ADMIN_TOKEN[:-1]}),
        (path, {"Authorization": "Bearer "}),
        (path, {"Authorization": "Bearer null"}),
        (path, {"Authorization": f"Basic {ADMIN_TOKEN}"}),
        (path, {"Cookie": f"moe_admin={ADMIN_TOKEN}"}),
        (path, {"Cookie": "moe_admin=v1.cm9vdA.9999999999.AAAA"}),
        (f"{path}?token={ADMIN_TOKEN}", {}),
        (f"{path}?key={seat}", {}),
        (path, {"X-Forwarded-For": "127.0.0.1"}),
        (path, {"X-Forwarded-User": "root", "Remote-User": "root", "X-Admin": "root"}),
        (path, {"X-Original-URL": "/health", "X-Rewrite-URL": "/health"}),
    ]
    async with running() as gateway:
        for where, said in tries:
            answer = await exchange(gateway, head(where, None, host | said, method="GET"))
            assert answer.status == 401, (where, said)
            assert ADMIN_TOKEN.encode() not in answer.body
            assert seat.encode() not in answer.body


async def test_an_admin_token_opens_no_stream() -> None:
    async with running() as gateway:
        request = post(chat(), seat=None, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
        assert (await exchange(gateway, request)).status == 401
        assert gateway.engine.stats.requests == 0


# Many who hold a connection


@asynccontextmanager
async def loris(
    gateway: Running, count: int, source: str = "127.0.0.2", again_s: float = 0.5
) -> AsyncIterator[dict[str, Any]]:
    """So many dribbling connections at once; the yielded counts are filled in at the end."""
    argv = [gateway.host, gateway.port, source, count, key_of("a"), again_s]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.gateway.loris",
        *map(str, argv),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    counts: dict[str, Any] = {}
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline()
        yield counts
        process.stdin.close()
        counts |= json.loads(await process.stdout.readline())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback addresses count like any other: there are no others that a test may use."""
    monkeypatch.setattr(connections, "_place", lambda host, proxies: (host, False))


async def paces(gateway: Running, count: int, **how: Any) -> tuple[float, float, dict[str, Any]]:
    """Median gap of four streams alone, then among `count` dribblers; what became of those."""
    alone_s = await median_gap_s(gateway)
    async with loris(gateway, count, **how) as counts:
        among_s = await median_gap_s(gateway)
    return alone_s, among_s, counts


def told(what: str, alone_s: float, among_s: float, counts: dict[str, Any], gateway: Running) -> None:
    table = gateway.core.connections
    print(f"MEASURED {what}: median gap {alone_s * 1000:.2f} ms alone, {among_s * 1000:.2f} ms among them")
    print(f"MEASURED {what}: {counts}, open {table.open}, given up {table.given_up}, refused {table.refused}")


@pytest.mark.usefixtures("strangers")
async def test_four_streams_keep_their_pace_among_hundreds_who_dribble() -> None:
    async with box(connections=1000, connections_per_address=0) as gateway:
        alone_s, among_s, counts = await paces(gateway, 600)
        told("600 within the limits", alone_s, among_s, counts, gateway)
        assert among_s < alone_s * 1.5
        assert gateway.core.connections.given_up == gateway.core.connections.refused == 0


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"connections": 1000, "connections_per_address": 100}, 100),
        ({"connections": 150, "connections_per_address": 0}, 150),
    ],
    ids=["of one address", "of all"],
)
async def test_the_limits_hold_while_four_streams_keep_their_pace(limits: dict[str, float], most: int) -> None:
    async with box(**limits) as gateway:
        seen: list[int] = []
        enter = gateway.core.connections.enter

        def noted(connection: connections.Connection) -> connections.Entry:
            entry = enter(connection)
            seen.append(
                sum(home.count for key, home in gateway.core.connections._addresses.items() if key == "127.0.0.2")
            )
            return entry

        gateway.core.connections.enter = noted  # type: ignore[method-assign]
        alone_s, among_s, counts = await paces(gateway, 600)
        told(f"600 against {most}", alone_s, among_s, counts, gateway)
        assert max(seen) <= most
        assert among_s < alone_s * 1.5
        table = gateway.core.connections
        assert table.given_up + table.refused > 300
        assert len([line for line in gateway.log if line["event"] == "connections.full"]) == 1
        assert gateway.core.bodies.used_bytes < 100_000
