"""gateway/prewarm/brief.py: the same prompt, an answer of one token."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.prewarm.brief import brief

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


def made(path: str, body: dict[str, Any], sequence: int | None = None) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(brief(path, json.dumps(body).encode(), sequence))
    return parsed


@pytest.mark.parametrize("path", PATHS)
def test_it_is_in_one_piece_and_as_short_as_the_dialect_takes(path: str) -> None:
    body = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 900, "max_completion_tokens": 9}
    body |= {"max_output_tokens": 900, "min_tokens": 30, "n_predict": 7, "model": "m"}
    bound = {"max_output_tokens": 16} if path == "/v1/responses" else {"max_tokens": 1}
    assert made(path, body) == {"stream": False, "model": "m", **bound}


def test_what_the_prompt_is_rendered_from_keeps_its_bytes() -> None:
    rest = rb'"messages" : [ {"role":"user","content":"\u00e9\/ \"max_tokens\": 3"} ], "temperature":1.0'
    got = brief(PATHS[0], b'{"max_tokens": 5, ' + rest + b', "stream":true}')
    assert rest in got
    assert json.loads(got)["max_tokens"] == 1


def test_a_sequence_is_asked_for_by_number() -> None:
    assert made(PATHS[0], {}, 3)["id_slot"] == 3
    assert "id_slot" not in made(PATHS[0], {})


def test_a_bound_longer_than_a_splice_reads_is_an_error() -> None:
    with pytest.raises(ValueError, match="longer than"):
        made(PATHS[0], {"stream_options": {"x": "y" * 100_000}})
