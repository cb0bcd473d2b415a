"""The log ring: lines out of any bytes, bounded memory, a file that stays small."""

from __future__ import annotations

import stat
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.logring import LogRing


def test_lines_are_the_same_wherever_the_output_is_split() -> None:
    data = "loading 10%\rloading 20%\r\nMärz\n\nend".encode()
    for cut in range(len(data)):
        ring = LogRing()
        ring.feed(data[:cut])
        ring.feed(data[cut:])
        ring.flush()
        assert ring.tail() == ("loading 10%", "loading 20%", "März", "end")


def test_only_the_last_lines_are_kept() -> None:
    ring = LogRing(3)
    ring.feed(b"1\n2\n3\n4\n5")
    assert ring.tail() == ("2", "3", "4")
    assert ring.tail(2) == ("3", "4")
    assert ring.tail(0) == ()
    ring.flush()
    assert ring.tail(1) == ("5",)


def test_colours_control_characters_and_bad_bytes_do_no_harm() -> None:
    ring = LogRing()
    ring.feed(b"\x1b[1;31mred\x1b[0m\x07 a\tb \xff\n")
    assert ring.tail() == ("red a\tb �",)


def test_a_long_line_is_cut_and_says_so() -> None:
    ring = LogRing(line_chars=10)
    ring.feed(b"x" * 1_000)
    ring.feed(b"x" * 1_000 + b"\nshort\n")
    ring.feed(("ä" * 10 + "\n").encode())
    assert ring.tail() == ("x" * 9 + "…", "short", "ä" * 10)


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_memory_is_bounded(parts: list[bytes]) -> None:
    ring = LogRing(4, line_chars=8)
    for part in parts:
        ring.feed(part)
        assert len(ring._pending) <= 33
    assert len(ring.tail()) <= 4
    assert all(len(line) <= 8 for line in ring.tail())


def test_listeners_hear_every_line_until_they_leave() -> None:
    ring = LogRing(1)
    heard: list[str] = []
    end = ring.subscribe(heard.append)
    ring.feed(b"a\nb\n")
    end()
    end()
    ring.feed(b"c\n")
    assert heard == ["a", "b"]


def test_the_file_is_private_appended_and_rotated(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text("old\n")
    file.chmod(0o600)
    ring = LogRing(file=file, file_bytes=20)
    ring.feed(b"12345678\n")
    assert file.read_text() == "old\n12345678\n"
    ring.feed(b"abcdefgh\n")
    ring.close()
    ring.close()
    assert file.read_text() == "abcdefgh\n"
    assert (tmp_path / "engine.log.1").read_text() == "old\n12345678\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_is_given_up(tmp_path: Path) -> None:
    ring = LogRing(file=tmp_path / "missing/engine.log")
    ring.feed(b"a\nb\n")
    assert ring.tail() == ("a", "b")
    assert ring.file_error is not None
    assert "No such file" in ring.file_error
