"""gateway.exchange, whole: requests that are refused, are ended, or lose their engine, on every route."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.overlay import Mode
from gateway.state import BoxState, Phase
from tests.gateway import forms
from tests.gateway.checks import EARLY, busy, ended, line_of, refused
from tests.gateway.forms import CHAT, COMPLETIONS, RESPONSES, STREAM_OR_NOT, together
from tests.gateway.running import Running, running, seats_toml
from tests.gateway.wire import call, scripted

pytestmark = pytest.mark.anyio

# Refusals


@together
@STREAM_OR_NOT
async def test_a_full_line_is_a_real_429(path: str, stream: bool) -> None:
    limits = EARLY | {"early_response_s": 0.01}
    async with (
        running({"silent_s": 0.05}, streams=1, limits=limits, admission={"queue_max": 0}) as gateway,
        asyncio.TaskGroup() as group,
    ):
        await busy(gateway, group)
        answer = await call(gateway, path, stream=stream)
        said = await refused(path, answer, gateway, 429, "queue_full")
    assert answer.headers["x-moe-reject-reason"] == "queue_full"
    assert answer.headers["x-moe-queue-position"] == "1"
    assert "x-should-retry" not in answer.headers
    assert f"Retry in {answer.headers['retry-after']} s" in said.message


@together
@STREAM_OR_NOT
async def test_the_deadline_is_a_429_or_behind_the_200_an_error_event(path: str, stream: bool) -> None:
    async with (
        running({"silent_s": 0.25}, streams=1, limits=EARLY, admission={"queue_deadline_s": 20}) as gateway,
        asyncio.TaskGroup() as group,
    ):
        await busy(gateway, group)
        shorten_deadline(gateway, 0.1)
        answer = await call(gateway, path, stream=stream)
        if not stream:
            await refused(path, answer, gateway, 429, "deadline")
            return
        said = await ended(path, answer, gateway, "deadline")
    assert forms.beats(path, answer)
    assert "etry in" in said.message


@together
@STREAM_OR_NOT
async def test_whoever_waits_out_a_pause_is_told_how_many_others_wait(path: str, stream: bool) -> None:
    async with running(limits=EARLY, admission={"queue_deadline_s": 0.3}) as gateway:
        # given a paused box where nobody else waits
        await gateway.core.set_overlay(lambda now: now.in_mode(Mode.PAUSED, "ana", 1.0))
        # when the deadline comes
        answer = await call(gateway, path, stream=stream)
        # then place and number fit together
        if stream:
            said = await ended(path, answer, gateway, "paused")
        else:
            said = await refused(path, answer, gateway, 503, "paused")
            place = [answer.headers[f"x-moe-queue-{name}"] for name in ("position", "depth")]
            assert place == ["1", "0"], "where it stood, and how many wait without it"
    assert "paused this box: its line does not move (nobody else waits)." in said.message


@together
async def test_a_full_line_of_a_paused_box_tells_how_many_others_wait(path: str) -> None:
    async with running(admission={"queue_max": 1}) as gateway, asyncio.TaskGroup() as group:
        await gateway.core.set_overlay(lambda now: now.in_mode(Mode.PAUSED, "ana", 1.0))
        group.create_task(call(gateway, path))
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
        said = await refused(path, await call(gateway, path, seat="b"), gateway, 503, "paused")
        assert "its line does not move (1 other waits)." in said.message
        await gateway.core.set_overlay(lambda now: now.in_mode(Mode.SERVING, "ana", 2.0))


def shorten_deadline(gateway: Running, deadline_s: float) -> None:
    """A deadline shorter than the predicted wait of a fresh gateway would refuse at arrival; so: a fast past."""
    core = gateway.core
    core.limiter.policy._mean_hold_s = 0.01
    admission = core.settings.admission.model_copy(update={"queue_deadline_s": deadline_s})
    core.settings = core.settings.model_copy(update={"admission": admission})
    core.sweep(core.limiter.loop.time())


@together
@STREAM_OR_NOT
async def test_a_predicted_wait_beyond_the_deadline_is_refused_at_arrival(path: str, stream: bool) -> None:
    async with (
        running({"silent_s": 0.05}, streams=1, admission={"queue_deadline_s": 5}) as gateway,
        asyncio.TaskGroup() as group,
    ):
        await busy(gateway, group)
        answer = await call(gateway, path, stream=stream)
        await refused(path, answer, gateway, 429, "predicted_wait")


@together
async def test_an_engine_that_is_lost_answers_all_who_wait_within_a_second(path: str) -> None:
    async with running({"silent_s": 0.25}, streams=1, limits=EARLY) as gateway, asyncio.TaskGroup() as group:
        await busy(gateway, group)
        waiting = [
            asyncio.create_task(call(gateway, path, seat=seat, stream=stream))
            for seat, stream in (("a", True), ("b", False))
        ]
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 2)
        await gateway.until(lambda: any(live.client.started for live in gateway.core.live if live.step == "queued"))
        lost_s = asyncio.get_running_loop().time()
        state = gateway.core.engine_state.model_copy(update={"phase": Phase.BACKOFF})
        gateway.core.engine_changed(BoxState(revision=2, engine=state), None)
        streamed, other = await asyncio.gather(*waiting)
        assert asyncio.get_running_loop().time() - lost_s < 0.2
        late = await call(gateway, path)
        await ended(path, streamed, gateway, "engine_lost")
        await refused(path, other, gateway, 503, "engine_lost")
        await refused(path, late, gateway, 503, "engine_not_ready")


@together
async def test_draining_refuses_arrivals_and_who_waits_and_lets_the_running_go_on(path: str) -> None:
    async with running({"silent_s": 0.15}, streams=1) as gateway, asyncio.TaskGroup() as group:
        first = group.create_task(call(gateway, path, stream=True))
        await gateway.until(lambda: gateway.engine.stats.running == 1)
        second = group.create_task(call(gateway, path, seat="b", stream=True))
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
        gateway.core.drain()
        third = await call(gateway, path, seat="c", stream=True)
        await second
        for answer in (second.result(), third):
            await refused(path, answer, gateway, 503, "draining")
        assert forms.whole(path, await first)
        await gateway.idle()
    assert gateway.core.all_done.is_set()


# Ended by the gateway


@together
@STREAM_OR_NOT
async def test_max_stream_s_ends_a_stream_with_an_honest_error(path: str, stream: bool) -> None:
    async with running({"reply_tokens": 100_000}, admission={"max_stream_s": 0.1}) as gateway:
        answer = await call(gateway, path, stream=stream)
        await gateway.idle()
        await gateway.until(lambda: gateway.engine.stats.aborted == 1)
        if stream:
            await ended(path, answer, gateway, "max_stream", heals=False)
            assert len(answer.events()) > 3
        else:
            await refused(path, answer, gateway, 504, "max_stream")
            assert answer.headers["x-should-retry"] == "false"
    assert gateway.done()[0]["word"] == "ended"


@together
async def test_a_seat_that_is_disabled_drops_what_waits_and_ends_what_runs_after_the_grace(path: str) -> None:
    knobs = {"reply_tokens": 100_000}
    async with running(knobs, streams=1, admission={"seat_grace_s": 0.1}) as gateway, asyncio.TaskGroup() as group:
        runs = group.create_task(call(gateway, path, seat="b", stream=True))
        await gateway.until(lambda: gateway.core.limiter.running == 1)
        waits = group.create_task(call(gateway, path, seat="b"))
        await gateway.until(lambda: len(gateway.core.limiter.view().waiting) == 1)
        gateway.write_seats(seats_toml(disabled="b"))
        dropped = await waits
        assert not runs.done()
        answer = await runs
        await gateway.idle()
        await refused(path, dropped, gateway, 403, "seat_gone")
        await ended(path, answer, gateway, "seat_gone", heals=False)
    assert dropped.headers["x-should-retry"] == "false"


# The engine fails


@together
@pytest.mark.parametrize("knobs", [{}, {"error_then_done": True}, {"responses_error_event": True}, {"style": "vllm"}])
@pytest.mark.parametrize("tokens", [0, 5])
async def test_an_error_in_the_stream_is_told_once_and_never_becomes_a_clean_end(
    path: str, knobs: dict[str, Any], tokens: int
) -> None:
    async with running({"error_in_stream": tokens} | knobs) as gateway:
        answer = await call(gateway, path, stream=True)
        await gateway.idle()
        line = await line_of(gateway, answer)
        if answer.status != 200:  # nothing had come yet: the client hears of it before the stream
            assert path in (CHAT, COMPLETIONS)
            assert tokens == 0
            said = await refused(path, answer, gateway, 502, line["code"])
        else:
            said = await ended(path, answer, gateway, line["code"])
            assert len(forms.text_of(path, answer).split()) == tokens
    assert "it says that it is gone" in said.message
    assert line["word"] == "engine_error"
    assert answer.body.count(b"it is gone") == 1
    assert b"EngineCore" not in answer.body


@together
async def test_an_error_behind_the_headers_of_a_reply_in_one_piece(path: str) -> None:
    async with running({"error_in_stream": 5}) as gateway:
        answer = await call(gateway, path)
        await gateway.idle()
        said = await refused(path, answer, gateway, 503, gateway.done()[0]["code"])
    assert "it says that it is gone" in said.message
    assert gateway.done()[0]["word"] == "engine_error"


LAST = 64
"""Tokens of a whole reply: the engine goes behind the last one, before the ending."""
CUTS = [
    pytest.param({"hang": True, "die_in_request_s": 0.03}, id="before anything"),
    pytest.param({"silent_s": 9.0, "die_in_request_s": 0.03}, id="behind the early events"),
    pytest.param({"silent_s": 9.0, "die_in_request_s": 0.03, "headers_delay": True}, id="before the headers"),
    pytest.param({"cut_after": 0}, id="before the first token"),
    pytest.param({"cut_after": 5}, id="in the middle"),
    pytest.param({"cut_after": 5, "cut_rst": True}, id="in the middle, reset"),
    pytest.param({"cut_after": LAST}, id="behind the last token"),
    pytest.param({"truncate_after": 0}, id="an empty stream"),
    pytest.param({"truncate_after": 5}, id="a clean end in the middle"),
    pytest.param({"truncate_after": LAST}, id="a clean end behind the last token"),
    pytest.param({"die_after_tokens": 5}, id="death in the middle"),
]


@together
@pytest.mark.parametrize("knobs", CUTS)
async def test_a_stream_that_is_not_whole_ends_with_an_error_and_no_clean_end(path: str, knobs: dict[str, Any]) -> None:
    async with running(knobs | {"reply_tokens": LAST}) as gateway:
        answer = await call(gateway, path, stream=True)
        await gateway.idle()
        assert gateway.done()[0]["word"] == "engine_lost"
        tokens = next((value for name, value in knobs.items() if name.endswith(("after", "tokens"))), 0)
        if answer.status != 200:  # nothing of the answer had come yet
            assert tokens == 0
            assert answer.status in (502, 503)
            await refused(path, answer, gateway, answer.status, "engine_lost")
        else:
            await ended(path, answer, gateway, "engine_lost")
            assert len(forms.text_of(path, answer).split()) == tokens


@together
@pytest.mark.parametrize(
    ("knobs", "status"),
    [({"cut_after": 5}, 502), ({"cut_after": 5, "cut_rst": True}, 502), ({"die_after_tokens": 5}, 503)],
    ids=["half", "reset", "before its first byte"],
)
async def test_an_engine_that_dies_under_a_reply_in_one_piece(path: str, knobs: dict[str, Any], status: int) -> None:
    async with running(knobs) as gateway:
        answer = await call(gateway, path)
        await gateway.idle()
        await refused(path, answer, gateway, status, "engine_lost")
    assert answer.headers["retry-after"] == "10"


@together
async def test_an_engine_that_is_not_there_is_a_503_and_waiters_do_not_try_it_one_by_one(path: str) -> None:
    async with running(engine_url="http://127.0.0.1:9") as gateway:
        answers = [await call(gateway, path, stream=stream) for stream in (True, False)]
        await gateway.idle()
        for answer in answers:
            await refused(path, answer, gateway, 503, "engine_lost")


@together
@pytest.mark.parametrize("style", ["llama", "vllm"])
async def test_what_the_engine_refuses(path: str, style: str) -> None:
    async with running({"style": style}) as gateway:
        for engine, client, code in (
            (400, 400, "engine_refused"),
            (500, 500, "engine_refused"),
            (503, 503, "engine_busy"),
            (429, 503, "engine_busy"),
            (401, 502, "engine_key"),
            (404, 501, "dialect_not_served"),
        ):
            gateway.set_knobs(reject_status=engine)
            for stream in (True, False):
                answer = await call(gateway, path, stream=stream)
                await gateway.idle()
                said = await refused(path, answer, gateway, client, code)
                assert (said.message == "The fake engine was told to refuse this.") == (code == "engine_refused")
                assert ("x-should-retry" in answer.headers) == (client in (400, 501))


@together
async def test_an_engine_that_refuses_after_the_200_says_so_in_the_stream(path: str) -> None:
    async with running({"silent_s": 0.1}, streams=1, limits=EARLY) as gateway, asyncio.TaskGroup() as group:
        await busy(gateway, group)
        gateway.set_knobs(reject_status=400)
        answer = await call(gateway, path, stream=True)
        said = await ended(path, answer, gateway, "engine_refused", heals=False)
    assert forms.beats(path, answer)
    assert said.message == "The fake engine was told to refuse this."
    assert said.type in ("invalid_request_error", "response.failed")
    assert path != RESPONSES or said.code == "invalid_prompt"


@together
@STREAM_OR_NOT
@pytest.mark.parametrize(
    "knobs", [{"hang": True}, {"silent_s": 60.0}, {"silent_s": 60.0, "headers_delay": True}, {"stall_after": 3}]
)
async def test_an_engine_that_falls_silent_is_given_up(path: str, stream: bool, knobs: dict[str, Any]) -> None:
    limits = EARLY | ({"engine_silence_s": 0.15} if stream else {"unstreamed_s": 0.15})
    async with running(knobs, limits=limits, sweep_s=0.03) as gateway:
        answer = await call(gateway, path, stream=stream)
        await gateway.idle()
        await gateway.until(lambda: gateway.engine.stats.aborted == 1)
        if stream:
            await ended(path, answer, gateway, "engine_lost")
        else:
            await refused(path, answer, gateway, 502, "engine_lost")


# Replies in pieces


@together
@STREAM_OR_NOT
async def test_an_engine_that_writes_its_head_in_pieces_starts_nothing_early(path: str, stream: bool) -> None:
    body = forms.OPENING[path] + forms.TOKEN[path] + forms.DONE[path] if stream else forms.WHOLE[path]
    kind = b"text/event-stream" if stream else b"application/json"
    pieces = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"content-type: " + kind + b"\r\n"]
    pieces += [b"content-length: %d\r\n\r\n" % len(body), body[:9], body[9:]]

    async def dribble(writer: asyncio.StreamWriter, _: bytes) -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.005)

    async with scripted(dribble) as url, running(engine_url=url) as gateway:
        answer = await call(gateway, path, stream=stream)
    assert (answer.status, answer.whole) == (200, True)
    assert answer.body == body


@together
async def test_an_engine_whose_head_is_cut_is_a_503_also_for_a_stream(path: str) -> None:
    async def cut(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
        await asyncio.sleep(0.05)

    async with scripted(cut) as url, running(engine_url=url) as gateway:
        answer = await call(gateway, path, stream=True)
        await gateway.idle()
        await refused(path, answer, gateway, 503, "engine_lost")


@together
async def test_an_engine_that_does_not_speak_http_is_a_502(path: str) -> None:
    async def babble(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        await asyncio.sleep(0.05)

    async with scripted(babble) as url, running(engine_url=url) as gateway:
        answer = await call(gateway, path, stream=True)
        await gateway.idle()
        await refused(path, answer, gateway, 502, "engine_lost")


@together
async def test_a_reply_without_a_length_ends_with_its_connection(path: str) -> None:
    async def unframed(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n" + forms.WHOLE[path])
        await writer.drain()

    async with scripted(unframed) as url, running(engine_url=url) as gateway:
        answer = await call(gateway, path)
    assert (answer.status, answer.body) == (200, forms.WHOLE[path])
