"""What all requests share of the cache and the speed: prices follow the cache, and what a reply took is learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.admission_lane import is_cold
from gateway.admission_types import Limits, TicketId
from gateway.care import Care, Prompt
from gateway.learning.learned import Learned
from gateway.meter import Meter, Usage
from gateway.prefix.fingerprint import fingerprint
from gateway.prefix.index import PrefixIndex
from gateway.state import EngineAbilities, EngineProfile, EngineState, HostKv, Phase

CHAT = "/v1/chat/completions"
LONG = "tree " * 40_000
SPEED = 0.004
"""Seconds that this engine reads a token."""


@dataclass
class FakeTap:
    meter: Meter = field(default_factory=Meter)
    whole: bool = False

    @property
    def streamed(self) -> bool:
        return True

    def feed(self, data: bytes, now_s: float) -> bytes:
        return data

    def finish(self, now_s: float, framed: bool = True) -> bytes:
        return b""


class Desk:
    """Prompts of one engine, with a clock that is set by hand."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1000.0
        self.care = Care(Learned.load(folder), lambda: self.now_s)
        self.start("one")
        self.count = 0

    def start(self, start_id: str, kv_tokens: int | None = None, told: int | None = None, host: bool = False) -> None:
        profile = EngineProfile(name="fake", floor_tok_per_s=40.0, cold_tokens=12_000, streams=4, kv_tokens=kv_tokens)
        self.care.engine_started(
            EngineState(
                phase=Phase.READY,
                start_id=start_id,
                profile=profile,
                models=("m",),
                context_tokens=200_000,
                abilities=EngineAbilities(kv_tokens=told),
                host_kv=HostKv(on=host),
            )
        )

    def prompt(self, *texts: str, seat: str = "ana", streamed: bool = True) -> tuple[Prompt, FakeTap]:
        roles = ("user", "assistant")
        messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
        tap = FakeTap()
        return Prompt(self.care, fingerprint({"messages": messages}), seat, CHAT, streamed, lambda: tap), tap

    def granted(self, prompt: Prompt) -> None:
        self.count += 1
        prompt.granted(TicketId(self.count))

    def reply(
        self,
        prompt: Prompt,
        tap: FakeTap,
        *,
        cached: int | None = 0,
        tokens: int = 100,
        seconds: float | None = None,
        events: int | None = None,
    ) -> None:
        """Read, written and over, as an engine would that reads at SPEED and writes 50 tokens a second, or all of them
        in `seconds`; each in an event of its own, or all in `events`."""
        whole = prompt.price().prompt_tokens if prompt.ticket is None else prompt.print_.bytes // 4
        self.granted(prompt)
        self.now_s += SPEED * (whole - (cached or 0))
        tap.meter.first_token_s = tap.meter.last_token_s = self.now_s
        prompt.first_token()
        self.now_s += tokens / 50 if seconds is None else seconds
        tap.meter.last_token_s, tap.meter.events = self.now_s, tokens if events is None else events
        tap.meter.usage = Usage(whole, tokens, cached)
        tap.whole = True
        prompt.over()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_prompt_that_was_read_costs_only_what_is_new(desk: Desk) -> None:
    first, tap = desk.prompt(LONG)
    before = first.price()
    assert before.uncached_tokens == before.prompt_tokens > 40_000
    desk.reply(first, tap)
    again, _ = desk.prompt(LONG, "yes", "go on")
    assert again.price().uncached_tokens < 500
    assert again.price().prefill_s < before.prefill_s / 10


def test_what_was_read_by_an_engine_that_is_gone_is_not_cached(desk: Desk) -> None:
    first, tap = desk.prompt(LONG)
    desk.reply(first, tap)
    desk.start("two")
    again, _ = desk.prompt(LONG)
    assert again.price().uncached_tokens == again.price().prompt_tokens


def test_a_prompt_that_was_cut_before_its_first_token_is_not_cached_and_teaches_nothing(desk: Desk) -> None:
    cut, _ = desk.prompt(LONG)
    desk.granted(cut)
    desk.now_s += 1.0
    cut.over()
    again, _ = desk.prompt(LONG)
    assert again.price().uncached_tokens == again.price().prompt_tokens
    assert desk.care.known.curve.measured == 0
    assert desk.care.running == {}


def test_the_time_that_a_prompt_took_alone_is_what_the_next_one_is_predicted_to_take(desk: Desk) -> None:
    first, tap = desk.prompt(LONG)
    desk.reply(first, tap)
    other, _ = desk.prompt("bush " * 40_000)
    assert other.price().prefill_s == pytest.approx(SPEED * other.price().prompt_tokens, rel=0.1)


def test_an_answer_that_was_kept_back_teaches_neither_reading_nor_pace(desk: Desk) -> None:
    kept, tap = desk.prompt(LONG)
    desk.reply(kept, tap, tokens=60, seconds=0.003, events=2)
    assert tap.meter.tok_per_s is None
    assert desk.care.known.curve.measured == 0
    assert desk.care.pace(desk.now_s).tok_per_s is None


def test_two_that_are_read_at_once_teach_nothing_of_how_fast_one_is(desk: Desk) -> None:
    (one, one_tap), (two, two_tap) = desk.prompt(LONG), desk.prompt("bush " * 40_000)
    desk.granted(one)
    desk.granted(two)
    for prompt, tap in ((one, one_tap), (two, two_tap)):
        desk.now_s += 50.0
        tap.meter.first_token_s = tap.meter.last_token_s = desk.now_s
        prompt.first_token()
        tap.meter.usage, tap.whole = Usage(50_000, 2, 0), True
        prompt.over()
    assert desk.care.known.curve.measured == 0


