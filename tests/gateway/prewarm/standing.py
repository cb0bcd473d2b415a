"""For tests: a reader in front of an engine, with as much of a core as it looks at. Touches the running loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from gateway.admission import Admission
from gateway.admission_types import Limits, Reason
from gateway.core import Core, Engine
from gateway.limiter import Limiter
from gateway.prefix.index import PrefixIndex
from gateway.prewarm.books import Books
from gateway.prewarm.reader import Reader
from gateway.prewarm.settings import PrefixSettings, PrewarmSettings
from gateway.settings import GatewaySettings
from gateway.state import EngineAbilities, EngineState, Phase
from gateway.upstream import EngineAddress


@dataclass
class Log:
    """Log lines as (event, fields)."""

    lines: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def _keep(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    info = warning = error = _keep

    def named(self, event: str) -> list[str]:
        """Names of what `event` was told of, in order."""
        return [fields["name"] for name, fields in self.lines if name == event]


@dataclass
class Cache:
    """What is believed to be cached."""

    index: PrefixIndex


@dataclass
class Seats:
    """Every name is a seat but those in `gone`."""

    gone: set[str] = field(default_factory=set)

    @property
    def value(self) -> Seats:
        return self

    def is_active(self, name: str, now_s: float) -> bool:
        return name not in self.gone


@dataclass
class StandIn:
    """What a reader sees of a core."""

    settings: GatewaySettings
    limiter: Limiter
    engine_state: EngineState
    engine: Engine | None = None
    live: set[object] = field(default_factory=set)
    log: Log = field(default_factory=Log)
    care: Cache = field(default_factory=lambda: Cache(PrefixIndex()))
    seats: Seats = field(default_factory=Seats)
    now: Callable[[], float] = time.time


@dataclass
class Standing:
    """A reader that runs. `start` and `lose` are what engine_watch.py sees."""

    reader: Reader
    core: StandIn

    def start(self, start_id: str) -> None:
        """The engine has come to READY."""
        state = replace_state(self.core.engine_state, start_id)
        self.core.engine_state = state
        assert state.url is not None
        key = Path(state.key_file).read_text() if state.key_file else None
        self.core.engine = Engine(EngineAddress.parse(state.url), key, start_id)
        self.core.care.index.clear()
        self.reader.engine_changed(self.core.engine)

    def lose(self) -> None:
        """The engine is gone."""
        self.core.engine = None
        self.reader.engine_changed(None)

    def comes(self, who: object = "somebody") -> None:
        """A request is here."""
        self.core.live.add(who)
        self.reader.arrival()

    def goes(self, who: object = "somebody") -> None:
        """It is over."""
        self.core.live.discard(who)

    def close(self) -> None:
        """Admission is closed."""
        self.core.limiter.close(Reason.MAINTENANCE, 10)

    async def until(self, true: Callable[[], object], limit_s: float = 20.0) -> None:
        """Wait until it is so. Raises TimeoutError."""
        async with asyncio.timeout(limit_s):
            while not true():  # nothing tells it when
                await asyncio.sleep(0.002)

    async def read_all(self, limit_s: float = 20.0) -> None:
        """Until there is nothing left to read."""
        await self.until(lambda: (s := self.reader.state).of and s.done + s.given_up == s.of and not s.now, limit_s)


def replace_state(state: EngineState, start_id: str) -> EngineState:
    """`state` of another start."""
    return state.model_copy(update={"start_id": start_id})


@asynccontextmanager
async def standing(
    url: str,
    *,
    prefixes: Sequence[PrefixSettings] = (),
    prewarm: PrewarmSettings | None = None,
    books: Books | None = None,
    abilities: EngineAbilities | None = None,
    key_file: Path | None = None,
    context_tokens: int = 262_144,
    model: str = "fake-model",
) -> AsyncIterator[Standing]:
    """A reader for the engine at `url`, which is not READY yet."""
    loop = asyncio.get_running_loop()
    settings = GatewaySettings(
        seats_file=Path("seats.toml"),
        state_dir=Path("/nowhere"),
        prefixes=tuple(prefixes),
        prewarm=prewarm or PrewarmSettings(),
    )
    state = EngineState(
        phase=Phase.READY,
        url=url,
        key_file=str(key_file) if key_file else None,
        models=(model,),
        context_tokens=context_tokens,
        abilities=abilities or EngineAbilities(),
    )
    core = StandIn(settings, Limiter(Admission(replace(Limits(), streams=4)), loop), state)
    reader = Reader(cast(Core, core), books)
    running = asyncio.create_task(reader.run())
    try:
        yield Standing(reader, core)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
