"""Tables of daily tokens: spellings that are known, everything else refused with its place."""

from __future__ import annotations

import contextlib
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import ConfigError
from appliance.sizing.daily import from_csv, from_json, is_daily
from appliance.sizing.importers import profile_of
from appliance.sizing.week import Day, average_week

FILE = Path("days.csv")
MONDAY = date(2027, 1, 4)


class TestWeek:
    def test_two_weeks_are_averaged(self) -> None:
        days = {date(2027, 1, day): Day(output=1000, new_input=5000, cached=20_000) for day in (4, 5, 6, 11, 12, 17)}
        found = average_week(days, "days")
        assert found is not None
        assert (found.output_tokens, found.new_input_tokens, found.total_tokens) == (3000, 15_000, 78_000)
        assert (found.active_days, found.sessions, found.reply_tokens) == (3, None, 400)

    def test_one_day_is_a_week_with_one_active_day(self) -> None:
        found = average_week({MONDAY: Day(output=1000, replies=4, sessions=2)}, "days")
        assert found is not None
        assert (found.output_tokens, found.active_days, found.sessions, found.reply_tokens) == (1000, 1, 2, 250)

    def test_days_without_output_are_no_active_days(self) -> None:
        assert average_week({MONDAY: Day(new_input=5)}, "days") is None
        assert average_week({}, "days") is None


class TestCsv:
    @pytest.mark.parametrize(
        "head",
        [
            "date,output_tokens,input_tokens,cache_read_tokens",
            "Date,Output Tokens,Input Tokens,Cache Read Tokens",
            "day,output,input,cached",
            "date,outputTokens,inputTokens,cacheReadTokens",
            "\ufeffdate;output-tokens;new input tokens;cached_tokens",
        ],
    )
    def test_the_usual_spellings_are_known(self, head: str) -> None:
        separator = ";" if ";" in head else ","
        row = separator.join(("2027-01-04", "400", "3500", "90000"))
        assert from_csv(FILE, f"{head}\r\n{row}\r\n\r\n".encode()) == {MONDAY: Day(400, 3500, 90_000)}

    def test_rows_of_one_day_are_added_and_what_nobody_needs_is_passed_over(self) -> None:
        raw = (
            b"date,model,output,input,cache_creation_input_tokens,total_cost,requests,sessions\n"
            b'2027-01-04,a,"1,000",10,5,$3.20,2,1\n2027-01-04,b,500,,,,1,0\n'
        )
        assert from_csv(FILE, raw) == {MONDAY: Day(1500, 15, 0, 3, 1)}

    @pytest.mark.parametrize(
        ("raw", "said"),
        [
            ("", "days.csv:1: has no line of column names"),
            ("date,output\n", "days.csv:1: there is no column 'new_input_tokens'"),
            ("date,output,input,prompt_tokens\n", "days.csv:1: the column 'prompt_tokens' is not known"),
            ("date,output,input,output_tokens\n", "the column 'output_tokens' is there twice"),
            ("date,output,input\n2027-01-04,5\n", "days.csv:2: has 2 columns"),
            ("date,output,input\n4.1.2027,5,5\n", "days.csv:2: date '4.1.2027' is none"),
            ("date,output,input\n2027-02-30,5,5\n", "date '2027-02-30' is none"),
            ("date,output,input\n2027-01-04,-5,5\n", "days.csv:2: output_tokens '-5' is no whole number"),
            ("date,output,input\n2027-01-04,1.5,5\n", "output_tokens '1.5' is no whole number"),
            ("date,output,input\n2027-01-04,5,12,345\n", "days.csv:2: has 4 columns"),
            ("date,output,input\n2027-01-04,99999999999999999,5\n", "no whole number from 0 to"),
            ("date,output,input\n2027-01-04,\u0665,5\n", "no whole number"),
            ("date,output,\x1b[31mred\n", "'\\\\x1b[31mred' is not known"),
            ('date,output,input\n"2027-01-04,5,5\n' + "x" * 200_000, "not valid CSV"),
        ],
    )
    def test_what_is_wrong_is_named_by_line_and_column(self, raw: str, said: str) -> None:
        with pytest.raises(ConfigError) as found:
            from_csv(FILE, raw.encode())
        assert said.replace("\\\\", "\\") in found.value.message.replace("\\\\", "\\")
        assert "\x1b" not in found.value.message

    def test_other_encodings_are_refused_with_their_line(self) -> None:
        with pytest.raises(ConfigError, match=r"days\.csv:2: is not UTF-8"):
            from_csv(FILE, b"date,output,input\n\xff,5,5\n")

    def test_too_many_rows_are_refused(self) -> None:
        raw = b"date,output,input\n" + b"2027-01-04,1,1\n" * 100_001
        with pytest.raises(ConfigError, match="more than 100,000 rows"):
            from_csv(FILE, raw)

    @given(st.binary(max_size=300))
    def test_any_bytes_are_days_or_a_config_error(self, raw: bytes) -> None:
        with contextlib.suppress(ConfigError):
            from_csv(FILE, b"date,output,input\n2027-01-04," + raw)


