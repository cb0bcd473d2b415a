"""The named prefixes as they are now: from their files, and from what seats have sent. Touches those files. Bodies may
be long, so that all of it is done in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.prewarm.files import PrefixFileError, body_of
from gateway.prewarm.heads import Heads
from gateway.prewarm.queue import Item, Kind
from gateway.prewarm.settings import PrefixSettings
from gateway.prewarm.shared import shared_head


async def named_items(prefixes: Sequence[PrefixSettings], heads: Heads) -> tuple[list[Item], dict[str, str]]:
    """(what can be read, what is wrong with the others by name). A seat that has sent nothing yet gives nothing."""
    items: list[Item] = []
    broken: dict[str, str] = {}
    for prefix in prefixes:
        try:
            item = await _item(prefix, heads)
        except PrefixFileError as error:
            broken[prefix.name] = str(error)
            continue
        if item is not None:
            items.append(item)
    return items, broken


async def _item(prefix: PrefixSettings, heads: Heads) -> Item | None:
    if prefix.file is not None:
        body = await asyncio.to_thread(body_of, prefix.file, prefix.path)
        return Item(Kind.PREFIX, prefix.name, "", prefix.path, len(body), body)
    seat = prefix.seat or ""
    latest = heads.of_seat(seat)
    if not latest:
        return None
    path = latest[0].path
    shared = await asyncio.to_thread(shared_head, path, [head.body for head in latest if head.path == path])
    return Item(Kind.PREFIX, prefix.name, seat, path, len(shared), shared) if shared is not None else None
