"""Soft budgets: above it a seat stands behind the others for a minute, and that is all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway import admission_bounds
from gateway.admission import HOLD_PRIOR_S, Admission
from gateway.admission_bounds import BUDGET_PATIENCE_S
from gateway.admission_types import Arrive, Granted, Leave, Limits, Queued, Rejected, Tick, TicketId
from gateway.errors import ConfigError
from gateway.keyfile import parse_seats
from gateway.keys import digest_of
from gateway.ledger.view import begun, over_budget
from gateway.seats import SeatName
from tests.gateway.forms import CHAT
from tests.gateway.ledgers import row
from tests.gateway.running import Running, running, seats_toml
from tests.gateway.test_exchange_ranks import Line


def arrive(
    policy: Admission, id: int, seat: str, now_s: float = 0.0, *, over: bool = False, helper: bool = False
) -> object:
    effects = policy.handle(Arrive(TicketId(id), seat, None, 1, helper, over), now_s).effects
    [told] = [effect for effect in effects if effect.id == id]
    return told


def test_above_its_budget_a_seat_stands_behind_the_others_until_it_has_waited_a_minute() -> None:
    policy = Admission(Limits(streams=1))
    arrive(policy, 1, "ana")
    assert arrive(policy, 2, "ben", over=True) == Queued(TicketId(2), 1, 1, HOLD_PRIOR_S)
    arrive(policy, 3, "ana", 1.0)
    assert policy.order() == [3, 2], "though ana was served just now"
    policy.handle(Tick(), BUDGET_PATIENCE_S)
    assert policy.order() == [2, 3]


def test_a_free_ticket_is_anybody_s() -> None:
    policy = Admission(Limits(streams=2))
    assert isinstance(arrive(policy, 1, "ana", over=True), Granted)
    assert isinstance(arrive(policy, 2, "ana", over=True), Granted)


def test_a_turn_above_its_budget_comes_before_anybody_s_helper() -> None:
    policy = Admission(Limits(streams=1))
    arrive(policy, 1, "cleo")
    arrive(policy, 2, "ana", helper=True)
    arrive(policy, 3, "ben", over=True)
    assert policy.order() == [3, 2]


def test_two_above_their_budgets_are_as_fair_to_each_other_as_ever() -> None:
    policy = Admission(Limits(streams=2))
    for id, seat in enumerate(("ana", "ana", "ana", "ben"), start=1):
        arrive(policy, id, seat, over=True)
    granted = policy.handle(Leave(TicketId(1)), 1.0).effects
    assert [effect.id for effect in granted] == [4], "ben, who holds no ticket"


def test_nobody_is_refused_for_it_when_the_line_is_long() -> None:
    policy = Admission(Limits(streams=1, queue_deadline_s=2.5 * HOLD_PRIOR_S))
    for id in (1, 2, 3):
        arrive(policy, id, "ana")
    assert isinstance(arrive(policy, 4, "ana"), Rejected), "a third place in line is too late for ana"
    waits = arrive(policy, 5, "ben", over=True)
    assert isinstance(waits, Queued), "who would be first within the budget"
    assert waits.position == 3, "told where it really stands"


def test_the_patience_ends_well_before_a_short_deadline() -> None:
    policy = Admission(Limits(streams=1, queue_deadline_s=30.0))
    arrive(policy, 1, "ana")
    arrive(policy, 2, "ben", over=True)
    arrive(policy, 3, "ana")
    policy.handle(Tick(), 10.0)
    assert policy.order() == [2, 3]


def test_a_budget_alone_makes_nobody_miss_the_deadline() -> None:
    policy = Admission(Limits(streams=1, queue_deadline_s=6 * HOLD_PRIOR_S))
    for id in range(5):
        arrive(policy, id, f"seat{id}")
    arrive(policy, 5, "ben", over=True)
    arrive(policy, 6, "cleo")
    assert policy.order() == [1, 2, 3, 4, 6, 5]
    policy.handle(Tick(), HOLD_PRIOR_S)
    assert policy.order() == [1, 2, 3, 4, 5, 6], "its own wait leaves one turn before the deadline, and no more"


@pytest.mark.parametrize("value", ["0", "-5", "1.5", '"many"', "true"])
def test_a_budget_is_a_whole_number_of_tokens(value: str) -> None:
    text = f'[seats.ana]\ndigest = "{digest_of("k")}"\ntokens_per_month = {value}\n'
    with pytest.raises(ConfigError, match=r"seats\.ana\.tokens_per_month"):
        parse_seats(Path("seats.toml"), text.encode())


def test_a_budget_goes_with_the_key() -> None:
    text = f'[seats.ana]\ndigest = "{digest_of("k")}"\ntokens_per_month = 5000\n'
    book = parse_seats(Path("seats.toml"), text.encode())
    assert book.accounts[SeatName("ana")].tokens_per_month == 5000
    seat = book.authenticate([(b"x-api-key", b"k")], 0.0)
    assert getattr(seat, "tokens_per_month", None) == 5000


@asynccontextmanager
async def with_budget(tokens: int) -> AsyncIterator[Running]:
    """A gateway of one stream, where seat a has a budget, and has used 101 tokens this month."""
    text = seats_toml().replace("[seats.a]\n", f"[seats.a]\ntokens_per_month = {tokens}\n")
    async with running(streams=1, seats=text) as gateway, begun(gateway.core):
        ledger = gateway.core.ledger
        assert ledger is not None
        ledger.put(row(seat="a", at_s=gateway.core.now(), prompt_tokens=1000, cached_tokens=900, completion_tokens=1))
        yield gateway


@pytest.mark.anyio
@pytest.mark.parametrize(("tokens", "order"), [(100, ["b", "a"]), (101, ["a", "b"])])
async def test_the_ledger_s_month_decides_who_goes_first(tokens: int, order: list[str]) -> None:
    async with with_budget(tokens) as gateway:
        line = Line(gateway, CHAT)
        await line.hold()
        await line.join("a", "a", tools=True)
        await line.join("b", "b", tools=True)
        assert await line.served() == order


@pytest.mark.anyio
async def test_who_has_waited_long_enough_is_equal_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_bounds, "BUDGET_PATIENCE_S", 0.05)
    async with with_budget(1) as gateway:
        line = Line(gateway, CHAT)
        await line.hold()
        await line.join("a", "a", tools=True)
        await line.join("b", "b", tools=True)
        arrived_s = {seat: at_s for _, seat, at_s in gateway.core.limiter.view().waiting}["a"]
        await gateway.until(lambda: gateway.core.limiter.loop.time() > arrived_s + 0.05)
        assert await line.served() == ["a", "b"]


@pytest.mark.anyio
async def test_without_a_ledger_nobody_is_above_a_budget() -> None:
    async with running() as gateway:
        assert not over_budget(gateway.core, "a", 1)
