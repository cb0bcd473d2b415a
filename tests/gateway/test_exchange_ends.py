"""gateway.exchange, whole: requests that wait, are refused, are ended, or lose their engine."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from gateway.state import BoxState, Phase
from tests.gateway.running import Running, running, seats_toml
from tests.gateway.wire import CHAT, Answer, ask, chat, connect, exchange, post, scripted

pytestmark = pytest.mark.anyio

EARLY = {"early_response_s": 0.05, "heartbeat_s": 0.05}
STREAM_OR_NOT = pytest.mark.parametrize("stream", [True, False])


async def busy(gateway: Running, group: asyncio.TaskGroup, streams: int = 1) -> None:
    """Occupy every ticket."""
    for _ in range(streams):
        group.create_task(exchange(gateway, post(chat("busy", stream=True), seat="e")))
    await gateway.until(lambda: gateway.engine.stats.running == streams)


def queued(answer: Answer) -> list[bytes]:
    return [event for event in answer.events() if event.startswith(b": queued")]


# Waiting and refusals


async def test_a_stream_that_waits_gets_its_200_and_comments_and_then_its_reply() -> None:
    async with running({"silent_s": 0.3}, streams=1, limits=EARLY) as gateway, asyncio.TaskGroup() as group:
        await busy(gateway, group)
        answer = await exchange(gateway, post(chat(stream=True)))
    assert (answer.status, answer.whole) == (200, True)
    assert len(queued(answer)) >= 3
    assert set(queued(answer)) == {b": queued position=1 of=1"}
    assert answer.events()[0].startswith(b": queued")
    assert answer.events()[-1] == b"data: [DONE]"


@STREAM_OR_NOT
async def test_a_full_line_is_a_real_429(stream: bool) -> None:
    async with (
        running({"silent_s": 0.3}, streams=1, limits=EARLY, admission={"queue_max": 0}) as gateway,
        asyncio.TaskGroup() as group,
    ):
        await busy(gateway, group)
        answer = await exchange(gateway, post(chat(stream=stream)))
    assert (answer.status, answer.error()["type"]) == (429, "rate_limit_error")
    assert answer.error()["code"] == answer.headers["x-moe-reject-reason"] == "queue_full"
    assert 10 <= int(answer.headers["retry-after"]) <= 59
    assert answer.headers["x-moe-queue-position"] == "1"
    assert "x-should-retry" not in answer.headers


async def test_the_deadline_is_a_429_for_a_reply_in_one_piece() -> None:
    async with (
        running({"silent_s": 0.6}, streams=1, admission={"queue_deadline_s": 20}) as gateway,
        asyncio.TaskGroup() as group,
    ):
        await busy(gateway, group)
        shorten_deadline(gateway, 0.2)
        answer = await exchange(gateway, post(chat()))
    assert (answer.status, answer.error()["code"]) == (429, "deadline")
    assert 10 <= int(answer.headers["retry-after"]) <= 59


async def test_the_deadline_is_an_error_event_for_a_stream_that_got_its_200() -> None:
    async with (
        running({"silent_s": 0.6}, streams=1, limits=EARLY, admission={"queue_deadline_s": 20}) as gateway,
        asyncio.TaskGroup() as group,
    ):
        await busy(gateway, group)
        shorten_deadline(gateway, 0.2)
        answer = await exchange(gateway, post(chat(stream=True)))
    assert answer.status == 200
    assert answer.stream_error()["code"] == "deadline"
    assert re.search(r"[Rr]etry in \d+ s", answer.stream_error()["message"])


def shorten_deadline(gateway: Running, deadline_s: float) -> None:
    """A deadline shorter than the predicted wait of a fresh gateway would refuse at arrival; so: a fast past."""
    from dataclasses import replace

    limiter = gateway.core.limiter
    limiter.policy._mean_hold_s = 0.01
    limiter.set_limits(replace(limiter.policy.limits, queue_deadline_s=deadline_s))


@STREAM_OR_NOT
async def test_a_predicted_wait_beyond_the_deadline_is_refused_at_arrival(stream: bool) -> None:
    async with (
        running({"silent_s": 0.3}, streams=1, admission={"queue_deadline_s": 5}) as gateway,
        asyncio.TaskGroup() as group,
    ):
        await busy(gateway, group)
        answer = await exchange(gateway, post(chat(stream=stream)))
    assert (answer.status, answer.error()["code"]) == (429, "predicted_wait")


async def test_an_engine_that_is_lost_answers_all_who_wait_within_a_second() -> None:
    async with running({"silent_s": 0.5}, streams=1, limits=EARLY) as gateway, asyncio.TaskGroup() as group:
        await busy(gateway, group)
        waiting = [
            asyncio.create_task(exchange(gateway, post(chat(stream=stream), seat=seat)))
            for seat, stream in (("a", True), ("b", False))
        ]
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 2)
        await asyncio.sleep(0.1)
        lost_s = asyncio.get_running_loop().time()
        state = gateway.core.engine_state.model_copy(update={"phase": Phase.BACKOFF})
        gateway.core.engine_changed(BoxState(revision=2, engine=state), None)
        streamed, other = await asyncio.gather(*waiting)
        took_s = asyncio.get_running_loop().time() - lost_s
        late = await exchange(gateway, post(chat()))
    assert took_s < 0.5
    assert streamed.stream_error()["code"] == "engine_lost"
    assert streamed.stream_error()["type"] == "service_unavailable_error"
    assert (other.status, other.error()["code"]) == (503, "engine_lost")
    assert 10 <= int(other.headers["retry-after"]) <= 59
    assert (late.status, late.error()["code"]) == (503, "engine_not_ready")


async def test_draining_refuses_arrivals_and_who_waits_and_lets_the_running_go_on() -> None:
    async with running({"silent_s": 0.3}, streams=1) as gateway, asyncio.TaskGroup() as group:
        first = group.create_task(exchange(gateway, post(chat(stream=True))))
        await gateway.until(lambda: gateway.core.limiter.running == 1)
        second = group.create_task(exchange(gateway, post(chat())))
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
        gateway.core.drain()
        third = await exchange(gateway, post(chat()))
    assert first.result().whole
    assert [(a.status, a.error()["code"]) for a in (second.result(), third)] == [(503, "draining")] * 2
    assert third.headers["retry-after"] == "10"
    assert gateway.core.all_done.is_set()


# Ended by the gateway


async def test_max_stream_s_ends_a_stream_with_an_honest_error() -> None:
    async with running({"reply_tokens": 100_000}, admission={"max_stream_s": 0.2}) as gateway:
        answer = await exchange(gateway, post(chat(stream=True)))
        await gateway.idle()
        await gateway.until(lambda: gateway.engine.stats.aborted == 1)
    assert answer.status == 200
    assert answer.stream_error()["code"] == "max_stream"
    assert len(answer.events()) > 2
    assert gateway.done()[0]["word"] == "ended"


async def test_max_stream_s_ends_a_reply_in_one_piece_with_a_504() -> None:
    async with running({"reply_tokens": 100_000}, admission={"max_stream_s": 0.2}) as gateway:
        answer = await exchange(gateway, post(chat()))
    assert (answer.status, answer.error()["code"]) == (504, "max_stream")
    assert answer.headers["x-should-retry"] == "false"


async def test_a_seat_that_is_disabled_drops_what_waits_and_ends_what_runs_after_the_grace() -> None:
    knobs = {"reply_tokens": 100_000}
    async with running(knobs, streams=1, admission={"seat_grace_s": 0.2}) as gateway, asyncio.TaskGroup() as group:
        runs = group.create_task(exchange(gateway, post(chat(stream=True), seat="b")))
        await gateway.until(lambda: gateway.core.limiter.running == 1)
        waits = group.create_task(exchange(gateway, post(chat(), seat="b")))
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
        gateway.write_seats(seats_toml(disabled="b"))
        dropped = await waits
        assert not runs.done()
        answer = await runs
        await gateway.idle()
    assert (dropped.status, dropped.error()["code"]) == (403, "seat_gone")
    assert dropped.headers["x-should-retry"] == "false"
    assert answer.stream_error()["code"] == "seat_gone"


# The engine fails


@pytest.mark.parametrize("closed", [False, True])
async def test_an_error_in_the_stream_is_passed_on_once_and_never_becomes_a_clean_end(closed: bool) -> None:
    async with running({"error_in_stream": 5, "error_then_done": closed}) as gateway:
        answer = await exchange(gateway, post(chat(stream=True)))
        await gateway.idle()
    assert "EngineCore encountered an issue" in answer.stream_error()["message"]
    assert answer.body.count(b'"error"') == 1
    assert b"[DONE]" not in answer.body
    assert not answer.whole
    assert gateway.done()[0]["word"] == "engine_error"


@pytest.mark.parametrize(
    "knobs",
    [
        {"truncate_after": 5},
        {"truncate_after": 0},
        {"cut_after": 5},
        {"cut_after": 5, "cut_rst": True},
    ],
)
async def test_a_stream_that_is_not_whole_ends_with_an_error_and_no_clean_end(knobs: dict[str, Any]) -> None:
    async with running(knobs) as gateway:
        answer = await exchange(gateway, post(chat(stream=True)))
        await gateway.idle()
    if answer.status == 502:  # nothing had come yet
        assert knobs == {"truncate_after": 0}
        assert answer.error()["code"] == "engine_lost"
        return
    assert answer.stream_error()["code"] == "engine_lost"
    assert answer.body.count(b"finish_reason") == 5 + 1
    assert gateway.done()[0]["word"] == "engine_lost"


@pytest.mark.parametrize(
    ("knobs", "status"),
    [({"cut_after": 5}, 502), ({"cut_after": 5, "cut_rst": True}, 502), ({"die_after_tokens": 5}, 503)],
    ids=["half", "reset", "before its first byte"],
)
async def test_an_engine_that_dies_under_a_reply_in_one_piece(knobs: dict[str, Any], status: int) -> None:
    async with running(knobs) as gateway:
        answer = await exchange(gateway, post(chat()))
        await gateway.idle()
    assert (answer.status, answer.error()["code"]) == (status, "engine_lost")
    assert answer.headers["retry-after"] == "10"


async def test_an_engine_that_is_not_there_is_a_503_and_waiters_do_not_try_it_one_by_one() -> None:
    async with running(engine_url="http://127.0.0.1:9") as gateway:
        answers = [await exchange(gateway, post(chat(stream=stream))) for stream in (True, False)]
        await gateway.idle()
    assert [(a.status, a.error()["code"]) for a in answers] == [(503, "engine_lost")] * 2
    assert all(10 <= int(a.headers["retry-after"]) <= 59 for a in answers)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@STREAM_OR_NOT
@pytest.mark.parametrize(
    ("engine", "client", "code"),
    [
        (400, 400, None),
        (500, 500, None),
        (503, 503, "engine_busy"),
        (429, 503, "engine_busy"),
        (401, 502, "engine_key"),
    ],
)
async def test_what_the_engine_refuses(path: str, stream: bool, engine: int, client: int, code: str | None) -> None:
    async with running({"reject_status": engine}) as gateway:
        answer = await exchange(gateway, post(ask(path, stream=stream), path=path))
        await gateway.idle()
    assert (answer.status, answer.whole) == (client, True)
    assert answer.headers["x-request-id"]
    if code is None:
        assert answer.json()["error"]["message"] == "The fake engine was told to refuse this."
    else:
        assert answer.error()["code"] == code
        assert gateway.core.limiter.running == 0


async def test_an_engine_that_refuses_after_the_200_says_so_in_the_stream() -> None:
    async with running({"silent_s": 0.2}, streams=1, limits=EARLY) as gateway, asyncio.TaskGroup() as group:
        await busy(gateway, group)
        gateway.set_knobs(reject_status=400)
        answer = await exchange(gateway, post(chat(stream=True)))
    assert queued(answer)
    assert answer.stream_error()["message"] == "The fake engine was told to refuse this."
    assert answer.stream_error()["type"] == "invalid_request_error"


@STREAM_OR_NOT
@pytest.mark.parametrize("knobs", [{"hang": True}, {"silent_s": 60.0}, {"stall_after": 3}])
async def test_an_engine_that_falls_silent_is_given_up(stream: bool, knobs: dict[str, Any]) -> None:
    limits = EARLY | {"engine_silence_s": 0.3}
    async with running(knobs, limits=limits) as gateway:
        answer = await exchange(gateway, post(chat(stream=stream)))
        await gateway.idle()
        await gateway.until(lambda: gateway.engine.stats.aborted == 1)
    if stream:
        assert answer.stream_error()["code"] == "engine_lost"
    else:
        assert (answer.status, answer.error()["code"]) == (502, "engine_lost")


async def test_a_client_that_stops_reading_is_not_an_engine_that_is_silent() -> None:
    event = b"data: " + b"x" * 65_000 + b"\n\n"

    async def flood(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        while True:
            writer.write(event)
            await writer.drain()

    async with (
        scripted(flood) as url,
        running(engine_url=url, limits={"engine_silence_s": 0.3}) as gateway,
        connect(gateway, post(chat(stream=True)), small=True) as slow,
    ):
        await slow.head()
        slow.writer.transport.pause_reading()
        await asyncio.sleep(0.8)
        assert len(gateway.core.live) == 1
        assert gateway.core.limiter.running == 1


# Replies in pieces


@STREAM_OR_NOT
async def test_an_engine_that_writes_its_head_in_pieces_starts_nothing_early(stream: bool) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'
    body = event if stream else b'{"choices":[]}'
    kind = b"text/event-stream" if stream else b"application/json"
    pieces = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"content-type: " + kind + b"\r\n"]
    pieces += [b"content-length: %d\r\n\r\n" % len(body), body[:9], body[9:]]

    async def dribble(writer: asyncio.StreamWriter, _: bytes) -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.02)

    async with scripted(dribble) as url, running(engine_url=url) as gateway:
        answer = await exchange(gateway, post(chat(stream=stream)))
    assert (answer.status, answer.whole) == (200, True)
    assert answer.body == body


async def test_an_engine_whose_head_is_cut_is_a_503_also_for_a_stream() -> None:
    async def cut(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        await asyncio.sleep(0.05)

    async with scripted(cut) as url, running(engine_url=url) as gateway:
        answer = await exchange(gateway, post(chat(stream=True)))
    assert (answer.status, answer.error()["code"]) == (503, "engine_lost")


async def test_an_engine_that_does_not_speak_http_is_a_502() -> None:
    async def babble(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        await asyncio.sleep(0.05)

    async with scripted(babble) as url, running(engine_url=url) as gateway:
        answer = await exchange(gateway, post(chat(stream=True)))
    assert (answer.status, answer.error()["code"]) == (502, "engine_lost")


async def test_a_reply_without_a_length_ends_with_its_connection() -> None:
    async def unframed(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + b'{"choices":[]}')
        await writer.drain()

    async with scripted(unframed) as url, running(engine_url=url) as gateway:
        answer = await exchange(gateway, post(chat()))
    assert (answer.status, answer.body) == (200, b'{"choices":[]}')


@pytest.mark.parametrize("ending", [b"", b"data: [DONE]\n\n"])
async def test_a_client_that_stopped_reading_before_the_last_word_is_cut_too(ending: bytes) -> None:
    event = b"data: " + b"x" * 900_000 + b"\n\n"

    async def one_big_event(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + event + ending)
        await writer.drain()

    async with (
        scripted(one_big_event) as url,
        running(engine_url=url, limits={"client_stall_s": 0.3}, kernel_stall_s=0) as gateway,
        connect(gateway, post(chat(stream=True)), small=True) as slow,
    ):
        await slow.head()
        slow.writer.transport.pause_reading()
        await gateway.until(lambda: gateway.core.limiter.running == 0, 0.25)
        await gateway.idle(3.0)
    assert gateway.done()[0]["word"] == ("ok" if ending else "engine_lost")
