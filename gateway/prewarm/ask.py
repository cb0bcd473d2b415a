"""Has the engine read one body, beside admission. Touches the engine's address."""

from __future__ import annotations

from gateway.engine_errors import read_error
from gateway.meter import Usage, chat_usage, messages_usage, responses_usage
from gateway.prewarm.brief import brief
from gateway.taps import JsonTap
from gateway.upstream import EngineAddress, EngineError, send

_USAGES = {"/v1/messages": messages_usage, "/v1/responses": responses_usage}


class ReadFailed(Exception):
    """The engine did not read it; `str()` says why without a word of it. `for_good`: nor will it the next time."""

    def __init__(self, why: str, *, for_good: bool) -> None:
        super().__init__(why)
        self.for_good = for_good


async def have_read(
    address: EngineAddress, key: str | None, path: str, body: bytes, sequence: int | None
) -> Usage | None:
    """What the engine says that it read; None = it does not say. The connection is closed when this ends, however it
    ends. Raises ReadFailed."""
    try:
        short = brief(path, body, sequence)
    except ValueError as error:
        raise ReadFailed(f"the body cannot be shortened: {error}", for_good=True) from error
    headers = {"accept": "application/json"} | ({"authorization": f"Bearer {key}"} if key is not None else {})
    usage_of = _USAGES.get(path, chat_usage)
    try:
        reply = await send(address, path, headers, short, lambda status, _: JsonTap(status, usage_of), lambda: None)
        try:
            await reply.wait_headers(None)
            answer = await reply.read_all()
        finally:
            reply.abort()
    except EngineError as error:
        raise ReadFailed(f"the engine was lost ({error.problem.code})", for_good=False) from error
    if reply.status != 200:
        problem = read_error(reply.status, answer, path)
        raise ReadFailed(f"the engine answered {reply.status} ({problem.code})", for_good=not problem.heals)
    return reply.tap.meter.usage if reply.tap is not None else None
