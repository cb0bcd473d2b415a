"""Time in tests/virtual_time.py passes when nothing is under way, and only then."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests import virtual_time
from tests.virtual_time import START_S, StuckError


def test_an_hour_of_sleep_takes_no_time() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(3600)
        return [loop.time()]

    began_s = time.monotonic()
    assert virtual_time.run(main()) == [START_S + 3600]
    assert time.monotonic() - began_s < 5


def test_timers_come_in_their_order_at_their_times() -> None:
    async def main() -> list[tuple[float, float]]:
        loop, seen = asyncio.get_running_loop(), []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((seconds, loop.time() - START_S))

        await asyncio.gather(*(sleeper(seconds) for seconds in (30.0, 0.25, 7.5, 30.0, 1e-6, 0.25)))
        return seen

    seen = virtual_time.run(main())
    assert [seconds for seconds, _ in seen] == [1e-6, 0.25, 0.25, 7.5, 30.0, 30.0]
    assert all(at_s == pytest.approx(seconds, abs=1e-6) for seconds, at_s in seen)


def test_a_timeout_is_of_virtual_seconds() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(240):
                await asyncio.Event().wait()
        return loop.time() - START_S

    assert virtual_time.run(main()) == pytest.approx(240)


@pytest.mark.parametrize("size", [1, 100_000, 20_000_000])
def test_no_time_passes_while_bytes_are_on_their_way_through_a_socket(size: int) -> None:
    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got = await reader.readexactly(size)
            writer.write(got)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        far = loop.call_later(1000, lambda: None)
        writer.write(bytes(size))
        back = await reader.read(-1)
        writer.close()
        server.close()
        far.cancel()
        return len(back), loop.time() - START_S

    assert virtual_time.run(main()) == (size, 0.0)


def test_no_time_passes_while_a_thread_works() -> None:
    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        ticks = asyncio.create_task(asyncio.sleep(0.5))
        found = await asyncio.to_thread(sum, range(2_000_000))
        spent_s = loop.time() - START_S
        await ticks
        return found, spent_s

    assert virtual_time.run(main()) == (1_999_999_000_000, 0.0)


def test_who_waits_for_ever_is_told() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StuckError, match="nothing is due"):
        virtual_time.run(main())
