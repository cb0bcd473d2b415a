"""gateway/prewarm/files.py: what a `[[prefix]]` file may hold, and what is said of one that is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.prewarm import files
from gateway.prewarm.files import PrefixFileError, body_of, broken_files, finding_of, unknown_seats
from gateway.prewarm.settings import PrefixSettings
from gateway.state import Severity

CHAT = "/v1/chat/completions"
GOOD = {"messages": [{"role": "system", "content": "s"}]}


def written(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "p.json"
    path.write_bytes(raw)
    return path


def test_a_request_body_is_what_the_engine_would_get(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(GOOD | {"cache_salt": "x"}).encode())
    assert json.loads(body_of(path, CHAT)) == GOOD


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"{", "is not JSON"),
        (b"[]", "is no JSON object"),
        (b'{"messages": []}', "is no request for /v1/chat/completions: 'messages' must be a list with at least one"),
        (b'{"messages": [{}], "n": 2}', "would run more than one sequence"),
        (json.dumps(GOOD | {"model": "m" * 300}).encode(), "names a model of more than 256 letters"),
        (b"[" * 300_000, "has too many values"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, raw: bytes, expected: str) -> None:
    with pytest.raises(PrefixFileError, match=expected):
        body_of(written(tmp_path, raw), CHAT)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PrefixFileError, match=r"gone\.json cannot be read: No such file"):
        body_of(tmp_path / "gone.json", CHAT)


def test_a_file_beyond_every_window_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_MAX_BYTES", 50)
    with pytest.raises(PrefixFileError, match="longer than 50 bytes"):
        body_of(written(tmp_path, b" " * 51), CHAT)


def test_all_that_is_wrong_is_one_finding(tmp_path: Path) -> None:
    good = PrefixSettings(name="good", file=written(tmp_path, json.dumps(GOOD).encode()))
    gone = PrefixSettings(name="gone", file=tmp_path / "gone.json")
    seat = PrefixSettings(name="b", seat="ana")
    assert finding_of(broken_files((good, seat))) == ()
    (one,) = finding_of(broken_files((good, gone, seat)))
    assert (one.id, one.severity, one.remedy) == (
        "prefix.broken",
        Severity.WARN,
        "correct the file, then: moe-appliance reload",
    )
    assert one.title == "The prefix gone is not read into the engine"
    assert "gone.json cannot be read" in one.observed
    (both,) = finding_of({"a": "x", "b": "y"})
    assert (both.title, both.observed) == ("2 prefixes are not read into the engine", "a: x; b: y")


def test_what_a_seat_shares_is_no_file_to_be_corrected(tmp_path: Path) -> None:
    prefixes = (PrefixSettings(name="b", seat="ana"), PrefixSettings(name="docs", file=tmp_path / "d.json"))
    (one,) = finding_of({"b": "the engine answered 400 (bad_request)"}, prefixes)
    assert "file" not in one.required + one.remedy
    assert one.remedy == "moe-appliance reload   tries it again, once ana has sent something else"
    (both,) = finding_of({"b": "x", "docs": "y"}, prefixes)
    assert both.remedy == f"correct the file, then: moe-appliance reload\n{one.remedy}"


def test_a_seat_that_there_is_not_is_to_be_corrected_or_added() -> None:
    prefixes = [PrefixSettings(name=name, seat=seat) for name, seat in (("b", "ana"), ("c", "no one"))]
    assert unknown_seats(prefixes, {"ana", "no one"}) == ()
    (one,) = unknown_seats(prefixes, {"ana"})
    assert one.title == "The prefix c names a seat that there is not"
    assert "correct `seat` under [[prefix]]" in one.remedy
    assert one.remedy.endswith("moe-appliance seats add 'no one'")
    (both,) = unknown_seats(prefixes, ())
    assert both.title == "2 prefixes name seats that there are not"


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.json")
    with pytest.raises(PrefixFileError, match=r"p\.json cannot be read: not a regular file"):
        body_of(tmp_path / "p.json", CHAT)