def test_a_reply_without_a_cold_neighbour_tells_the_pace_and_one_with_does_not(desk: Desk) -> None:
    writer, tap = desk.prompt("hello")
    desk.reply(writer, tap)
    assert desk.care.pace(desk.now_s).tok_per_s == pytest.approx(49.5, rel=0.02)
    writer, tap = desk.prompt("hello again")
    desk.granted(writer)
    tap.meter.first_token_s = desk.now_s
    writer.first_token()
    cold, _ = desk.prompt(LONG)
    desk.granted(cold)
    desk.now_s += 20.0
    tap.meter.last_token_s, tap.meter.events, tap.meter.usage, tap.whole = desk.now_s, 99, Usage(9, 99, 0), True
    writer.over()
    assert desk.care.pace(desk.now_s).replies == 1


def test_tokens_so_far_are_counted_and_none_before_the_first(desk: Desk) -> None:
    prompt, tap = desk.prompt("hello")
    desk.granted(prompt)
    assert prompt.ticket is not None
    assert desk.care.sent(prompt.ticket) is None
    with pytest.raises(KeyError):
        desk.care.sent_now[prompt.ticket]
    tap.meter.first_token_s, tap.meter.last_token_s, tap.meter.events = 1000.0, 1002.0, 80
    assert desk.care.sent_now[prompt.ticket].tokens == 80
    assert len(desk.care.sent_now) == 1


@pytest.mark.parametrize("unread", [False, True], ids=["all are read", "one is being read"])
def test_a_stream_that_the_engine_keeps_back_goes_on_at_its_own_pace_while_others_move(
    desk: Desk, unread: bool
) -> None:
    (silent, silent_tap), (moving, moving_tap) = desk.prompt("call a tool"), desk.prompt("hello")
    for prompt in (silent, moving):
        desk.granted(prompt)
        prompt.first_token()
    if unread:
        desk.granted(desk.prompt("one more")[0])
    silent_tap.meter.first_token_s, silent_tap.meter.last_token_s, silent_tap.meter.events = 1000.0, 1002.0, 80
    moving_tap.meter.first_token_s, moving_tap.meter.last_token_s, moving_tap.meter.events = 1000.0, 1012.0, 480
    assert silent.ticket is not None
    found = desk.care.sent_now[silent.ticket]
    assert (found.tokens, found.at_s) == ((80, 1002.0) if unread else (480, 1012.0))


def test_what_was_learned_is_there_after_a_restart_of_the_gateway(desk: Desk, tmp_path: Path) -> None:
    first, tap = desk.prompt(LONG)
    desk.reply(first, tap)
    assert desk.care.learned.keep() == ""
    other, _ = Desk(tmp_path).prompt("bush " * 40_000)
    assert other.price().prefill_s == pytest.approx(SPEED * other.price().prompt_tokens, rel=0.1)


@pytest.mark.parametrize(
    ("declared", "told", "host", "capacity"),
    [
        (700_000, 600_000, False, 700_000),
        (None, 600_000, False, 600_000),
        (None, None, False, 800_000),
        (700_000, None, True, None),
    ],
    ids=["declared", "as the engine says", "as much as its streams may hold", "with a host tier nobody knows"],
)
def test_how_much_the_cache_holds_is_taken_from_who_knows_best(
    desk: Desk, declared: int | None, told: int | None, host: bool, capacity: int | None
) -> None:
    desk.start("two", kv_tokens=declared, told=told, host=host)
    assert desk.care.index.capacity_tokens == capacity


def test_a_ticket_comes_back_whatever_goes_wrong_with_what_is_learned(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ArithmeticError

    left: list[float] = []
    prompt, tap = desk.prompt(LONG)
    prompt.place = SimpleNamespace(leave=left.append)  # type: ignore[assignment]
    desk.granted(prompt)
    tap.meter.events = 7
    monkeypatch.setattr(PrefixIndex, "end", broken)
    with pytest.raises(ArithmeticError):
        prompt.over()
    assert left == [7.0]


def test_a_long_prompt_of_an_engine_that_nobody_measured_is_not_taken_for_a_short_one(desk: Desk) -> None:
    desk.care.short_s = 60.0
    prompt, tap = desk.prompt(LONG)
    assert prompt.price().prefill_s == 60.0
    brief, _ = desk.prompt("hello")
    assert brief.price().prefill_s < 1.0
    desk.reply(prompt, tap)
    other, _ = desk.prompt("bush " * 40_000)
    assert other.price().prefill_s == pytest.approx(SPEED * other.price().prompt_tokens, rel=0.1)


def test_a_tiny_request_measures_no_reading_and_leaves_a_long_prompt_cold(desk: Desk) -> None:
    desk.care.short_s = 4.0
    tiny, tap = desk.prompt("hello")
    desk.reply(tiny, tap)
    assert desk.care.known.curve.overhead_s < 0.3, "it tells what a request costs before anything is read"
    assert desk.care.known.curve.measured == 0
    long, _ = desk.prompt("bush " * 15_000)
    assert desk.care.known.curve.predict_s(long.price().prompt_tokens, 0) < 4.0, "by the study's curve it is short"
    assert is_cold(long.price(), Limits(short_s=4.0))
