"""Log lines in the journal: the wire, the fields, and what happens when journald does not take them."""

from __future__ import annotations

import io
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway import journal, logs
from gateway.journal import encoded, fields_of, is_journal, message
from gateway.logs import Log
from tests.datagrams import Datagrams
from tests.e2e.conftest import short_folder

__all__ = ["short_folder"]

LINE = {
    "event": "request.done",
    "component": "gateway",
    "level": "info",
    "timestamp": "2026-11-30T00:00:00Z",
    "seat": "ana",
    "request_id": "r-1",
    "queue_s": 1.23456,
    "stream": True,
    "code": "",
    "note": "two words",
}


def decoded(data: bytes) -> dict[str, str]:
    """Fields off the wire, as journald reads them."""
    fields = {}
    while data:
        head, _, data = data.partition(b"\n")
        name, equals, value = head.partition(b"=")
        if not equals:
            (length,) = struct.unpack("<Q", data[:8])
            value, end, data = data[8 : 8 + length], data[8 + length : 9 + length], data[9 + length :]
            assert end == b"\n"
        fields[name.decode()] = value.decode()
    return fields


def names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[A-Z][A-Z0-9_]{0,20}", fullmatch=True)


@given(st.dictionaries(names(), st.text(), max_size=8))
def test_whatever_a_value_holds_it_is_read_back_and_makes_no_other_field(fields: Mapping[str, str]) -> None:
    assert decoded(encoded(fields)) == fields


@given(st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.none(), max_size=6))
def test_every_name_is_one_that_journald_takes(line: Mapping[str, object]) -> None:
    for name in fields_of(line, "ready"):
        assert name.isascii()
        assert name[0].isalpha()
        assert name.replace("_", "").isalnum()
        assert name == name.upper()
        assert len(name) <= 64


def test_seat_request_and_engine_state_have_the_names_that_operators_search_by() -> None:
    fields = fields_of(LINE, "ready")
    assert {name: fields[name] for name in ("SEAT", "REQUEST_ID", "ENGINE_STATE", "EVENT", "COMPONENT")} == {
        "SEAT": "ana",
        "REQUEST_ID": "r-1",
        "ENGINE_STATE": "ready",
        "EVENT": "request.done",
        "COMPONENT": "gateway",
    }
    assert fields["PRIORITY"] == "6"
    assert fields["SYSLOG_IDENTIFIER"] == "moe-appliance"
    assert fields["MOE_QUEUE_S"] == "1.23456"
    assert fields["MOE_STREAM"] == "true"
    assert not {"TIMESTAMP", "LEVEL", "MOE_TIMESTAMP", "MOE_LEVEL"} & fields.keys()
    assert "ENGINE_STATE" not in fields_of(LINE, "")


def test_the_message_is_a_line_for_people_and_the_traceback_is_below_it() -> None:
    said = message(LINE)
    assert said == 'request.done seat=ana request_id=r-1 queue_s=1.235 stream=true code="" note="two words"'
    assert message(LINE | {"note": "a\nb\x1b"}).endswith("note=a\\nb\\x1b")
    assert message({"event": "request.failed", "exception": "Traceback\nboom"}) == "request.failed\nTraceback\nboom"


@pytest.mark.parametrize(("level", "priority"), [("debug", "7"), ("warning", "4"), ("error", "3"), ("critical", "2")])
def test_levels_become_priorities(level: str, priority: str) -> None:
    assert fields_of({"event": "x", "level": level}, "")["PRIORITY"] == priority


class _Stream(io.StringIO):
    """Text in memory that says it is a file."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def fileno(self) -> int:
        return self._fd


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Stream]:
    """What stderr is under systemd: a file whose identity JOURNAL_STREAM names."""
    with (tmp_path / "stderr").open("w") as file:
        seen = os.fstat(file.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{seen.st_dev}:{seen.st_ino}")
        yield _Stream(file.fileno())
    for processor in structlog.get_config()["processors"]:
        if isinstance(processor, journal.Journal):
            processor.close()
    structlog.reset_defaults()


def log_to(stream: _Stream, path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(journal, "SOCKET", str(path))
    return logs.configure("gateway", stream)


@pytest.fixture
def journald(short_folder: Path) -> Iterator[Datagrams]:
    with Datagrams(str(short_folder / "journal")) as listening:
        yield listening


def test_lines_go_to_the_journal_and_not_to_stderr(
    stream: _Stream, journald: Datagrams, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_to(stream, Path(journald.address), monkeypatch)
    log.info("request.done", seat="ana")
    log.info("engine.seen", phase="ready")
    log.info("request.done", seat="ben")
    journald.wait("three lines", lambda texts: len(texts) == 3)
    first, seen, last = (decoded(data) for _, data in journald.got)
    assert (first["SEAT"], first.get("ENGINE_STATE")) == ("ana", None), "nobody has said yet how the engine is"
    assert seen["ENGINE_STATE"] == "ready"
    assert (last["SEAT"], last["ENGINE_STATE"]) == ("ben", "ready")
    assert stream.getvalue() == ""


def test_a_line_too_long_for_a_datagram_goes_as_a_file(
    stream: _Stream, journald: Datagrams, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_to(stream, Path(journald.address), monkeypatch)
    log.error("gateway.failed", error="x" * 2_000_000)
    journald.wait("the line", len)
    assert len(decoded(journald.got[0][1])["MOE_ERROR"]) == 2_000_000
    assert stream.getvalue() == ""


def test_without_journald_the_line_is_on_stderr_and_a_journald_that_comes_back_gets_the_next(
    stream: _Stream, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = short_folder / "journal"
    log = log_to(stream, path, monkeypatch)
    log.info("request.done", seat="ana")
    assert orjson.loads(stream.getvalue())["seat"] == "ana"
    with Datagrams(str(path)) as journald:
        log.info("request.done", seat="ben")
        journald.wait("the next line", len)
    assert "ben" not in stream.getvalue()


def test_a_journald_that_does_not_read_blocks_nobody_and_the_loss_is_told(
    stream: _Stream, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = short_folder / "journal"
    log = log_to(stream, path, monkeypatch)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stuck:
        stuck.bind(str(path))
        for _ in range(5000):
            log.info("request.done", seat="ana")
        assert stream.getvalue() == "", "stderr leads to the same journal"
        stuck.recv(65_536)
        log.info("request.done", seat="ben")
        taken = 1
        while (last := decoded(stuck.recv(65_536)))["SEAT"] == "ana":
            taken += 1
    assert 0 < int(last["MOE_LOST"]) == 5000 - taken


def test_stderr_that_is_not_the_stream_of_the_journal_is_left_alone(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        seen = os.fstat(file.fileno())
        mine = f"{seen.st_dev}:{seen.st_ino}"
        assert is_journal(file.fileno(), {"JOURNAL_STREAM": mine})
        assert not is_journal(file.fileno(), {"JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino + 1}"})
        assert not is_journal(file.fileno(), {"JOURNAL_STREAM": "nonsense"})
        assert not is_journal(file.fileno(), {})
    assert not is_journal(file.fileno() if not file.closed else 999_999, {"JOURNAL_STREAM": mine})
