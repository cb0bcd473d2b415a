"""Reads a small form that a browser or a script sent. Touches the ASGI receive channel and the loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.requests import Request

FORM_MAX_BYTES = 8 * 1024
FORM_TIMEOUT_S = 10.0
_FIELDS_MAX = 8


async def read_form(request: Request) -> Mapping[str, str] | None:
    """The fields, the first value of each; none of them when it is not a form. None when it is longer than
    FORM_MAX_BYTES. Raises TimeoutError after FORM_TIMEOUT_S, ClientDisconnect when the client leaves."""
    body = b""
    async with asyncio.timeout(FORM_TIMEOUT_S):
        async for part in request.stream():
            body += part
            if len(body) > FORM_MAX_BYTES:
                return None
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS_MAX)
    except ValueError:
        return {}
    return {name: values[0].strip() for name, values in fields.items()}
