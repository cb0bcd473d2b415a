"""Names of blocks: what two prompts share they share there, and what it costs to find out."""

from __future__ import annotations

import base64
import json
import random
import time
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.canonical import segments
from gateway.prefix import fingerprint as module
from gateway.prefix.fingerprint import BLOB_BYTES, BLOCK_BYTES, fingerprint, fingerprint_of
from tests.gateway.prefix.traffic import prose

MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "content": st.sampled_from(["a", "b", "c" * 1500, "d" * 4000])}
    ),
    max_size=6,
)
PICTURE = base64.b64encode(random.Random(1).randbytes(300_000)).decode()


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@given(MESSAGES, MESSAGES)
def test_what_follows_changes_no_name_and_the_end_of_a_prompt_is_the_end_of_a_block(
    before: list[Any], after: list[Any]
) -> None:
    one, both = fingerprint({"messages": before}), fingerprint({"messages": before + after})
    assert both.names[: len(one.names)] == one.names
    assert both.ends[: len(one.ends)] == one.ends


@given(MESSAGES, MESSAGES)
def test_two_prompts_share_names_as_far_as_they_share_their_text_and_no_further(one: list[Any], two: list[Any]) -> None:
    a, b = fingerprint({"messages": one}), fingerprint({"messages": two})
    alike = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a.names, b.names, strict=False))))
    assert not set(a.names[alike:]) & set(b.names[alike:])
    shared = list(takewhile(lambda pair: json.dumps(pair[0]) == json.dumps(pair[1]), zip(one, two, strict=False)))
    end = sum(map(len, segments({"messages": [first for first, _ in shared]})))
    assert (a.ends[alike - 1] if alike else 0) >= end


@given(MESSAGES)
def test_all_bytes_are_in_a_block_of_at_most_a_kib(messages: list[Any]) -> None:
    print_ = fingerprint({"messages": messages})
    assert print_.bytes == sum(map(len, segments({"messages": messages})))
    assert all(0 < size <= BLOCK_BYTES for size in print_.sizes)
    assert len(print_.names) == len(print_.ends) == len(print_.written)


@given(MESSAGES)
def test_it_can_be_made_of_segments_that_somebody_has_already(messages: list[Any]) -> None:
    assert fingerprint_of(segments({"messages": messages})) == fingerprint({"messages": messages})


def test_an_empty_body_has_no_blocks() -> None:
    print_ = fingerprint({})
    assert (print_.names, print_.bytes, print_.sizes) == ((), 0, ())


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PICTURE}"},
    ],
)
def test_a_picture_weighs_what_it_shows_and_not_what_it_is_long(part: dict[str, Any]) -> None:
    print_ = fingerprint(user([{"type": "text", "text": "look"}, part, {"type": "text", "text": "and say"}]))
    other = fingerprint(user([{"type": "text", "text": "look"}, json.loads(json.dumps(part).replace("A", "B"))]))
    assert BLOB_BYTES < print_.bytes < BLOB_BYTES + 1000
    assert print_.blobs == 1
    assert print_.names[0] == other.names[0]
    assert print_.names[1] != other.names[1]


def test_what_looks_like_a_picture_within_a_text_is_text() -> None:
    text = json.dumps({"url": f"data:image/png;base64,{PICTURE}", "data": PICTURE})
    print_ = fingerprint(user(text))
    assert print_.bytes > len(text)
    assert print_.blobs == 0


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, (False, True)),
        ({"messages": [{"content": "x" * 900, "role": "assistant"}]}, (True,)),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, (True,)),
        ({"input": [{"arguments": "x" * 900, "call_id": "c", "name": "f", "type": "custom_tool_call"}]}, (True,)),
        ({"input": [{"type": "reasoning", "summary": []}]}, (True,)),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]}, (False,)),
        ({"messages": [{"role": "user", "content": '"role":"assistant" "type":"reasoning"'}]}, (False,)),
    ],
)
def test_a_block_says_whether_a_model_wrote_it(body: dict[str, Any], written: tuple[bool, ...]) -> None:
    assert fingerprint(body).written == written


def test_a_prompt_of_countless_parts_has_a_bounded_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKS_MAX", 5)
    turns = [{"role": "user", "content": str(number)} for number in range(9)]
    print_ = fingerprint({"messages": turns})
    assert len(print_.names) == 6
    assert print_.bytes == sum(map(len, segments({"messages": turns})))
    assert fingerprint({"messages": turns[:8]}).names[:5] == print_.names[:5]
    assert fingerprint({"messages": turns[:8]}).names[5] != print_.names[5]


@pytest.mark.parametrize(("turns", "size"), [(4, 90_000), (40, 9000), (360, 1000)])
def test_a_body_of_400_kb_costs_under_5_ms_of_cpu(turns: int, size: int) -> None:
    draw = random.Random(1)
    tools = [{"name": f"t{i}", "input_schema": {}, "description": prose(draw, 800)} for i in range(20)]
    blocks = [[{"type": "text", "text": prose(draw, size)}] for _ in range(turns)]
    body = {"tools": tools, "system": prose(draw, 12_000), "messages": [{"role": "user", "content": b} for b in blocks]}
    assert fingerprint(body).bytes >= 390_000

    def cpu_s() -> float:
        start_s = time.thread_time()
        fingerprint(body)
        return time.thread_time() - start_s

    best_s = min(cpu_s() for _ in range(20))  # others use the same cores and caches
    print(f"{turns} turns, {len(fingerprint(body).names)} blocks: {best_s * 1e3:.2f} ms")
    assert best_s < 0.005


@pytest.mark.parametrize("before", [0, 1, 127, 128, 895, 896, 897, 1023, 1024, 5000])
def test_a_blob_is_found_wherever_it_begins_and_is_one_block(before: int) -> None:
    segment = b"-" * before + b'"data":"' + b"A" * 1024 + b'"' + b"-" * 2000
    assert fingerprint_of([segment]).blobs == 1
