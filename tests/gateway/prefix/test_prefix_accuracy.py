"""How near the estimate of what is cached comes to the fake engine's own cache, over a mix of requests."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import orjson
import pytest

from gateway.dialects import Dialect, Prepared
from gateway.dialects.messages import Messages
from gateway.dialects.openai import CHAT, COMPLETIONS
from gateway.dialects.responses import Responses
from gateway.meter import Usage
from gateway.prefix.fingerprint import fingerprint
from gateway.prefix.index import PrefixIndex, Reading
from tests.fake_engine.asks import Ask, parse, tokens_of
from tests.fake_engine.cache import BLOCK_TOKENS, PrefixCache, block_chain
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.render import call_text
from tests.gateway.prefix.traffic import Conversation, Mix, Reply

REQUESTS = 500
CAPACITY_TOKENS = 120_000
STREAMS = 4
DIALECTS: dict[str, Dialect] = {one.path: one for one in (CHAT, COMPLETIONS, Messages(), Responses())}


@dataclass(slots=True)
class Open:
    one: Conversation
    reading: Reading
    prompt: bytes
    tokens: int
    cached: int


class Engine:
    """The fake engine's template and cache without its sockets and its clock."""

    def __init__(self, capacity_tokens: int) -> None:
        self.cache = PrefixCache(capacity_tokens)
        self.blocks: set[bytes] = set()

    def read(self, path: str, raw: bytes) -> tuple[Ask, int]:
        ask = parse(raw, path, Knobs())
        assert isinstance(ask, Ask)
        chain = block_chain(ask.prompt)
        cached = self.cache.hit_tokens(chain)
        self._insert(chain)
        return ask, cached

    def write(self, prompt: bytes, reply: Reply) -> int:
        text = f"<think>{reply.thinking}</think>" if reply.thinking else ""
        text += reply.text + (call_text(*reply.call) if reply.call else "")
        self._insert(block_chain(prompt + text.encode()))
        return tokens_of(text.encode())

    def _insert(self, chain: tuple[bytes, ...]) -> None:
        self.cache.insert(chain)
        self.blocks.update(chain)


@dataclass(slots=True)
class Seen:
    """Per request, as shares of the prompt: errors of what is cached, errors of the length. `cached`: the share of all
    tokens that was. `used`: what the engine's cache would hold if nothing ever went, in capacities."""

    of_cached: list[float] = field(default_factory=list)
    of_length: list[float] = field(default_factory=list)
    cached: float = 0.0
    used: float = 0.0

    def say(self, what: str, index: PrefixIndex) -> str:
        found = [f"{at(shares, q):.2%}" for shares in (self.of_cached, self.of_length) for q in (0.5, 0.95)]
        return (
            f"{what}: cached median {found[0]}, p95 {found[1]}; length median {found[2]}, p95 {found[3]}; "
            f"{self.cached:.0%} cached, {self.used:.1f} capacities used; {index.losses} losses, "
            f"capacity in the end {index.capacity_tokens}"
        )


def drive(index: PrefixIndex, seed: int, *, capacity_tokens: int = CAPACITY_TOKENS, tells: bool = True) -> Seen:
    mix, engine, order, seen = Mix(seed), Engine(capacity_tokens), random.Random(seed + 1), Seen()
    running: list[Open] = []
    cached_tokens = prompt_tokens = 0
    for now in range(REQUESTS):
        while len(running) == STREAMS or (running and order.random() < 0.5):
            done = running.pop(order.randrange(len(running)))
            reply = mix.reply(done.one)
            completion = engine.write(done.prompt, reply)
            usage = Usage(done.tokens, completion, done.cached if tells else None)
            index.end(done.reading, usage, read=True, now_s=now)
            done.one.answered(reply, mix.number)
            done.one.busy = False
        one = mix.next()
        raw = orjson.dumps(one.body())
        prepared = DIALECTS[one.path].prepare(raw, orjson.loads(raw))
        assert isinstance(prepared, Prepared)
        reading = index.begin(fingerprint(orjson.loads(raw)), one.seat, now)
        ask, cached = engine.read(one.path, prepared.body)
        running.append(Open(one, reading, ask.prompt, ask.prompt_tokens, cached))
        seen.of_cached.append(abs(reading.expected.cached_tokens - cached) / ask.prompt_tokens)
        seen.of_length.append(abs(reading.expected.prompt_tokens - ask.prompt_tokens) / ask.prompt_tokens)
        cached_tokens += cached
        prompt_tokens += ask.prompt_tokens
    seen.cached, seen.used = cached_tokens / prompt_tokens, len(engine.blocks) * BLOCK_TOKENS / capacity_tokens
    return seen


def at(shares: list[float], quantile: float) -> float:
    return sorted(shares)[int(quantile * (len(shares) - 1))]


@pytest.mark.parametrize("believed", [CAPACITY_TOKENS, None, 2 * CAPACITY_TOKENS, CAPACITY_TOKENS // 2])
def test_half_of_all_estimates_are_within_three_percent_whatever_capacity_was_believed(believed: int | None) -> None:
    index = PrefixIndex(believed)
    seen = drive(index, 6)
    print(seen.say(f"believed {believed}", index))
    assert at(seen.of_cached, 0.5) <= 0.03
    assert at(seen.of_length, 0.5) <= 0.03
    assert 0.3 < seen.cached < 0.95
    assert seen.used > 4
    assert index.capacity_tokens is not None
    assert abs(index.capacity_tokens / CAPACITY_TOKENS - 1) < 0.25


@pytest.mark.parametrize("capacity_tokens", [40_000, 400_000])
def test_and_with_a_cache_that_is_far_too_small_or_nearly_large_enough(capacity_tokens: int) -> None:
    index = PrefixIndex(None)
    seen = drive(index, 7, capacity_tokens=capacity_tokens)
    print(seen.say(f"capacity {capacity_tokens}", index))
    assert at(seen.of_cached, 0.5) <= 0.03


def test_an_engine_that_does_not_tell_what_was_cached_is_followed_by_its_known_capacity() -> None:
    index = PrefixIndex(CAPACITY_TOKENS)
    seen = drive(index, 8, tells=False)
    print(seen.say("untold", index))
    assert at(seen.of_cached, 0.5) <= 0.03
    assert (index.losses, dict(index.hits)) == (0, {})
