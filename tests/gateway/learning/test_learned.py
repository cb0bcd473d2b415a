"""gateway.learning.learned: what was learned outlives the gateway, and nothing depends on it."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.learning import learned as module
from gateway.learning.learned import ENGINES_MAX, NAME, Known, Learned
from gateway.learning.paces import Written


def teach(known: Known) -> None:
    known.curve.learn(2_000, 0, 14.0)
    for _ in range(5):
        known.paces.note(Written(1.0, 100.0, 400, False), 0.0)


def test_what_was_learned_of_an_engine_is_there_after_a_restart(tmp_path: Path) -> None:
    learned = Learned.load(tmp_path)
    teach(learned.of("demo", "m"))
    assert learned.keep() == ""
    again = Learned.load(tmp_path).of("demo", "m")
    assert again.curve.predict_s(2_000, 0) == pytest.approx(13.7)
    assert again.paces.table() == (10.0,)
    assert Learned.load(tmp_path).of("demo", "other").curve.measured == 0
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600


def test_nothing_is_written_before_something_changed(tmp_path: Path) -> None:
    learned = Learned.load(tmp_path)
    teach(learned.of("demo", "m"))
    learned.keep()
    (tmp_path / NAME).unlink()
    learned.keep()
    assert not (tmp_path / NAME).exists()
    learned.of("demo", "m").curve.learn(4_000, 0, 30.0)
    learned.keep()
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"version":1,"engines":[]}',
        b'{"version":2,"engines":{}}',
        b'{"version":2,"engines":[5]}',
        b'{"version":2,"engines":[{"profile":"p","model":"m","at_s":0}]}',
        b'{"version":2,"engines":[{"profile":"p","model":"m","at_s":0,"curve":{"samples":[]},"paces":7}]}',
        b'{"version":2,"engines":[{"profile":"p","model":"m","at_s":1e308,"curve":{"samples":[[9000,0,1.0,0]]},'
        b'"paces":{"replies":{}}}]}',
        b"[" * 100_000,
    ],
)
def test_garbage_is_set_aside_and_all_is_learned_anew(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / NAME).write_bytes(garbage)
    learned = Learned.load(tmp_path)
    assert learned.unread
    assert learned.aside.read_bytes() == garbage
    assert learned.aside.name == "learned.json.bad"
    [finding] = learned.findings()
    assert finding.id == "learned.unread"
    assert finding.observed.endswith(f"it was put aside as {learned.aside}")
    assert finding.remedy == f"rm {learned.aside}"
    assert not (tmp_path / NAME).exists()
    teach(learned.of("demo", "m"))
    assert learned.keep() == ""
    assert Learned.load(tmp_path).findings() == ()


def test_a_file_that_is_too_long_or_a_folder_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_MAX_BYTES", 10)
    (tmp_path / NAME).write_bytes(b"x" * 11)
    assert Learned.load(tmp_path).unread == "longer than 10 bytes"
    (tmp_path / NAME).mkdir()
    learned = Learned.load(tmp_path)
    assert learned.unread == "Is a directory"
    assert "put aside" not in learned.findings()[0].observed
    teach(learned.of("demo", "m"))
    assert "cannot be written" in learned.keep()


def test_a_disk_that_takes_nothing_costs_only_the_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes, mode: int) -> None:
        raise OSError(28, "No space left on device")

    learned = Learned.load(tmp_path)
    teach(learned.of("demo", "m"))
    monkeypatch.setattr(module, "replace_file", full)
    assert learned.keep() == f"{tmp_path / NAME} cannot be written: No space left on device"
    monkeypatch.undo()
    assert learned.keep() == ""


def test_the_engines_that_were_used_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = Learned.load(tmp_path)
    for number in range(ENGINES_MAX + 4):
        monkeypatch.setattr(module.time, "time", lambda at_s=number: float(at_s))
        teach(learned.of(f"engine {number}", "m\udcff"))
    learned.keep()
    again = Learned.load(tmp_path)
    assert again.unread == ""
    assert again.of("engine 5", "m\udcff").curve.measured == 1
    assert Learned.load(tmp_path).of("engine 1", "m\udcff").curve.measured == 0


@pytest.mark.anyio
async def test_it_is_kept_while_the_gateway_runs_and_an_error_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = asyncio.Semaphore(0)

    def refused(path: Path, data: bytes, mode: int) -> None:
        loop.call_soon_threadsafe(looks.release)
        raise OSError(28, "No space left on device")

    loop = asyncio.get_running_loop()
    (tmp_path / NAME).write_bytes(b"garbage")
    learned = Learned.load(tmp_path)
    teach(learned.of("demo", "m"))
    monkeypatch.setattr(module, "KEEP_EVERY_S", 0.0)
    monkeypatch.setattr(module, "replace_file", refused)
    with capture_logs() as logs:
        task = asyncio.create_task(learned.run(structlog.get_logger()))
        for _ in range(3):
            await looks.acquire()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert [line["event"] for line in logs] == ["learned.unread", "learned.unkept"]
    assert logs[0]["aside"] == str(learned.aside)
