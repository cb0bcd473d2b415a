"""For tests: many clients that hold a connection and send next to nothing. A program of its own, so that what they cost
themselves is not taken for what they cost the gateway.

    python -m tests.gateway.loris HOST PORT SOURCE COUNT KEY [AGAIN_S]

Touches sockets. Of four connections one says nothing, one dribbles a head, one a body with the seat key KEY and one a
body without a key. One that was cut is opened again after AGAIN_S. A line of JSON when all were opened once, another
when stdin closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter

EVERY_S = 0.25
"""Between two bytes of one connection."""


def opening(number: int, key: str) -> bytes:
    """What is sent at once; the rest dribbles."""
    post = "POST /v1/chat/completions HTTP/1.1\r\nHost: box\r\nContent-Length: 5000\r\n"
    return (
        b"",
        b"GET /health HTTP/1.1\r\nX-A: ",
        f'{post}Authorization: Bearer {key}\r\n\r\n{{"a": "'.encode(),
        f"{post}\r\n".encode(),
    )[number % 4]


async def hold(
    number: int, address: tuple[str, int], source: str, key: str, again_s: float, counts: Counter[str]
) -> None:
    """One connection after the other, each for as long as it is let."""
    while True:
        first = opening(number, key)
        try:
            reader, writer = await asyncio.open_connection(*address, local_addr=(source, 0))
        except OSError:
            counts["unreached"] += 1
            await asyncio.sleep(again_s)
            continue
        counts["opened"] += 1
        try:
            writer.write(first)
            while not reader.at_eof():
                if first:
                    writer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(EVERY_S):
                        await reader.read(1000)
        except OSError:
            pass
        finally:
            writer.transport.abort()
        counts["cut"] += 1
        await asyncio.sleep(again_s)


async def main(host: str, port: str, source: str, count: str, key: str, again_s: str = "0.5") -> None:
    """Hold `count` connections until stdin closes."""
    counts: Counter[str] = Counter()
    tasks = [
        asyncio.create_task(hold(number, (host, int(port)), source, key, float(again_s), counts))
        for number in range(int(count))
    ]
    while counts["opened"] < len(tasks):
        await asyncio.sleep(0.01)
    print(json.dumps(counts), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    print(json.dumps(counts), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
