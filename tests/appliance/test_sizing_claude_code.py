"""What is taken from Claude Code's files: counts, times and ids, once each, whatever else is in them."""

from __future__ import annotations

import json
import os
from dataclasses import astuple
from datetime import UTC, date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import MoeError
from appliance.sizing import claude_code
from appliance.sizing.claude_code import Found, default_folder, profile


def line(message: str = "m1", at: str = "2027-01-04T10:00:00.000Z", session: str = "s1", **usage: Any) -> str:
    counts = {"input_tokens": 10, "cache_creation_input_tokens": 3000, "cache_read_input_tokens": 80_000}
    return json.dumps(
        {
            "type": "assistant",
            "sessionId": session,
            "timestamp": at,
            "requestId": f"r-{message}",
            "message": {
                "id": message,
                "role": "assistant",
                "content": [{"type": "text", "text": "a secret sentence"}],
                "usage": counts | {"output_tokens": 400, "service_tier": "standard"} | usage,
            },
        }
    )


def write(folder: Path, name: str, *lines: str | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join((text if isinstance(text, bytes) else text.encode()) + b"\n" for text in lines))


def read(folder: Path) -> Found:
    return profile(folder, zone=UTC)[1]


class TestReading:
    def test_an_answer_is_its_counts_on_its_day(self, tmp_path: Path) -> None:
        write(tmp_path, "project/s1.jsonl", '{"type":"user","message":{"content":"a secret"}}', line())
        week, found = profile(tmp_path, 6, UTC)
        assert (found.files, found.replies, found.damaged, found.unread) == (1, 1, 0, 0)
        assert astuple(found.days[date(2027, 1, 4)]) == (400, 3010, 80_000, 1, 1)
        assert (week.output_tokens, week.active_days, week.hours_a_day, week.sessions) == (400, 1, 6, 1)

    def test_an_answer_in_several_lines_and_files_counts_once_with_its_most_output(self, tmp_path: Path) -> None:
        write(tmp_path, "p/s1.jsonl", line(output_tokens=1), line(output_tokens=400), line(output_tokens=400))
        write(tmp_path, "p/s2.jsonl", line(session="s2"), line("m2", session="s2"))
        found = read(tmp_path)
        assert found.replies == 2
        assert astuple(found.days[date(2027, 1, 4)]) == (800, 6020, 160_000, 2, 2)

    def test_answers_without_an_id_all_count(self, tmp_path: Path) -> None:
        bare = json.loads(line())
        del bare["message"]["id"]
        write(tmp_path, "a.jsonl", json.dumps(bare), json.dumps(bare))
        assert read(tmp_path).replies == 2

    def test_only_the_last_four_weeks_are_averaged(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            "a.jsonl",
            line("old", "2026-06-01T10:00:00Z", output_tokens=10**6),
            line("m1", "2027-01-04T10:00:00Z"),
            line("m2", "2027-01-31T10:00:00Z"),
        )
        assert profile(tmp_path, zone=UTC)[0].output_tokens == pytest.approx(800 / 4)

    def test_subagents_in_folders_of_their_own_are_work_as_well(self, tmp_path: Path) -> None:
        write(tmp_path, "p/s1.jsonl", line())
        write(tmp_path, "p/s1/subagents/agent-1.jsonl", line("m2"))
        write(tmp_path, "p/notes.txt", line("m3"))
        assert read(tmp_path).replies == 2

    def test_answers_that_used_nothing_are_no_work(self, tmp_path: Path) -> None:
        nothing = dict.fromkeys(
            ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"), 0
        )
        write(tmp_path, "a.jsonl", line(), line("m2", "2027-01-05T10:00:00Z", **nothing))
        assert list(read(tmp_path).days) == [date(2027, 1, 4)]


