"""What an operator can do to the running box, whoever asks and over whichever way.

Touches the overlay's file, the daemon's control socket and the log.

Rules:
- Each action is one `operator.action` line, one event, and one sentence back; also the one that was not done. An engine
  that is asked to start and runs is no event, nor is a reload after an edit: the edit is one.
- What needs the daemon is asked for with a deadline; it goes on without us.
- Nothing here checks who may act: admin_actions.py and control_actions.py do, and say who it is.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from gateway.core import Core
from gateway.overlay import Changed, Mode, Overlay
from gateway.seats import SeatName, counted, name_problem
from gateway.state import Severity

SEAT_ACTIONS = frozenset({"disable-seat", "enable-seat"})
_MODE, _SEAT, _RELOAD = "operator.mode", "operator.seat", "operator.reload"
DAEMON_S = 10.0
"""How long the daemon has to answer."""

_SET = {
    Mode.SERVING: "new requests are served again",
    Mode.PAUSED: "running streams go on, who comes waits in line, {deadline_s:g} s at most, nobody is let through",
    Mode.DRAINED: "running streams go on, new requests are refused",
}
_SET_ALREADY = {
    Mode.SERVING: "new requests were served already",
    Mode.PAUSED: "the box was paused already",
    Mode.DRAINED: "the box was drained already",
}


@dataclass(frozen=True, slots=True)
class Done:
    """What came of an action: whether it was done, and a sentence for people. `told`: it is an event."""

    ok: bool
    said: str
    told: bool = True


Change = Callable[[Overlay], Overlay]
Act = Callable[[str, str], Awaitable[Done]]
"""(who, target) -> what came of it; the target is "" for all but seats."""


@dataclass(frozen=True, slots=True)
class Actions:
    """One per gateway. `who`: the name of the admin, or of the user on the box."""

    core: Core

    def by_name(self) -> dict[str, Act]:
        """Every action under the name that it has in addresses. Those in SEAT_ACTIONS need a target."""
        return {
            "drain": lambda who, _: self.drain(who),
            "pause": lambda who, _: self.pause(who),
            "resume": lambda who, _: self.resume(who),
            "disable-seat": lambda who, seat: self.disable_seat(seat, who),
            "enable-seat": lambda who, seat: self.enable_seat(seat, who),
            "reload": lambda who, _: self.reload(who),
            "restart-engine": lambda who, _: self.restart_engine(who),
            "start-engine": lambda who, _: self.start_engine(who),
        }

    async def drain(self, who: str) -> Done:
        """Refuse what is new; running streams go on."""
        return await self._mode("drain", Mode.DRAINED, who)

    async def pause(self, who: str) -> Done:
        """Let nobody through; who comes waits in line."""
        return await self._mode("pause", Mode.PAUSED, who)

    async def resume(self, who: str) -> Done:
        """Serve again."""
        return await self._mode("resume", Mode.SERVING, who)

    async def disable_seat(self, name: str, who: str) -> Done:
        """Switch a seat off, whatever seats.toml says; its streams end after the grace."""
        account = self.core.seats.value.accounts.get(SeatName(name))
        if account is None:
            return self._told("disable-seat", _shown(name), who, Done(False, _no_seat(name)), _SEAT)
        if account.off_by:
            done = Done(True, f"seat {name} was switched off already, by {account.off_by}")
            return self._told("disable-seat", name, who, done, _SEAT)
        off = Changed(by=who, at_s=time.time())
        grace_s = self.core.settings.admission.seat_grace_s
        said = f"seat {name} is switched off; its running streams end within {grace_s:g} s"
        return await self._kept("disable-seat", name, who, lambda now: now.with_seat(name, off), said, _SEAT)

    async def enable_seat(self, name: str, who: str) -> Done:
        """Switch a seat on again that was switched off."""
        account = self.core.seats.value.accounts.get(SeatName(name))
        if name not in self.core.overlay.value.seats:
            said = f"seat {name} was not switched off" if account is not None else _no_seat(name)
            if account is not None and account.disabled:
                said += f"; seats.toml disables it: moe-appliance seats enable {name}"
            return self._told("enable-seat", _shown(name), who, Done(account is not None, said), _SEAT)
        said = f"seat {name} is switched on again"
        if account is None:
            said = f"seat {name} is not switched off any more; there is no such seat in seats.toml"
        elif account.disabled:
            said += f", but seats.toml disables it: moe-appliance seats enable {name}"
        return await self._kept("enable-seat", name, who, lambda now: now.with_seat(name, None), said, _SEAT)

    async def reload(self, who: str, *, edited: bool = False) -> Done:
        """Read seats.toml and admins.toml again now. `edited`: for a verb that changed one of them, and what is new in
        it is the event."""
        self.core.look_at_files(force=True, who=who)
        errors = self.core.broken_files()
        if errors:
            return self._told(
                "reload", "", who, Done(False, f"the old files stay in use: {'; '.join(errors)}"), _RELOAD
            )
        done = Done(True, f"reloaded: {counted(len(self.core.seats.value.accounts), 'seat')}", told=not edited)
        return self._told("reload", "", who, done, _RELOAD)

    async def restart_engine(self, who: str) -> Done:
        """Ask the daemon to restart the engine: running streams end with an error that says so."""
        return self._told("restart-engine", "engine", who, await self._ask("/restart"), "engine.restart_asked")

    async def start_engine(self, who: str) -> Done:
        """Ask the daemon to start an engine that is off."""
        return self._told("start-engine", "engine", who, await self._ask("/start-engine"), "engine.start_asked")

    # How

    async def _mode(self, action: str, mode: Mode, who: str) -> Done:
        if mode is self.core.mode:
            return self._told(action, "", who, Done(True, _SET_ALREADY[mode]), _MODE)
        at_s = time.time()
        said = _SET[mode].format(deadline_s=self.core.settings.admission.queue_deadline_s)
        return await self._kept(action, "", who, lambda now: now.in_mode(mode, who, at_s), f"{mode}: {said}", _MODE)

    async def _kept(self, action: str, target: str, who: str, change: Change, said: str, kind: str) -> Done:
        why = await self.core.set_overlay(change)
        if why:
            said += f"; it could not be kept, and would be lost at a restart: {why}; see: {self.core.overlay.look}"
        return self._told(action, target, who, Done(True, said), kind)

    def _told(self, action: str, target: str, who: str, done: Done, kind: str) -> Done:
        """The log line and the event. `kind`: of the event, when it was done."""
        log, result = self.core.log, "done" if done.ok else "refused"
        log.log(20 if done.ok else 30, "operator.action", admin=who, action=action, target=target, result=result)
        if not done.ok:
            self.core.events.note("operator.refused", Severity.WARN, f"{action}: {done.said}", who)
        elif done.told:
            self.core.events.note(kind, Severity.INFO, done.said, who)
        return done

    async def _ask(self, path: str) -> Done:
        socket = self.core.settings.control_socket
        if socket is None:
            return Done(False, "no daemon looks after this engine: whoever started it must do it")
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://daemon", timeout=DAEMON_S) as client:
                answer = await client.post(path, params={"noted": "1"})
                said = str(answer.json().get("said", f"the daemon answered {answer.status_code}"))
        except (httpx.HTTPError, ValueError) as error:
            return Done(False, f"the daemon does not answer: {str(error) or type(error).__name__}")
        return Done(answer.is_success, said, told=answer.status_code != 200)  # 200: it was so; 202: it begins


def _no_seat(name: str) -> str:
    return f"there is no seat {_shown(name)}"


def _shown(name: str) -> str:
    """A name that may be one: strangers' text is neither logged nor repeated."""
    return name if name_problem(name) is None else "of that name"
