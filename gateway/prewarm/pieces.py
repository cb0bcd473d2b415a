"""Has llama.cpp read a chat prompt in small pieces, so that somebody who comes waits for one piece at most.

Touches the engine over HTTP. llama.cpp sees only once a second that a connection was closed, and until then goes on
with the whole prompt: with other work on the machine people waited 2 s longer for their first token, 0.3 s with pieces
(measured). Rules:
- The prompt is rendered and cut into tokens by the engine, so that the pieces are what the request itself begins with.
- Each piece is the prompt from its beginning: a shorter one than the sequence holds would cut that off. So what is
  known to be there is left out.
- What cannot be read like this (/v1/messages and /v1/responses, an engine that answers otherwise) is left to the
  request itself.
"""

from __future__ import annotations

from typing import Any

import httpx

from gateway.parsing import parse

PIECE_TOKENS = 64
"""A quarter of a batch of the embedded engine: 0.15 s on two idle cores. Source: embedded_child.BATCH_TOKENS."""
_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_JSON = {"content-type": "application/json"}


class Pieces:
    """How far each prompt was read. One for each start of an engine."""

    def __init__(self) -> None:
        self._done: dict[tuple[str, int, int], int] = {}

    async def read(self, client: httpx.AsyncClient, key: str, path: str, body: bytes, sequence: int) -> int:
        """Read what is called `key` into `sequence`, all but the last piece; tokens that were not there before."""
        fresh, known = 0, (key, hash(body), sequence)
        try:
            tokens = await _tokens(client, path, body)
            start = self._done.get(known, 0)
            for end in range(start + PIECE_TOKENS, len(tokens), PIECE_TOKENS):
                ask = {"prompt": tokens[:end], "n_predict": 0, "id_slot": sequence, "cache_prompt": True}
                timings = (await _asked(client, "/completion", ask))["timings"]
                fresh += int(timings["prompt_n"])
                self._done[known] = end
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return fresh
        return fresh


async def _tokens(client: httpx.AsyncClient, path: str, body: bytes) -> list[Any]:
    """The prompt as the engine reads it; [] where that cannot be known."""
    if path == _CHAT:
        rendered = await client.post("/apply-template", content=body, headers=_JSON, timeout=None)
        prompt = rendered.raise_for_status().json()["prompt"]
    else:
        prompt = parse(body)["prompt"] if path == _COMPLETIONS else None
    if not isinstance(prompt, str):
        return []
    ask = {"content": prompt, "add_special": True, "parse_special": True}
    return list((await _asked(client, "/tokenize", ask))["tokens"])


async def _asked(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    answer = await client.post(path, json=body, timeout=None)
    return answer.raise_for_status().json()
