"""What an operator does: each action once on disk, in the log, in the events and in a sentence."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import overlayfile
from gateway.actions import Actions, Done
from gateway.keys import digest_of
from gateway.overlay import Mode
from gateway.overlayfile import OverlayFile
from tests.gateway.running import key_of, running, seats_toml


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
async def test_on_a_full_disk_an_action_is_done_and_said_to_be_unkept_until_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("gateway.core.KEEP_EVERY_S", 0.01)
    async with running() as site:
        actions, overlay = Actions(site.core), site.core.overlay
        with monkeypatch.context() as disk:
            disk.setattr(overlayfile, "replace_file", full)
            for act in (actions.drain("ana"), actions.disable_seat("a", "ana"), actions.resume("ana")):
                done = await act
                assert done.ok
                assert "would be lost at a restart" in done.said
                assert "No space left" in done.said
                assert f"df -h {overlay.path.parent}" in done.said
                [event] = site.core.events.recent(1)
                assert event.text == done.said
                assert [found.id for found in site.core.overlay.findings()] == ["overlay.unkept"]
            assert site.core.mode is Mode.SERVING
            assert site.core.seats.value.accounts["a"].off_by == "ana"  # type: ignore[index]
            assert not overlay.path.exists()
        again = asyncio.create_task(site.core.keep_overlay())
        async with asyncio.timeout(5):
            while overlay.findings():
                await asyncio.sleep(0.01)
        again.cancel()
        assert OverlayFile.load(overlay.path.parent).value == overlay.value
        assert [line[3] for line in actions_of(site.log)] == ["done", "done", "done"]
        told = [line["event"] for line in site.log if line["event"].startswith("overlay.")]
        assert told == ["overlay.unkept", "overlay.kept"]


@pytest.mark.anyio
async def test_a_disk_that_hangs_does_not_hold_a_seat_open(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    async with running() as site:
        write = overlayfile.replace_file
        monkeypatch.setattr(overlayfile, "replace_file", lambda *args: goes_on.wait(10) and write(*args))
        asked = asyncio.create_task(Actions(site.core).disable_seat("a", "ana"))
        async with asyncio.timeout(5):
            while site.core.seats.value.accounts["a"].off_by != "ana":  # type: ignore[index]
                await asyncio.sleep(0)
        assert not asked.done()
        goes_on.set()
        assert (await asked).ok


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
        site.seats_file.write_text(f'[seats.a]\ndigest = "{digest_of(key_of("a"))}"\n')
        assert (await Actions(site.core).reload("ana")).said == "reloaded: 1 seat"
        site.seats_file.write_text("[seats.a\n")
        done = await Actions(site.core).reload("ana")
        assert not done.ok
        assert "seats.toml" in done.said


@pytest.mark.anyio
async def test_an_edit_by_command_is_one_event_about_what_was_edited() -> None:
    async with running() as site:
        token = digest_of("moe-admin-token-of-eve")
        for path, accounts, said in (
            (site.core.admins.path, [("admins.eve", token)], "admins.toml was changed: 1 admin"),
            (
                site.core.admins.path,
                [("admins.eve", token), ("admins.bo", digest_of("moe-admin-token-of-bo"))],
                "admins.toml was changed: 2 admins",
            ),
            (site.seats_file, [("seats.a", digest_of(key_of("a")))], "seats.toml was changed: 1 seat"),
        ):
            before = site.core.events.recent()
            path.write_text("".join(f'[{table}]\ndigest = "{digest}"\n' for table, digest in accounts))
            assert (await Actions(site.core).reload("ana", edited=True)).ok
            [event] = [event for event in site.core.events.recent() if event not in before]
            assert (event.text, event.who) == (said, "ana")
        assert actions_of(site.log) == [("ana", "reload", "", "done")] * 3
        await Actions(site.core).reload("ana", edited=True)
        assert len(site.core.events.recent()) == 3, "the look each second was there first"


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
    status, said = 202, "the engine is being restarted"

    async def daemon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b" HTTP")[0])
        body = b'{"said": "%b"}' % said.encode()
        head = b"HTTP/1.1 %d Told\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        writer.write(head + body)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(daemon, short_socket)
    async with running(control_socket=short_socket) as site:
        actions = Actions(site.core)
        assert await actions.restart_engine("ana") == Done(True, "the engine is being restarted")
        assert (await actions.start_engine("ana")).ok
        status, said = 200, "the engine runs already"
        runs = await actions.start_engine("ana")
        assert (runs.ok, runs.said) == (True, "the engine runs already")
        assert [event.kind for event in site.core.events.recent()] == ["engine.restart_asked", "engine.start_asked"]
        assert len(actions_of(site.log)) == 3
    server.close()
    assert asked == [b"POST /restart?noted=1", *[b"POST /start-engine?noted=1"] * 2]