class TestJson:
    row: dict[str, Any] = {"date": "2027-01-04", "outputTokens": 400, "inputTokens": 3500}  # noqa: RUF012

    def test_a_list_and_what_usage_tools_print_are_both_read(self) -> None:
        tools = {"daily": [self.row | {"totalCost": 1.5, "modelsUsed": ["a"], "modelBreakdowns": []}], "totals": {}}
        assert is_daily(tools)
        assert is_daily([])
        assert not is_daily({"output_tokens": 5})
        assert from_json(FILE, tools) == from_json(FILE, [self.row]) == {MONDAY: Day(400, 3500)}

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"date": 5}, "[0] date '5' is none"),
            ({"date": None}, "[0] date 'None' is none"),
            ({"outputTokens": True}, "[0] output_tokens 'True' is no whole number"),
            ({"outputTokens": None}, "no whole number"),
            ({"outputTokens": [1]}, "no whole number"),
            ({"outputTokens": 10**30}, "no whole number"),
            ({"prompt": 5}, "[0] the column 'prompt' is not known"),
        ],
    )
    def test_what_is_wrong_is_named_by_row_and_key(self, change: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError) as found:
            from_json(FILE, [self.row | change])
        assert said in found.value.message

    @pytest.mark.parametrize("value", [[5], {"daily": 5}, {"days": {}}])
    def test_what_is_no_table_of_days_is_refused(self, value: object) -> None:
        with pytest.raises(ConfigError, match="must be a"):
            from_json(FILE, value)


class TestFiles:
    def test_the_name_of_a_file_says_what_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "week.toml").write_text("output_tokens = 400\nnew_input_tokens = 5\n")
        (tmp_path / "week.json").write_text('{"output_tokens": 400, "new_input_tokens": 5}')
        (tmp_path / "days.json").write_text('[{"date": "2027-01-04", "output": 400, "input": 5}]')
        (tmp_path / "days.CSV").write_text("date,output,input\n2027-01-04,400,5\n")
        for name in ("week.toml", "week.json", "days.json", "days.CSV"):
            found = profile_of(tmp_path / name, 6)
            assert (found.output_tokens, found.new_input_tokens, found.hours_a_day) == (400, 5, 6)
            assert name in found.source

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("week.txt", "a profile is a"),
            ("none.csv", "no such file"),
            ("none", "no such file"),
            ("folder.csv", "not a regular"),
        ],
    )
    def test_what_cannot_be_read_is_said(self, tmp_path: Path, name: str, said: str) -> None:
        (tmp_path / "folder.csv").mkdir()
        (tmp_path / "week.txt").touch()
        with pytest.raises(ConfigError, match=said):
            profile_of(tmp_path / name)

    def test_a_huge_file_is_refused_unread(self, tmp_path: Path) -> None:
        with (tmp_path / "days.csv").open("wb") as file:
            file.truncate(17 * 2**20)
        with pytest.raises(ConfigError, match="more than 16 MiB"):
            profile_of(tmp_path / "days.csv")

    def test_days_without_work_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "days.json").write_text(json.dumps({"daily": []}))
        with pytest.raises(ConfigError, match="no day has output tokens"):
            profile_of(tmp_path / "days.json")
