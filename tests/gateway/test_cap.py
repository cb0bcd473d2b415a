"""Ten streaming clients at cap four: the engine never runs a fifth, all finish, no seat waits for another's second."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.admission import Admission
from gateway.admission_types import Arrive, Decision, Event, Granted, Leave
from tests.gateway import forms
from tests.gateway.forms import PATHS, ROUTES
from tests.gateway.running import Running, running
from tests.gateway.wire import Answer, ask, call, exchange, post

pytestmark = pytest.mark.anyio

IDLE_MAX_S = 0.005
WAVES = (("a", 3), ("b", 3), ("c", 2), ("d", 1), ("e", 1))
"""Who sends how many, in the order of arrival: ten requests of five seats."""


@dataclass(slots=True)
class Watched:
    """What happened to the policy: arrivals, grants in order, and how long a free ticket had a waiter."""

    arrived: list[tuple[int, str]]
    granted: list[tuple[int, str]]
    idle_s: float = 0.0
    most_running: int = 0
    _seat_of: dict[int, str] | None = None
    _since_s: float | None = None

    def saw(self, event: Event, decision: Decision, policy: Admission) -> None:
        now_s = time.monotonic()
        view = policy.view()
        if self._since_s is not None:
            self.idle_s = max(self.idle_s, now_s - self._since_s)
        free = len(view.running) < view.limits.streams
        self._since_s = now_s if free and view.waiting else None
        self.most_running = max(self.most_running, len(view.running))
        seats = self._seat_of = self._seat_of or {}
        if isinstance(event, Arrive):
            seats[event.id] = event.seat
            self.arrived.append((event.id, event.seat))
        self.granted += [(e.id, seats[e.id]) for e in decision.effects if isinstance(e, Granted)]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    seen = Watched([], [])
    handle = Admission.handle

    def noted(self: Admission, event: Event, now_s: float, *sent: Any) -> Decision:
        decision = handle(self, event, now_s, *sent)
        seen.saw(event, decision, self)
        return decision

    monkeypatch.setattr(Admission, "handle", noted)
    return seen


def path_of(number: int) -> str:
    """The routes take turns: one cap is for all of them together."""
    return PATHS[number % len(PATHS)]


async def ten(gateway: Running) -> list[Answer]:
    """Ten requests, each in line before the next is sent."""
    tasks: list[asyncio.Task[Answer]] = []
    for number, seat in enumerate(seat for seat, count in WAVES for _ in range(count)):
        path = path_of(number)
        body = ask(path, f"request {number}", stream=True, max_tokens=30 + 7 * number)
        tasks.append(asyncio.create_task(exchange(gateway, post(body, path=path, seat=seat))))
        await gateway.until(lambda wanted=number + 1: len(gateway.core.live) == wanted and all_in_line(gateway))
    return list(await asyncio.gather(*tasks))


def all_in_line(gateway: Running) -> bool:
    return all(exchange.place is not None for exchange in gateway.core.live)


def engine_idle_s(gateway: Running) -> float:
    """The longest time for which the engine had fewer than four requests though all ten had not come yet."""
    log = gateway.engine.stats.log
    changes = sorted([(r.arrived_s, 1) for r in log] + [(r.ended_s or 0.0, -1) for r in log])
    last_arrival_s = max(r.arrived_s for r in log)
    fourth_s = sorted(r.arrived_s for r in log)[3]
    longest_s, running_now, since_s = 0.0, 0, None
    for at_s, change in changes:
        if since_s is not None:
            longest_s = max(longest_s, at_s - since_s)
        running_now += change
        since_s = at_s if running_now < 4 and fourth_s <= at_s < last_arrival_s else None
    return longest_s


async def test_ten_clients_at_cap_four(watched: Watched) -> None:
    async with running({"time_scale": 0.5}, admission={"last_wait_s": 0}) as gateway:  # no ticket is withheld
        answers = await ten(gateway)
        await gateway.idle()
        stats = gateway.engine.stats
        print("MEASURED idle_ms", round(watched.idle_s * 1000, 3), "engine", round(engine_idle_s(gateway) * 1000, 3))
        assert (stats.peak_sequences, stats.peak_requests, watched.most_running) == (4, 4, 4)
        assert (stats.completed, stats.aborted, stats.requests) == (10, 0, 10)
        assert engine_idle_s(gateway) < IDLE_MAX_S  # the connection to the engine included
    assert all(forms.whole(path_of(number), answer) for number, answer in enumerate(answers))
    assert [line["completion_tokens"] for line in sorted(gateway.done(), key=lambda x: x["completion_tokens"])] == [
        30 + 7 * number for number in range(10)
    ]
    assert watched.idle_s < IDLE_MAX_S


async def test_the_order_is_fair_between_seats(watched: Watched) -> None:
    """Rules 1e to 1g of admission.py: whoever got a ticket held fewest of all seats that waited, and of these its run
    began first."""
    async with running({"time_scale": 0.3}) as gateway:
        await ten(gateway)
        await gateway.idle()
    order = [seat for _, seat in watched.granted]
    assert order[:4] == ["a", "a", "a", "b"]  # work-conserving: nobody else was there
    queued_first = {seat: next(id for id, s in watched.arrived if s == seat) for seat in "cde"}
    place = {id: number for number, (id, _) in enumerate(watched.granted)}
    second = [id for seat in "abc" for id in [i for i, s in watched.arrived if s == seat][1:] if place[id] >= 4]
    for seat, first in queued_first.items():
        earlier = [id for id in second if place[id] < place[first]]
        assert not earlier, f"{earlier} were served before the first request of {seat}"
    for seat in "abcde":
        own = [id for id, s in watched.granted if s == seat]
        assert own == sorted(own)


@ROUTES
async def test_one_seat_may_use_all_streams_until_others_come(path: str, watched: Watched) -> None:
    async with running({"silent_s": 0.06}) as gateway:
        own = [asyncio.create_task(call(gateway, path, stream=True)) for _ in range(8)]
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 4)
        assert {seat for _, seat, _ in gateway.core.limiter.view().running} == {"a"}
        others = []
        for number, seat in enumerate("bcb", start=5):
            others.append(asyncio.create_task(call(gateway, path, seat=seat, stream=True)))
            await gateway.until(lambda wanted=number: len(gateway.core.limiter.view().waiting) == wanted)
        answers = await asyncio.gather(*own, *others)
    assert all(answer.whole for answer in answers)
    # once all of them hold one, the oldest run goes first
    assert [seat for _, seat in watched.granted[4:8]] == ["b", "c", "a", "a"]


async def test_what_is_not_inference_is_never_capped() -> None:
    async with running({"silent_s": 30.0}, admission={"queue_max": 0}) as gateway:
        seats = zip(PATHS, "abcd", strict=True)
        tasks = [asyncio.create_task(call(gateway, path, seat=seat, stream=True)) for path, seat in seats]
        await gateway.until(lambda: gateway.core.limiter.running == 4)
        for path in PATHS:
            assert (await call(gateway, path, seat="e")).status == 429
        for counted in ("/v1/messages/count_tokens", "/v1/responses/input_tokens"):
            body = ask(counted.rpartition("/")[0], "x" * 400)
            assert (await exchange(gateway, post(body, path=counted, seat="e"))).json()["input_tokens"] > 99
        for path in ("/v1/models", "/v1/models/fake-model", "/health", "/ready", "/metrics", "/admin/login"):
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nx-api-key: moe-key-of-e\r\n\r\n".encode()
            assert (await exchange(gateway, request)).status in (200, 303), path
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await gateway.idle()


def test_a_leaving_request_hands_its_ticket_over_in_the_same_call(watched: Watched) -> None:
    from gateway.admission_types import Limits, TicketId

    policy = Admission(Limits(streams=1))
    for id in (1, 2):
        policy.handle(Arrive(TicketId(id), "a", None, 1), 0.0)
    assert policy.handle(Leave(TicketId(1)), 1.0).effects == (Granted(TicketId(2), 1),)
    assert watched.idle_s == 0.0
