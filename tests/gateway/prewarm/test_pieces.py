"""gateway/prewarm/pieces.py: a prompt in pieces that an engine reads one after the other."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from gateway.prewarm.pieces import PIECE_TOKENS, Pieces

pytestmark = pytest.mark.anyio
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENS = 3 * PIECE_TOKENS + 5


@dataclass
class Engine:
    """llama.cpp with one token for each letter. `gone_after`: pieces after which it is lost."""

    gone_after: int = 100
    form: bool = True
    pieces: list[dict[str, Any]] = field(default_factory=list)
    held: int = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        match request.url.path:
            case "/apply-template":
                return httpx.Response(200, json={"prompt": body["messages"][0]["content"]})
            case "/tokenize":
                assert body["add_special"]
                assert body["parse_special"]
                return httpx.Response(200, json={"tokens": list(range(len(body["content"])))})
        if len(self.pieces) >= self.gone_after:
            return httpx.Response(500)
        self.pieces.append(body)
        fresh = max(1, len(body["prompt"]) - self.held)
        self.held = len(body["prompt"])
        return httpx.Response(200, json={"timings": {"prompt_n": fresh}} if self.form else {})

    async def read(self, pieces: Pieces, path: str = CHAT, body: object = None, key: str = "docs") -> int:
        asked = body if body is not None else {"messages": [{"content": "x" * TOKENS}]}
        transport = httpx.MockTransport(self)
        async with httpx.AsyncClient(base_url="http://engine", transport=transport) as client:
            return await pieces.read(client, key, path, json.dumps(asked).encode(), 2)

    @property
    def lengths(self) -> list[int]:
        return [len(piece["prompt"]) for piece in self.pieces]


async def test_each_piece_begins_at_the_beginning_and_the_last_is_left_to_the_request() -> None:
    engine = Engine()
    assert await engine.read(Pieces()) == 3 * PIECE_TOKENS
    assert engine.lengths == [PIECE_TOKENS, 2 * PIECE_TOKENS, 3 * PIECE_TOKENS]
    assert all((piece["id_slot"], piece["n_predict"], piece["cache_prompt"]) == (2, 0, True) for piece in engine.pieces)


async def test_what_was_cut_goes_on_where_it_was() -> None:
    engine, pieces = Engine(gone_after=2), Pieces()
    assert await engine.read(pieces) == 2 * PIECE_TOKENS
    engine.gone_after = 100
    assert await engine.read(pieces) == PIECE_TOKENS
    assert engine.lengths == [PIECE_TOKENS, 2 * PIECE_TOKENS, 3 * PIECE_TOKENS]


async def test_another_text_under_the_same_name_begins_anew() -> None:
    engine, pieces = Engine(), Pieces()
    await engine.read(pieces)
    engine.pieces.clear()
    await engine.read(pieces, body={"messages": [{"content": "y" * TOKENS}]})
    assert engine.lengths[0] == PIECE_TOKENS


async def test_a_plain_prompt_needs_no_template() -> None:
    engine = Engine()
    assert await engine.read(Pieces(), COMPLETIONS, {"prompt": "x" * (PIECE_TOKENS + 9)}) == PIECE_TOKENS


async def test_a_prompt_that_is_no_text_is_left_to_the_request() -> None:
    engine = Engine()
    assert await engine.read(Pieces(), COMPLETIONS, {"prompt": [1] * 500}) == 0
    assert engine.pieces == []


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_other_dialects_are_left_to_the_request(path: str) -> None:
    engine = Engine()
    assert await engine.read(Pieces(), path) == 0
    assert engine.pieces == []


async def test_an_engine_that_answers_otherwise_is_left_alone() -> None:
    engine = Engine(form=False)
    assert await engine.read(Pieces()) == 0
    assert len(engine.pieces) == 1
