"""The ledger of a gateway that is killed with -9 at random moments: every answered request older than a second is
there once, with the engine's own figures, and the page and the command line say the same."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.ledger import reading
from gateway.ledger.rows import Usage
from tests.e2e.box import COMMAND, until
from tests.e2e.ledger_box import SEATS, STREAMS, KilledGateway, killed_gateway

LOST_S = 1.0
"""What the issue allows a SIGKILL to take."""


def written(path: Path) -> list[tuple[str, str, str, int, int]]:
    """(request id, seat, outcome, prompt tokens, output tokens) of each row."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute(
            "SELECT request_id, seat, word, coalesce(prompt_tokens, 0), completion_tokens FROM requests"
        ).fetchall()


def told_by_cli(box: KilledGateway, *words: str) -> list[Usage]:
    config = box.folder / "appliance.toml"
    config.write_text(f'state_dir = "{box.folder}/state"\nruntime_dir = "{box.folder}"\n')
    done = subprocess.run(
        [COMMAND, "--config", config, "usage", "--json", *words], capture_output=True, text=True, check=True, timeout=60
    )
    return [
        Usage(**{key: value for key, value in row.items() if key != "month"})
        for row in json.loads(done.stdout)["usage"]
    ]


async def killed_at_random(box: KilledGateway, requests: int, seed: int) -> list[float]:
    """All requests, each tried once, while gateways die. Returns the seconds that each death took from the ledger."""
    chance, taken = random.Random(seed), []
    ids = iter([f"r{number}" for number in range(requests)])
    clients = [asyncio.create_task(box.ask(ids, SEATS[number % len(SEATS)])) for number in range(STREAMS)]
    while True:
        kill_at = len(box.told) + chance.randint(100, 1500)
        if chance.random() < 0.2:  # also while it starts, when nobody is answered
            await asyncio.sleep(chance.uniform(0.0, 0.5))
        else:
            while len(box.told) < kill_at and not all(client.done() for client in clients):
                await asyncio.sleep(0.005)
        if all(client.done() for client in clients):
            break
        killed_s = await asyncio.to_thread(box.kill)
        await box.all_told()
        taken.append(check_death(box, killed_s))
        box.start()
    await asyncio.gather(*clients)
    return taken


def check_death(box: KilledGateway, killed_s: float) -> float:
    """What was answered LOST_S before the death is there. Returns the age of the oldest answer that is not; what was
    read after the death was sent just before it."""
    there = {id for id, *_ in written(box.ledger)} if box.ledger.exists() else set()
    fresh = [t for t in box.told if t.answered_s is not None and t.id not in there and t.id not in box.lost]
    oldest_s = max((killed_s - (told.answered_s or 0.0) for told in fresh), default=0.0)
    box.lost |= {told.id for told in fresh}
    assert oldest_s < LOST_S, f"answered {oldest_s:.2f} s before the kill and not in the ledger"
    return oldest_s


def check_books(box: KilledGateway, requests: int) -> None:
    """Once each, with the engine's figures, and everybody says the same."""
    rows = written(box.ledger)
    assert max(Counter(id for id, *_ in rows).values()) == 1, "a request is there twice"
    answered = {told.id for told in box.told if told.answered_s is not None}
    assert answered - box.lost <= {id for id, *_ in rows}
    assert len(box.told) == requests
    engine = {record["id"]: record for record in box.engine.stats()["log"]}
    served = [row for row in rows if row[2] == "ok"]
    # how many rows the kills take grows with the pace of the machine; that each was fresh, check_death has seen
    assert len(answered) >= 0.9 * requests
    assert len(served) >= 0.1 * requests
    assert all((prompt, out) == (engine[id]["prompt_tokens"], engine[id]["tokens"]) for id, _, _, prompt, out in served)
    whole = [record for id, record in engine.items() if id in {row[0] for row in served}]
    assert sum(out for *_, out in served) == sum(record["tokens"] for record in whole)
    assert sum(prompt for *_, prompt, _ in served) == sum(record["prompt_tokens"] for record in whole)
    by_seat = {usage.seat: usage for usage in reading.usage(box.ledger, 0, time.time() + 1)}
    assert sum(usage.completion_tokens for usage in by_seat.values()) == sum(out for *_, out in rows)
    assert told_by_cli(box, "--since", "1d") == list(by_seat.values())
    status = box.status()
    assert status["ledger"]["rows"]["value"] == len(rows)  # type: ignore[index]
    counted = {
        month.seat: month.completion_tokens + month.prompt_tokens - month.cached_tokens
        for month in told_by_cli(box, "--monthly")
    }
    shown = {seat["name"]: seat["month_tokens"]["value"] for seat in status["seats"]}  # type: ignore[attr-defined]
    assert shown == counted, "the page's month is the command line's"


@pytest.fixture
def gateway(short_folder: Path) -> Iterator[KilledGateway]:
    with killed_gateway(short_folder) as box:
        yield box


@pytest.mark.anyio
@pytest.mark.parametrize("requests", [10_000])
async def test_every_answered_request_older_than_a_second_is_there_once(gateway: KilledGateway, requests: int) -> None:
    begun_s = time.monotonic()
    taken = await killed_at_random(gateway, requests, seed=5)
    assert len(taken) >= 3
    await asyncio.to_thread(gateway.stop)
    assert check_death(gateway, time.time()) == 0.0, "an orderly end takes nothing"
    gateway.start()
    await asyncio.to_thread(until, "the gateway answers", gateway.answers, 20.0)
    until("it has read the ledger", lambda: gateway.status()["ledger"]["rows"]["value"], 10.0)  # type: ignore[index]
    check_books(gateway, requests)
    print(
        f"MEASURED {requests} requests in {time.monotonic() - begun_s:.1f} s, {len(taken)} kills, "
        f"at most {max(taken):.2f} s lost, {len(gateway.lost)} rows lost in all"
    )
