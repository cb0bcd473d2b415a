"""Usage in every chunk, as a vLLM sends it that is forced to: counted, and not shown to who did not ask."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import Prepared
from gateway.dialects.openai import CHAT
from gateway.meter import Usage
from gateway.taps import ChatTap

HEAD = '"id":"chatcmpl-gw-1","object":"chat.completion.chunk","created":1796032472,"model":"m"'
LAST = (
    '"usage":{"prompt_tokens":332,"total_tokens":335,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":320,'
    '"created_cache_tokens":0}},"system_fingerprint":"vllm-0.26.0-df2951c2"'
)


def chunk(text: str, so_far: int, finish: str = "null", *, running: bool = True) -> bytes:
    """One chunk as vLLM 0.26.0 writes it."""
    usage = f',"usage":{{"prompt_tokens":332,"total_tokens":{332 + so_far},"completion_tokens":{so_far}}}'
    delta = f'{{"content":{json.dumps(text)}}}'
    choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish},"token_ids":null}}'
    return f'data: {{{HEAD},"choices":[{choice}]{usage if running else ""}}}\n\n'.encode()


def reply(texts: list[str], *, running: bool = True) -> bytes:
    """A whole reply, one chunk a text."""
    chunks = [chunk(text, at + 1, running=running) for at, text in enumerate(texts)]
    return b"".join([*chunks, chunk("", len(texts), '"stop"', running=running)])


END = f'data: {{{HEAD},"choices":[],{LAST}}}\n\n'.encode()
DONE = b"data: [DONE]\n\n"


def through(tap: ChatTap, data: bytes, piece: int = 1000) -> bytes:
    out = b"".join(tap.feed(data[at : at + piece], float(at)) for at in range(0, len(data), piece))
    return out + tap.finish(float(len(data)))


@pytest.mark.parametrize("strip", [True, False])
def test_who_did_not_ask_gets_the_chunks_without_it(strip: bool) -> None:
    tap = ChatTap(strip)
    out = through(tap, reply(["a", "b", "c"]) + END + DONE)
    assert out == reply(["a", "b", "c"], running=False) + (b"" if strip else END) + DONE
    assert tap.whole
    assert tap.meter.usage == Usage(332, 3, 320)


@pytest.mark.parametrize("more", ['"completion_tokens_details":{"reasoning_tokens":0}', '"prompt_tokens_details":null'])
def test_details_that_a_later_vllm_adds_go_as_well(more: str) -> None:
    told = chunk("a", 1).replace(b'"completion_tokens":1}', f'"completion_tokens":1,{more}}}'.encode())
    assert more.encode() in told
    assert through(ChatTap(True), told) == chunk("a", 1, running=False)


def test_the_first_chunk_has_the_prompt_behind_it() -> None:
    # given: as vLLM 0.32.0 wrote it
    usage = ',"usage":{"prompt_tokens":10,"total_tokens":10,"completion_tokens":0,"completion_tokens_details":null}'
    choice = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
    begin, end = f'data: {{{HEAD},"choices":[{choice}]', ',"prompt_token_ids":null,"prompt_text":null}\n\n'
    # then
    assert through(ChatTap(True), (begin + usage + end).encode()) == (begin + end).encode()


def test_who_asked_for_it_gets_it() -> None:
    data = reply(["a", "b"]) + END + DONE
    assert through(ChatTap(False, running_usage=True), data) == data


def test_a_reply_that_is_broken_off_is_counted_by_the_engine() -> None:
    # given: a speculating engine, whose chunks hold several tokens
    tap = ChatTap(True)
    tap.feed(chunk("first", 1) + chunk("six tokens more", 7) + chunk("and six", 13), 1.0)
    # then
    assert (tap.meter.events, tap.meter.tokens, tap.meter.estimated) == (3, 13, False)
    assert tap.meter.usage == Usage(332, 13, None)


@given(st.lists(st.text(max_size=30), min_size=1, max_size=8), st.integers(1, 400))
def test_no_text_and_no_cut_changes_what_is_sent(texts: list[str], piece: int) -> None:
    forged = ',"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}}\n'
    texts = [*texts, forged, "}]" + forged, '"choices":[{}],"usage":{}']
    assert through(ChatTap(True), reply(texts) + END + DONE, piece) == reply(texts, running=False) + DONE


def test_the_body_says_whether_the_client_wants_it() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    for options, wanted in (({"include_usage": True}, False), ({"continuous_usage_stats": True}, True)):
        asked = body | {"stream_options": options}
        made = CHAT.prepare(json.dumps(asked).encode(), asked)
        assert isinstance(made, Prepared)
        assert made.running_usage is wanted
