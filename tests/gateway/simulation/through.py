"""For tests: a day of the simulation's developers through the real gateway, in front of the fake engine.

Touches sockets and the running loop, which must be virtual_time's. Rules:
- The agents are the simulation's, with their random numbers; their prompts are real bodies of as many tokens.
- What is shared by all prompts is read once before the day begins, as the simulation has it.
- Figures come from the engine's own times and counts, and go into the simulation's own sums.

What differs from the simulation by construction: the cache is of blocks of 64 tokens, whose oldest go, in place of
whole sessions, and what was compacted away takes up room until it is the oldest; nobody waits for room in it; eight
tokens come at once; a run is what runs.py takes for one; and the gateway estimates what the simulation knows, with
nothing learned before the day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from gateway.keys import digest_of
from gateway.simulation.agents import Agent
from gateway.simulation.cells import Scenario
from gateway.simulation.kv import SHARED_TOKENS
from gateway.simulation.metrics import Day, day_of
from gateway.simulation.pace import READY_S
from gateway.simulation.pod import Ended
from gateway.simulation.request import RETRY_S
from tests.fake_engine.cache import BYTES_PER_TOKEN
from tests.fake_engine.knobs import Knobs
from tests.fake_engine.render import CHAT_PATH
from tests.fake_engine.serving import Served, serving
from tests.fake_engine.stats import RequestRecord
from tests.gateway.running import ENGINE_KEY, Running, key_of, running

TOKENS_PER_CHUNK = 8
TIE_S = 0.001
"""Prompts that come to the engine within it came at once: their order is chance, which this makes the shorter first."""
_HEADERS = "host: box\r\nconnection: close\r\ncontent-type: application/json\r\n"
_OPENING_BYTES = len("<|assistant|>\n")


@dataclass(frozen=True, slots=True)
class Lived:
    """What came of a day. `records`: what the engine saw; `log`: what the gateway said, line by line."""

    day: Day
    records: Sequence[RequestRecord]
    log: Sequence[dict[str, Any]]
    peak_requests: int

    def events(self, name: str) -> list[dict[str, Any]]:
        """The gateway's log lines of that name."""
        return [line for line in self.log if line["event"] == name]

    def taken_for(self) -> list[tuple[RequestRecord, int]]:
        """Prompts that were read, and as how many uncached tokens the gateway let each go to the engine."""
        told = {line["request_id"]: line for line in self.events("request.done") if "uncached_tokens" in line}
        return [(one, told[one.id]["uncached_tokens"]) for one in self.records if one.read_s and one.id in told]


@dataclass(slots=True)
class Talk:
    """One session as an agent keeps it: the messages in JSON, and how long they are as the engine writes them."""

    name: str
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    cuts: int = 0

    def begin(self) -> None:
        """Nothing but what all prompts share."""
        self.parts, self.size = [], 0
        self.cuts += 1
        self.add("system", "s" * (SHARED_TOKENS * BYTES_PER_TOKEN - len("<|system|>\n\n")))

    def add(self, role: str, text: str) -> None:
        """One message more."""
        self.parts.append(orjson.dumps({"role": role, "content": text}))
        self.size += len(f"<|{role}|>\n{text}\n")

    def ask(self, prompt_tokens: int) -> None:
        """The user's next message, as long as the prompt needs it."""
        own = f"{self.name} {self.cuts} {len(self.parts)} "
        missing = prompt_tokens * BYTES_PER_TOKEN - self.size - len("<|user|>\n\n") - _OPENING_BYTES
        self.add("user", own.ljust(missing, "u"))

    def body(self, reply_tokens: int) -> bytes:
        """The request."""
        head = f'{{"model":"fake-model","stream":true,"max_tokens":{reply_tokens},"tools":[],"messages":['
        return head.encode() + b",".join(self.parts) + b"]}"


