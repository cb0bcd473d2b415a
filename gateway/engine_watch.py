"""Follows the daemon's control socket and keeps the core's picture of the engine true.

Touches the control socket and the engine's key file. Without a daemon, one fixed state is applied once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from pydantic import ValidationError

from gateway.core import Core, Engine
from gateway.settings import StaticEngine
from gateway.state import BoxState, EngineState, Phase
from gateway.upstream import EngineAddress

POLL_WAIT_S = 20.0
RETRY_S = 0.5


def engine_of(state: EngineState) -> Engine | None:
    """The engine to send to, or None while it does not serve. Raises OSError when its key cannot be read."""
    if state.phase is not Phase.READY or state.url is None:
        return None
    key = Path(state.key_file).read_text().strip() if state.key_file else None
    return Engine(EngineAddress.parse(state.url), key, state.start_id)


def static_box(engine: StaticEngine) -> BoxState:
    """The state of a box whose engine somebody else looks after."""
    state = EngineState(
        phase=Phase.READY,
        kind="static",
        start_id="static",
        url=engine.url.rstrip("/"),
        key_file=str(engine.key_file) if engine.key_file else None,
        models=engine.models,
        context_tokens=engine.context_tokens,
        profile=engine.profile,
        abilities=engine.abilities,
    )
    return BoxState(revision=1, engine=state)


async def follow(core: Core, control_socket: Path) -> None:
    """Long-poll the daemon for ever. A daemon that does not answer leaves the last picture in place."""
    revision = -1
    lost = False
    transport = httpx.AsyncHTTPTransport(uds=str(control_socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://daemon", timeout=POLL_WAIT_S + 5) as client:
        while True:
            try:
                params = {"after": str(revision), "wait_s": str(POLL_WAIT_S)}
                answer = (await client.get("/state", params=params)).raise_for_status()
                box = BoxState.model_validate_json(answer.content)
            except (httpx.HTTPError, ValidationError) as error:
                if not lost:
                    core.log.warning("control.lost", error=str(error) or type(error).__name__)
                lost = True
                revision = -1
                await asyncio.sleep(RETRY_S)
                continue
            lost = False
            if box.revision != revision:
                revision = box.revision
                if box.engine.phase is not core.engine_state.phase:
                    core.log.info("engine.seen", phase=str(box.engine.phase), start_id=box.engine.start_id)
                if box.engine == core.engine_state and (core.engine is not None or box.engine.phase is not Phase.READY):
                    core.box_changed(box)
                else:
                    core.engine_changed(box, _usable(box.engine))


def _usable(state: EngineState) -> Engine | None:
    """None also while the key cannot be read: the daemon has removed it because that engine has ended."""
    try:
        return engine_of(state)
    except (OSError, UnicodeDecodeError):
        return None