class TestDamage:
    @pytest.mark.parametrize(
        "bad",
        [
            '{"message": {"usage": {"output_tokens": 5',
            b'\xff\xfe{"usage": 5}',
            line(output_tokens=-1),
            line(output_tokens=1.5),
            line(output_tokens=True),
            line(output_tokens=10**12),
            line(output_tokens="5"),
            line(at="yesterday"),
            line(at="2027-01-04T10:00:00"),
            line(at="9999-12-31T23:59:59-23:00"),
            '{"message": {"usage": [5]}}',
            '{"timestamp": 5, "message": {"usage": {"output_tokens": 5}}}',
            b'{"usage": ' + b"[" * 5000 + b"]" * 5000 + b"}",
            b'\x00"usage"\x00',
        ],
    )
    def test_a_damaged_line_is_counted_and_the_rest_is_read(self, tmp_path: Path, bad: str | bytes) -> None:
        write(tmp_path, "a.jsonl", line("m0"), bad, line("m2"))
        found = read(tmp_path)
        assert (found.replies, found.damaged) == (2, 1)

    def test_lines_that_speak_of_usage_and_are_no_answers_are_passed_over(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            "a.jsonl",
            line(),
            '{"message": "usage: \\"usage\\""}',
            '["usage"]',
            '{"message": {"usage": null}}',
        )
        found = read(tmp_path)
        assert (found.replies, found.damaged) == (1, 0)

    def test_a_line_that_is_too_long_is_counted_and_not_held(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claude_code, "LINE_MAX_BYTES", 2000)
        write(tmp_path, "a.jsonl", '"usage"' + "x" * 10_000, line("m2"), '"usage"' + "y" * 3000)
        found = read(tmp_path)
        assert (found.replies, found.damaged) == (1, 2)

    def test_what_is_no_file_or_cannot_be_read_is_counted(self, tmp_path: Path) -> None:
        write(tmp_path, "a.jsonl", line())
        os.mkfifo(tmp_path / "b.jsonl")
        (tmp_path / "c.jsonl").symlink_to(tmp_path / "nowhere")
        assert read(tmp_path).unread == 2

    def test_a_link_to_a_folder_is_no_way_round(self, tmp_path: Path) -> None:
        write(tmp_path / "projects", "a.jsonl", line())
        (tmp_path / "projects" / "loop").symlink_to(tmp_path)
        assert read(tmp_path / "projects").files == 1

    def test_memory_is_bounded_by_answers_and_days(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, "a.jsonl", *(line(f"m{n}", f"2027-01-{n:02}T10:00:00Z") for n in range(1, 9)))
        monkeypatch.setattr(claude_code, "DAYS_MAX", 7)
        with pytest.raises(MoeError, match="more than 7 days"):
            profile(tmp_path, zone=UTC)
        monkeypatch.setattr(claude_code, "REPLIES_MAX", 5)
        with pytest.raises(MoeError, match="more than 5 answers"):
            profile(tmp_path, zone=UTC)

    def test_a_folder_without_use_is_an_error_that_says_what_was_there(self, tmp_path: Path) -> None:
        with pytest.raises(MoeError, match="there is no folder"):
            profile(tmp_path / "none")
        write(tmp_path, "a.jsonl", '{"usage"')
        with pytest.raises(MoeError, match=r"1 file under .*: no use of tokens in them; 1 line damaged"):
            profile(tmp_path)

    @given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from([b'"usage"', line().encode()])), max_size=8))
    def test_any_bytes_are_counted_or_passed_over(
        self, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
    ) -> None:
        folder = tmp_path_factory.mktemp("projects")
        write(folder, "a.jsonl", line("first"), b"", *lines)
        assert 1 <= read(folder).replies <= 2


def test_nothing_of_what_was_said_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", line())
    week, found = profile(tmp_path, zone=UTC)
    assert "secret" not in repr((week, found))


def test_the_folder_is_where_claude_code_was_told_to_keep_it(tmp_path: Path) -> None:
    assert default_folder({}, tmp_path) == tmp_path / ".claude" / "projects"
    assert default_folder({"CLAUDE_CONFIG_DIR": "/elsewhere"}, tmp_path) == Path("/elsewhere/projects")