class _Answer(asyncio.Protocol):
    """All bytes of one answer, once the connection is closed."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._got: list[bytes] = []
        self.whole: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        self._got.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.whole.done():
            self.whole.set_result(b"".join(self._got))


@dataclass(slots=True)
class _Pod:
    gateway: Running
    served: Served
    scenario: Scenario
    ended: list[Ended] = field(default_factory=list)
    refused: int = 0
    asked: int = 0

    async def live(self, agent: Agent) -> None:
        """A day of one agent; runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        talk = Talk(f"{agent.seat}/{agent.index}")
        talk.begin()
        await asyncio.sleep(agent.first_pause_s())
        while True:
            talk.ask(agent.prompt_tokens)
            asked_s = loop.time()
            while (reply := await self._try(agent, talk, asked_s)) is None:
                asked_s = loop.time()
            talk.add("assistant", reply)
            pause_s, _ = agent.turn_done()
            if agent.compacted:
                talk.begin()
            await asyncio.sleep(pause_s)

    async def _try(self, agent: Agent, talk: Talk, asked_s: float) -> str | None:
        """One turn until it is answered; None after it failed at the deadline and its agent has waited."""
        loop = asyncio.get_running_loop()
        while True:
            came_s, (id, answer) = loop.time(), await self.post(agent.seat, talk, agent.reply_tokens)
            if answer.endswith(b"data: [DONE]\n\n"):
                self._note(agent, id, asked_s, came_s)
                return _text(answer)
            if b'"deadline"' in answer:
                self.ended.append(Ended(agent.seat, agent.hog, agent.reply_tokens, failed=True))
                await asyncio.sleep(RETRY_S)
                return None
            head = dict(line.split(b": ", 1) for line in answer.split(b"\r\n\r\n")[0].split(b"\r\n")[1:])
            assert b"retry-after" in head, answer[-500:]
            self.refused += 1
            await asyncio.sleep(float(head[b"retry-after"]))

    async def post(self, seat: str, talk: Talk, reply_tokens: int) -> tuple[str, bytes]:
        """The id of one request, and its whole answer with the head, without the frames of its chunks."""
        self.asked += 1
        id, body = f"turn-{self.asked}", talk.body(reply_tokens)
        head = f"POST {CHAT_PATH} HTTP/1.1\r\n{_HEADERS}x-request-id: {id}\r\nx-session-id: {talk.name}\r\n"
        head += f"authorization: Bearer {key_of(seat)}\r\ncontent-length: {len(body)}\r\n\r\n"
        loop = asyncio.get_running_loop()
        make = partial(_Answer, head.encode() + body)
        transport, answer = await loop.create_connection(make, self.gateway.host, self.gateway.port)
        try:
            return id, _unframed(await answer.whole)
        finally:
            transport.abort()

    def _note(self, agent: Agent, id: str, asked_s: float, came_s: float) -> None:
        record = next(one for one in reversed(self.served.engine.stats.log) if one.id == id)
        assert record.read_s is not None
        assert record.ended_s is not None
        assert record.prompt_tokens == agent.prompt_tokens
        assert record.tokens == agent.reply_tokens
        uncached = record.prompt_tokens - record.cached_tokens
        first_s = record.read_s - asked_s
        self.ended.append(
            Ended(
                agent.seat,
                agent.hog,
                record.tokens,
                False,
                (record.tokens - 1) / (record.ended_s - record.read_s),
                first_s,
                first_s - self.scenario.pace.prefill_s(record.prompt_tokens, uncached),
                record.arrived_s - came_s,
                uncached,
            )
        )


async def live(scenario: Scenario, agents: Sequence[Agent]) -> Lived:
    """A day, to be run in virtual time."""
    loop, pace = asyncio.get_running_loop(), scenario.pace
    knobs = Knobs(
        cache_tokens=scenario.kv.tokens,
        ms_per_token=pace.ms_per_token,
        prefill_decode_factor=pace.reading_share,
        silent_s=READY_S - TIE_S,
        tokens_per_chunk=TOKENS_PER_CHUNK,
        first_alone=True,
    )
    seats = dict.fromkeys(agent.seat for agent in agents)
    rows = "".join(f'[seats.{seat}]\ndigest = "{digest_of(key_of(seat))}"\n' for seat in seats)
    async with (
        serving(knobs, key=ENGINE_KEY, now=loop.time) as served,
        running(
            engine_url=served.url,
            seats=rows,
            sweep_s=1.0,
            floor_tok_per_s=scenario.limits.floor_tok_per_s,
            kv_tokens=scenario.kv.tokens,  # as vLLM's metrics say it
        ) as gateway,
    ):
        scheduler = served.engine.scheduler
        scheduler.prefill = shorter_first(scheduler.prefill)  # type: ignore[method-assign]
        pod = _Pod(gateway, served, scenario)
        first = Talk("before the day")
        first.begin()
        first.ask(SHARED_TOKENS + 100)
        await pod.post(agents[0].seat, first, 2)
        await asyncio.sleep(60)
        began_s = loop.time()
        served.engine.stats.log.clear()
        await _until(began_s + scenario.hours * 3600, [pod.live(agent) for agent in agents])
        stats = served.engine.stats
        day = day_of(pod.ended, scenario.limits.floor_tok_per_s, scenario.hours, pod.refused)
        return Lived(day, list(stats.log), gateway.log, stats.peak_requests)


def shorter_first(prefill: Callable[[bytes, int], Awaitable[int]]) -> Callable[[bytes, int], Awaitable[int]]:
    """The same, with prompts that come at once read in a fixed order. Two long bodies go over two connections in pieces
    as large as the kernel has room for just then, so that either may be whole first."""
    came: dict[float, list[tuple[int, bytes]]] = {}

    async def in_order(prompt: bytes, prompt_tokens: int) -> int:
        at_s = asyncio.get_running_loop().time()
        together = came.setdefault(at_s, [])
        together.append((prompt_tokens, prompt))
        try:
            await asyncio.sleep(TIE_S / 2)
            place = sorted(together).index((prompt_tokens, prompt)) + 1
            await asyncio.sleep(TIE_S / 2 * place / len(together))
        finally:
            came.pop(at_s, None)
        return await prefill(prompt, prompt_tokens)

    return in_order


async def _until(end_s: float, lives: Sequence[Any]) -> None:
    """Let them live until then; what is unfinished is dropped."""
    tasks = [asyncio.ensure_future(life) for life in lives]
    done, _ = await asyncio.wait(
        tasks, timeout=end_s - asyncio.get_running_loop().time(), return_when="FIRST_EXCEPTION"
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _unframed(answer: bytes) -> bytes:
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return answer
    parts = [head, b"\r\n\r\n"]
    at = 0
    while at < len(rest):
        line = rest.index(b"\r\n", at)
        size = int(rest[at:line], 16)
        parts.append(rest[line + 2 : line + 2 + size])
        at = line + 4 + size
    return b"".join(parts)


def _text(answer: bytes) -> str:
    text = ""
    for line in answer.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in orjson.loads(line[6:])["choices"]:
                text += choice["delta"].get("content") or ""
    return text
