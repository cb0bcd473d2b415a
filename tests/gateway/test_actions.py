"""What an operator does: each action once on disk, in the log, in the events and in a sentence."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import overlayfile
from gateway.actions import Actions, Done
from gateway.overlay import Mode
from gateway.state import Severity
from tests.gateway.running import running, seats_toml


@pytest.fixture
def short_socket() -> Iterator[Path]:
    """A path that a Unix socket may have, and nobody there."""
    with tempfile.TemporaryDirectory(prefix="moe-", dir="/tmp") as folder:
        yield Path(folder, "control.sock")


def actions_of(log: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    fields = ("admin", "action", "target", "result")
    return [tuple(line[field] for field in fields) for line in log if line["event"] == "operator.action"]


@pytest.mark.anyio
async def test_drain_pause_and_resume_are_kept_logged_and_told() -> None:
    async with running() as site:
        actions = Actions(site.core)
        for act, mode in ((actions.pause, Mode.PAUSED), (actions.drain, Mode.DRAINED), (actions.resume, Mode.SERVING)):
            done = await act("ana")
            assert done.ok
            assert done.said.startswith(f"{mode}: ")
            assert site.core.mode is mode
            [event] = site.core.events.recent(1)
            assert (event.kind, event.who, event.text) == ("operator.mode", "ana", done.said)
        assert actions_of(site.log) == [
            ("ana", "pause", "", "done"),
            ("ana", "drain", "", "done"),
            ("ana", "resume", "", "done"),
        ]


@pytest.mark.anyio
async def test_pausing_says_how_long_anyone_waits() -> None:
    async with running(admission={"queue_deadline_s": 120}) as site:
        assert "120 s at most" in (await Actions(site.core).pause("ana")).said


@pytest.mark.anyio
async def test_what_is_so_already_is_done_and_stays_its_authors() -> None:
    async with running() as site:
        actions = Actions(site.core)
        await actions.drain("ana")
        assert await actions.drain("ben") == Done(True, "the box was drained already")
        changed = site.core.overlay.value.changed
        assert changed is not None
        assert changed.by == "ana"


@pytest.mark.anyio
async def test_a_full_disk_refuses_the_action_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    async with running() as site:
        monkeypatch.setattr(overlayfile, "replace_file", full)
        for done in (await Actions(site.core).drain("ana"), await Actions(site.core).disable_seat("a", "ana")):
            assert not done.ok
            assert "nothing was changed" in done.said
            assert "No space left" in done.said
            [event] = site.core.events.recent(1)
            assert (event.kind, event.severity) == ("operator.refused", Severity.WARN)
        assert site.core.mode is Mode.SERVING
        assert site.core.why_not() is None
        assert site.core.seats.value.accounts["a"].off_by == ""  # type: ignore[index]
        assert [line[3] for line in actions_of(site.log)] == ["refused", "refused"]


@pytest.mark.anyio
async def test_a_seat_goes_off_and_on_and_the_file_is_not_touched() -> None:
    async with running() as site:
        actions, before = Actions(site.core), site.seats_file.read_bytes()
        assert "within 30 s" in (await actions.disable_seat("a", "ana")).said
        assert "already, by ana" in (await actions.disable_seat("a", "ben")).said
        assert site.core.seats.value.accounts["a"].off_by == "ana"  # type: ignore[index]
        assert (await actions.enable_seat("a", "ben")).said == "seat a is switched on again"
        assert (await actions.enable_seat("a", "ben")).said == "seat a was not switched off"
        assert site.seats_file.read_bytes() == before


@pytest.mark.anyio
async def test_a_seat_that_the_file_disables_is_said_to_be_so() -> None:
    async with running() as site:
        actions = Actions(site.core)
        await actions.disable_seat("a", "ana")
        site.write_seats(seats_toml(disabled="a"))
        for _ in range(2):
            done = await actions.enable_seat("a", "ana")
            assert done.ok
            assert "moe-appliance seats enable a" in done.said


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["nobody", "", "../../etc", "\x1b[31m", "x" * 9000])
async def test_a_seat_that_is_none_is_refused_and_odd_text_is_not_repeated(name: str) -> None:
    async with running() as site:
        for act in (Actions(site.core).disable_seat, Actions(site.core).enable_seat):
            done = await act(name, "ana")
            assert not done.ok
            assert "there is no seat" in done.said
            assert (name in done.said) is (name in ("nobody", ""))
        assert site.core.overlay.value.seats == {}
        assert all(len(str(line)) < 400 for line in site.log)


@pytest.mark.anyio
async def test_a_seat_that_left_the_file_can_be_forgotten() -> None:
    async with running() as site:
        actions = Actions(site.core)
        await actions.disable_seat("a", "ana")
        site.write_seats("")
        assert "no such seat" in (await actions.enable_seat("a", "ana")).said
        assert site.core.overlay.value.seats == {}


@pytest.mark.anyio
async def test_a_reload_says_what_is_wrong() -> None:
    async with running() as site:
        assert (await Actions(site.core).reload("ana")).said == "reloaded: 5 seats"
        site.seats_file.write_text("[seats.a\n")
        done = await Actions(site.core).reload("ana")
        assert not done.ok
        assert "seats.toml" in done.said


@pytest.mark.anyio
async def test_actions_at_once_lose_nothing() -> None:
    async with running() as site:
        actions = Actions(site.core)
        await asyncio.gather(*(actions.disable_seat(seat, "ana") for seat in "abcde"), actions.pause("ana"))
        assert sorted(site.core.overlay.value.seats) == ["a", "b", "c", "d", "e"]
        assert site.core.mode is Mode.PAUSED


# What the daemon does


@pytest.mark.anyio
async def test_without_a_daemon_a_restart_is_refused() -> None:
    async with running() as site:
        for act in (Actions(site.core).restart_engine, Actions(site.core).start_engine):
            done = await act("ana")
            assert not done.ok
            assert "no daemon" in done.said


@pytest.mark.anyio
async def test_a_daemon_that_is_gone_is_said_to_be(short_socket: Path) -> None:
    async with running(control_socket=short_socket) as site:
        done = await Actions(site.core).restart_engine("ana")
        assert not done.ok
        assert "the daemon does not answer" in done.said


@pytest.mark.anyio
async def test_the_daemon_is_asked_and_its_words_are_ours(short_socket: Path) -> None:
    asked: list[bytes] = []

    async def daemon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" HTTP")[0])
        body = b'{"said": "the engine is being restarted"}'
        writer.write(b"HTTP/1.1 202 Accepted\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(daemon, short_socket)
    async with running(control_socket=short_socket) as site:
        assert await Actions(site.core).restart_engine("ana") == Done(True, "the engine is being restarted")
        assert (await Actions(site.core).start_engine("ana")).ok
        assert [event.kind for event in site.core.events.recent()] == ["engine.restart_asked", "engine.start_asked"]
    server.close()
    assert asked == [b"POST /restart?noted=1", b"POST /start-engine?noted=1"]
