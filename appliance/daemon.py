"""Composes the daemon and gives start and stop their order. Touches everything the parts touch, and signals.

Start: folders and locks; leftovers of a former run ended; the public socket; control socket; gateway; engine.
Stop (SIGTERM, SIGINT, `moe-appliance stop`): the gateway drains and ends; the daemon answers 503 itself; the
engine ends; the sockets close; exit 0. Asked a second time, running streams end at once.

A runtime folder that is removed under a running box is made again within `KEEP_S`, with its locks, sockets and keys.

Only a bad configuration, a taken address or a folder in use ends the daemon by itself, with exit code 78.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import httpx

from appliance import __version__
from appliance.board import Board
from appliance.box.gauges import Gauges
from appliance.config import Config, Paths, listen_address, public_url
from appliance.control import Verb, control_app
from appliance.engine.adapter import Adapter
from appliance.engine.around import Around
from appliance.engine.command import CommandEngine
from appliance.engine.embedded import EmbeddedEngine
from appliance.engine.external import ExternalEngine
from appliance.engine.leftovers import sweep
from appliance.engine.settings import CommandSettings, EmbeddedSettings, ExternalSettings, SpawnedSettings
from appliance.engine.supervisor import EngineSupervisor
from appliance.engine.vllm.adapter import VllmEngine
from appliance.engine.vllm.settings import VllmSettings
from appliance.engine.vram_wait import CardsWait
from appliance.errors import AlreadyRunning, MoeError, PortTaken
from appliance.examine import ROOT
from appliance.files import FolderLock, make_folder, usable
from appliance.gatewayproc import STOP_MARGIN_S, GatewayProcess
from appliance.happenings import Happenings
from appliance.installed import interpreter
from appliance.listener import AddressAbsent, answer_absent, open_public
from appliance.notify import Notify
from appliance.reading_speed import ReadingSpeed
from appliance.service import EXTEND_S, Service
from appliance.unwaited import unwaited
from appliance.using import STOPPING, Using, said_of
from gateway import unixserver
from gateway.logs import Log
from gateway.settings import RETIRE_MAX_S, GatewaySettings
from gateway.state import BoxState, GaugesState, Pair, Phase

RUNS = frozenset({Phase.PREPARING, Phase.STARTING, Phase.WARMING, Phase.READY})
"""It is there, or on its way."""
KEEP_S = 1.0
"""Pause between two looks at whether the folders are still as we made them."""
ADDRESS_S = 60
"""How long a service waits for its address, seconds."""
ENGINE_STOP_S = 30.0
"""How long the end of an engine may take beyond its own grace."""


class Daemon:
    """One box. `run()` once; `stop()` asks it to end; `board` shows its state."""

    def __init__(
        self,
        config: Config,
        paths: Paths,
        log: Log,
        *,
        hangup_stops: bool = False,
        child_stderr: IO[str] | None = None,
        notify: Notify | None = None,
    ) -> None:
        self.config = config
        self.paths = paths
        happenings = Happenings()
        first = BoxState(version=__version__, started_s=time.time(), public_url=public_url(config))
        self.board = Board(happenings.began(first), happenings.add)
        self._log = log
        self._notify = notify or Notify()
        self._hangup_stops = hangup_stops
        self._child_stderr = child_stderr
        self._stop = asyncio.Event()
        self._using = Using(config, paths, adapter_of, log)
        self._engine: EngineSupervisor | None = None
        self._gateway: GatewayProcess | None = None

    def stop(self) -> None:
        """Ask for the end; a second time, hurry."""
        if self._stop.is_set() and self._gateway is not None:
            self._gateway.hurry()
        self._stop.set()

    async def run(self) -> None:
        """From folders to exit. Raises ConfigError, PortTaken or AlreadyRunning before anything is started."""
        paths = self.paths
        make_folder(paths.state_dir, "state_dir")
        make_folder(paths.runtime_dir, "runtime_dir")
        with _deaf(), _locked(state_dir=paths.state_dir, runtime_dir=paths.runtime_dir) as locks:
            with usable(paths.runtime_dir, "runtime_dir"):
                self._clean_up()
            public = await self._open_public()
            gateway = GatewayProcess(
                public, self._gateway_settings(), paths.runtime_dir, self.board, self._log, self._child_stderr
            )
            try:
                with usable(paths.runtime_dir, "runtime_dir"):
                    gateway.write_settings()
                await self._serve(public, gateway, locks)
            finally:
                public.close()
        self._log.info("daemon.stopped")

    async def _open_public(self) -> socket.socket:
        """Under a service manager the address may come yet, with the network, or be free yet: wait a while for it."""
        patience = ADDRESS_S if self._notify.address else 0
        for waited in range(patience + 1):
            try:
                return open_public(*listen_address(self.config))
            except (AddressAbsent, PortTaken) as error:
                if waited == patience:
                    raise
                self._notify.status(f"waits for its address: {error.message}")
                self._notify.extend_timeout(EXTEND_S)
                if not waited:
                    self._log.warning("daemon.address", error=error.message, limit_s=patience)
                await asyncio.sleep(1.0)
        raise AssertionError("the last try returns or raises")

    def _clean_up(self) -> None:
        """End what a former daemon left behind. Raises OSError. Blocks for 3 s at most: nothing else runs yet, and a
        Ctrl-C that came while a thread's answer is on its way would print asyncio's traceback."""
        runtime_dir = self.paths.runtime_dir
        for name in ("gateway.record", "engine.record"):
            swept = sweep(runtime_dir / name)
            if swept:
                self._log.warning("daemon.swept", record=name, pids=swept)
        for stale in runtime_dir.glob("engine-*.key"):
            stale.unlink(missing_ok=True)

    async def _serve(self, public: socket.socket, gateway: GatewayProcess, locks: list[FolderLock]) -> None:
        raise_file_limit()
        control = unixserver.bind(self.paths.control_socket)
        engine = self._supervisor()
        self._gateway, self._engine = gateway, engine
        self._log.info("daemon.started", listen=self.config.listen, engine=engine.adapter.kind)
        service = Service(self._notify, self.board, gateway, self.config.gateway.drain_s, stop_limit_s(self.config))
        with self._signals():
            async with asyncio.TaskGroup() as group:
                app = control_app(self.board, self._verbs(), self._note)
                tasks = [
                    group.create_task(unixserver.serve(app, control, self._refused)),
                    group.create_task(engine.run()),
                    group.create_task(self._keep_folders(engine, locks)),
                    group.create_task(Gauges(self._gauges).run()),
                    group.create_task(service.run()),
                ]
                gateway_task = group.create_task(gateway.run())
                await self._stop.wait()
                self._log.info("daemon.stopping")
                self.board.update(stopping=True)
                engine.ending()
                await gateway.stop(self.config.gateway.drain_s)
                await gateway_task
                stand_in = group.create_task(answer_absent(public))
                await engine.stop()
                for task in (*tasks, stand_in):
                    task.cancel()

    def _gauges(self, state: GaugesState | None) -> None:
        self.board.update(at_once=False, gauges=state)

    async def _keep_folders(self, engine: EngineSupervisor, locks: list[FolderLock]) -> None:
        """Mend what somebody removed; the sockets are made again by those who serve on them. In a thread: a disk that
        hangs must not hold the loop, and the box with it."""
        said = ""
        while True:
            await asyncio.sleep(KEEP_S)
            now = ""
            try:
                for folder in await unwaited(lambda: _mend(engine, locks)):
                    self._log.warning("folder.mended", folder=folder, done="made and locked again")
            except (OSError, AlreadyRunning) as error:
                now = str(error)
                if now != said:
                    self._log.error("folder.mended", error=now)
            said = now

    def _supervisor(self) -> EngineSupervisor:
        paths = self.paths
        in_use = self._using.in_use()
        composed = in_use.composed()
        around = Around(self._streams, self._served, ReadingSpeed(paths.state_dir).longest_prefill_s)
        uses_cards = not isinstance(self.config.engine, EmbeddedSettings)
        cards = CardsWait(paths.state_dir, self._log, uses_cards=uses_cards, root=Path(ROOT))
        return EngineSupervisor(
            composed.adapter,
            self.board,
            paths.state_dir,
            paths.runtime_dir,
            composed.examine,
            self._log,
            around,
            cards,
            in_use,
        )

    def _streams(self) -> int:
        """What the gateway has running, as far as it answers: a dead one has none."""
        gateway = self._gateway
        return gateway.load.streams if gateway is not None and gateway.answers else 0

    def _served(self) -> str:
        return "" if self._gateway is None else self._gateway.served

    def _gateway_settings(self) -> GatewaySettings:
        config, paths = self.config, self.paths
        return GatewaySettings(
            seats_file=paths.seats_file,
            admins_file=paths.admins_file,
            state_dir=paths.state_dir,
            control_socket=paths.control_socket,
            gateway_socket=paths.gateway_socket,
            public_url=config.public_url,
            trusted_proxies=config.trusted_proxies,
            model_aliases=config.model_aliases,
            admission=config.admission,
            limits=config.gateway,
            ledger=config.ledger,
            prewarm=config.prewarm,
            prefixes=config.prefix,
        )

    # Verbs

    def _verbs(self) -> Mapping[str, Verb]:
        return {
            "restart": self._unless_stopping(self._restart),
            "start-engine": self._unless_stopping(self._start_engine),
            "stop": self._stop_asked,
            "use": self._unless_stopping(self._use),
            "reload": lambda asked: self._reload(),
            "replace-gateway": self._replace_gateway,
        }

    def _unless_stopping(self, verb: Verb) -> Verb:
        async def asked(query: Mapping[str, str]) -> tuple[int, Mapping[str, object]]:
            return STOPPING if self._stop.is_set() else await verb(query)

        return asked

    def _note(self, who: str, verb: str, done: bool) -> None:
        """As the gateway notes what is asked of it; also when it is down."""
        result = "done" if done else "refused"
        self._log.info("operator.action", admin=who, action=verb, target="", result=result)

    async def _use(self, asked: Mapping[str, str]) -> tuple[int, Mapping[str, object]]:
        """Try another plan or environment, or with neither have what is in use proven."""
        engine, gateway = self._engine, self._gateway
        assert engine is not None and gateway is not None and engine.in_use is not None  # noqa: PT018
        serves = self.board.state.engine.phase is Phase.READY
        pair = await self._using.pair(engine.in_use, asked, serves=serves)
        if not isinstance(pair, Pair) or self._stop.is_set():
            return STOPPING if isinstance(pair, Pair) else pair
        drain_s = self.config.gateway.drain_s
        engine.use(pair, prove="prove" in asked, drained=gateway.drained(), drain_s=drain_s)
        return 202, {"said": said_of(pair, self._streams(), drain_s), "pair": pair.model_dump()}

    async def _restart(self, asked: Mapping[str, str]) -> tuple[int, Mapping[str, object]]:
        assert self._engine is not None
        hastened = self._engine.restart()
        if hastened is not None:
            return 202, {"said": f"running streams are ended now, and the engine is restarted with {hastened.shown}"}
        ours = self._engine.adapter.supervised
        return 202, {"said": f"the engine{' is being restarted' if ours else ', which is not ours, is asked anew'}"}

    async def _start_engine(self, asked: Mapping[str, str]) -> tuple[int, Mapping[str, object]]:
        assert self._engine is not None
        if self.board.state.engine.phase in RUNS:
            return 200, {"said": "the engine runs already"}
        self._engine.start()
        return 202, {"said": "the engine is being started"}

    async def _stop_asked(self, asked: Mapping[str, str]) -> tuple[int, Mapping[str, object]]:
        again = self._stop.is_set()
        self.stop()
        return 202, {"said": "running streams are being ended now" if again else "the box is being stopped"}

    async def _replace_gateway(self, asked: Mapping[str, str]) -> tuple[int, Mapping[str, object]]:
        """Have the gateway of the installed version take over from the one that runs. The engine goes on."""
        assert self._gateway is not None
        try:
            program = await self._gateway.replace(interpreter())
        except MoeError as error:
            return 409, {"error": error.message, "remedy": error.remedy}
        if program is None:
            return 200, {"said": "the gateway of the installed version runs already: nothing is replaced"}
        limit_s = min(self.config.gateway.drain_s, RETIRE_MAX_S)
        streams = self._gateway.load.streams
        said = f"a gateway of version {program.version} takes over; {streams} running streams may end for {limit_s:g} s"
        return 202, {"said": said, "version": program.version, "limit_s": limit_s}

    async def _reload(self) -> tuple[int, Mapping[str, object]]:
        """Let the gateway read seats and admins again; its answer is ours."""
        assert self._gateway is not None
        try:
            answer = await self._gateway.call("POST", "/reload")
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            return 503, {"reloaded": False, "errors": [f"the gateway does not answer: {why}"]}
        said: dict[str, object] = answer.json()
        return answer.status_code, said

    # Signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, signal.SIGHUP: self._hangup}
        for number, handler in numbers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _hangup(self) -> None:
        """Under a service manager: reload. On a terminal: the terminal was closed."""
        if self._hangup_stops:
            self.stop()
        else:
            self._reloading = asyncio.ensure_future(self._reload())

    def _refused(self, pid: int, uid: int) -> None:
        self._log.warning("control.refused", pid=pid, uid=uid)


def adapter_of(config: Config, paths: Paths) -> Adapter:
    """The adapter for `[engine] kind`."""
    match config.engine:
        case EmbeddedSettings() as settings:
            return EmbeddedEngine(settings, state_dir=paths.state_dir)
        case CommandSettings() as settings:
            return CommandEngine(settings, state_dir=paths.state_dir)
        case VllmSettings() as settings:
            return VllmEngine(settings, state_dir=paths.state_dir, runtime_dir=paths.runtime_dir, plan=config.plan)
        case ExternalSettings() as settings:
            return ExternalEngine(settings)


def _mend(engine: EngineSupervisor, locks: list[FolderLock]) -> list[str]:
    """The folders that were made again. Raises OSError and AlreadyRunning."""
    mended = [str(lock.folder) for lock in locks if lock.renew()]
    engine.keep_key()
    return mended


def stop_limit_s(config: Config) -> float:
    """The longest that an orderly stop takes, seconds."""
    grace_s = config.engine.grace_s if isinstance(config.engine, SpawnedSettings) else 0.0
    return config.gateway.drain_s + STOP_MARGIN_S + grace_s + ENGINE_STOP_S


def raise_file_limit() -> None:
    """As many open files as the system allows: each stream takes two, each idle client one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def _locked(**folders: Path) -> Iterator[list[FolderLock]]:
    """Hold folders, given by the names of their settings. Raises AlreadyRunning and ConfigError."""
    locks: dict[Path, FolderLock] = {}
    with contextlib.ExitStack() as stack:
        for key, folder in folders.items():
            with usable(folder, key):
                real = folder.resolve()
                if real not in locks:
                    locks[real] = stack.enter_context(contextlib.closing(FolderLock(real)))
        yield list(locks.values())


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Let stray SIGUSR1 and SIGUSR2 pass. A handler and not SIG_IGN, which children would inherit."""
    old = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
