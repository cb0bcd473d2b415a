"""`moe-appliance seats` and `admins`: what is printed where, and what the running gateway is told."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner, Result

from appliance.cli import admins, seats
from appliance.cli.box import Box
from appliance.errors import MoeError, NotRunning
from gateway.keyfile import load_admins, load_seats
from gateway.keys import digest_of
from gateway.seats import SeatName

KEY_LINE = re.compile(r"moe-[A-Za-z0-9_-]{43}\n")


@dataclass
class Files:
    seats_file: Path
    admins_file: Path
    told: int = 0
    edited: str = ""
    error: MoeError | None = None
    off: dict[str, str] = field(default_factory=dict)

    def switched_off(self) -> dict[str, str]:
        return self.off

    def notify_reload(self, seat: str = "") -> str:
        self.told += 1
        self.edited = seat
        if self.error is not None:
            raise self.error
        return "The running gateway has taken it."


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "seats.toml", tmp_path / "admins.toml")


def root(files: Files) -> typer.Typer:
    app = typer.Typer()

    @app.callback()
    def _root(ctx: typer.Context) -> None:
        ctx.obj = files

    app.add_typer(seats.app, name="seats")
    app.add_typer(admins.app, name="admins")
    return app


def run(files: Files, line: str) -> Result:
    return CliRunner().invoke(root(files), line.split(), catch_exceptions=False)


def expired(files: Files, seat: str) -> None:
    """Add a seat that expired since."""
    run(files, f"seats add {seat} --expires 2099-01-31")
    files.seats_file.write_text(files.seats_file.read_text().replace("2099", "2020"))


def test_add_prints_the_key_alone_and_talks_elsewhere(files: Files) -> None:
    done = run(files, "seats add ana")
    assert done.exit_code == 0
    assert KEY_LINE.fullmatch(done.stdout)
    assert "cannot be shown again" in done.stderr
    assert "The running gateway has taken it." in done.stderr
    assert load_seats(files.seats_file).accounts.keys() == {"ana"}
    assert files.told == 1


def test_add_takes_limits(files: Files) -> None:
    assert run(files, "seats add ana --max-streams 3 --expires 2027-01-31").exit_code == 0
    assert "max_streams = 3\nexpires = 2027-01-31\n" in files.seats_file.read_text()
    assert run(files, "seats add ben --expires 2027-01-31T18:00:00").exit_code == 0
    assert "expires = 2027-01-31T18:00:00Z\n" in files.seats_file.read_text()


@pytest.mark.parametrize(
    "options",
    [
        "--expires tomorrow",
        "--max-streams 0",
        "--expires 2027-13-01",
        "--expires 2020-01-01",
        "--expires 2020-01-01T10:00:00",
        "--max-streams 257",
    ],
)
def test_add_refuses_bad_options_and_writes_nothing(files: Files, options: str) -> None:
    assert run(files, f"seats add ana {options}").exit_code == 2
    assert not files.seats_file.exists()


def test_add_refuses_capitals_with_the_command_that_works(files: Files) -> None:
    with pytest.raises(MoeError) as caught:
        run(files, "seats add ANA")
    assert caught.value.remedy == "moe-appliance seats add ana"


def test_add_prints_json_for_programs(files: Files) -> None:
    done = run(files, "seats add ana --json")
    shown = json.loads(done.stdout)
    assert shown["seat"] == "ana"
    assert digest_of(shown["key"]) in files.seats_file.read_text()
    assert (shown["reload"], done.stderr) == ("The running gateway has taken it.", "")


def test_the_key_is_printed_even_if_the_gateway_cannot_be_told(files: Files) -> None:
    files.error = NotRunning("no answer", "moe-appliance run")
    done = run(files, "seats add ana")
    assert done.exit_code == 0
    assert KEY_LINE.fullmatch(done.stdout)
    assert "no answer" in done.stderr


def test_rotate_prints_the_new_key_and_when_the_old_one_stops(files: Files) -> None:
    old = run(files, "seats add ana").stdout
    done = run(files, "seats rotate ana")
    assert KEY_LINE.fullmatch(done.stdout)
    assert done.stdout != old
    assert re.search(r"The old key works until \d{4}-\d\d-\d\dT", done.stderr)
    assert "old_key_until" in json.loads(run(files, "seats rotate ana --json").stdout)
    assert "The old key does not work any more." in run(files, "seats rotate ana --now").stderr


def test_list_shows_states_and_no_digest(files: Files) -> None:
    expired(files, "ana --max-streams 3")
    run(files, "seats add ben")
    run(files, "seats disable ben")
    run(files, "seats add " + "c" * 32)
    run(files, "seats rotate " + "c" * 32)
    shown = run(files, "seats list").stdout
    rows = [line.split() for line in shown.splitlines()]
    assert rows[1] == ["ana", "expired", "3", "-", "2020-01-31", "-"]
    assert rows[2] == ["ben", "disabled", "-", "-", "never", "-"]
    assert rows[3][:5] == ["c" * 32, "active", "-", "-", "never"]
    assert not re.search("[0-9a-f]{16}", shown.replace("c" * 32, ""))


def test_list_prints_json_for_programs(files: Files) -> None:
    expired(files, "ana")
    (row,) = json.loads(run(files, "seats list --json").stdout)["seats"]
    assert row == {
        "name": "ana",
        "state": "expired",
        "off_by": None,
        "max_streams": None,
        "tokens_per_month": None,
        "expires": "2020-01-31",
        "old_key_until": None,
    }


def test_a_seat_that_is_off_by_hand_is_listed_with_who_did_it(files: Files) -> None:
    run(files, "seats add ana")
    run(files, "seats add ben")
    files.off = {"ana": "olga[/]", "gone": "olga"}
    rows = [line.split() for line in run(files, "seats list").stdout.splitlines()]
    assert rows[1][:4] == ["ana", "off", "by", "olga[/]"]
    assert rows[2][:2] == ["ben", "active"]
    ana, ben = json.loads(run(files, "seats list --json").stdout)["seats"]
    assert (ana["state"], ana["off_by"], ben["off_by"]) == ("active", "olga[/]", None)
    other = run(files, f"seats list --file {files.seats_file}").stdout
    assert "off by" not in other, "another box's file"


@pytest.mark.parametrize(
    ("kept", "off"), [('{"seats": {"ana": {"by": "olga", "at_s": 1}}}', {"ana": "olga"}), ("{", {}), (None, {})]
)
def test_who_is_off_by_hand_is_read_from_what_the_box_keeps(
    tmp_path: Path, kept: str | None, off: dict[str, str]
) -> None:
    if kept is not None:
        (tmp_path / "overlay.json").write_text(kept)
    assert Box(None, {"MOE_APPLIANCE_STATE_DIR": str(tmp_path)}).switched_off() == off


def test_limits_are_changed_one_by_one_and_taken_away_with_0(files: Files) -> None:
    run(files, "seats add ana --max-streams 2 --tokens-per-month 5000000")
    assert "has its new limits" in run(files, "seats limit ana --tokens-per-month 9000000").stderr
    assert "had these limits already" in run(files, "seats limit ana --max-streams 2").stderr
    account = load_seats(files.seats_file).accounts[SeatName("ana")]
    assert (account.max_streams, account.tokens_per_month) == (2, 9_000_000)
    assert "9 000 000" in run(files, "seats list").stdout
    run(files, "seats limit ana --max-streams 0 --tokens-per-month 0")
    account = load_seats(files.seats_file).accounts[SeatName("ana")]
    assert (account.max_streams, account.tokens_per_month) == (None, None)
    assert run(files, "seats limit ana").exit_code == 2


def test_an_empty_list_says_how_to_add(files: Files) -> None:
    done = run(files, "seats list")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "moe-appliance seats add NAME" in done.stderr
    assert json.loads(run(files, "seats list --json").stdout) == {"seats": []}


def test_disable_enable_and_remove_say_what_they_did(files: Files) -> None:
    expired(files, "ana")
    assert "Seat ana is disabled." in run(files, "seats disable ana").stderr
    assert "was disabled already" in run(files, "seats disable ana").stderr
    enabled = run(files, "seats enable ana").stderr
    assert "Seat ana is enabled." in enabled
    assert "has expired all the same" in enabled
    assert "Seat ana is removed." in run(files, "seats remove ana").stderr
    assert load_seats(files.seats_file).accounts == {}
    assert files.told == 5


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("seats limit ana --max-streams 2", "ana"),
        ("seats rotate ana", "ana"),
        ("seats rotate ana --json", "ana"),
        ("seats disable ana", "ana"),
        ("seats enable ana", "ana"),
        ("seats remove ana", "ana"),
        ("seats add ben", "ben"),
        ("admins add ana", ""),
        ("admins rotate root", ""),
        ("admins remove root", ""),
    ],
)
def test_the_gateway_is_told_which_seat_was_edited(files: Files, line: str, edited: str) -> None:
    run(files, "seats add ana")
    run(files, "admins add root")
    files.edited = "none"
    run(files, line)
    assert files.edited == edited


@pytest.mark.parametrize(
    ("seat", "still"),
    [("zed", " Switched off by hand all the same: zed (moe-appliance seats on zed)."), ("ana", ""), ("", "")],
)
def test_only_an_edit_of_a_seat_that_is_off_by_hand_says_so(
    monkeypatch: pytest.MonkeyPatch, seat: str, still: str
) -> None:
    asked: list[str] = []

    def answer(box: Box, method: str, path: str) -> httpx.Response:
        asked.append(f"{method} {path}")
        return httpx.Response(200, json={"reloaded": True, "seats": 2, "off": ["zed", "yan"]})

    monkeypatch.setattr(Box, "gateway", answer)
    assert Box().notify_reload(seat) == f"The running gateway has taken it.{still}"
    assert asked == ["POST /reload?edited=1"]


def test_a_typing_error_names_the_closest_seat(files: Files) -> None:
    run(files, "seats add ana")
    with pytest.raises(MoeError, match="did you mean ana"):
        run(files, "seats remove anna")


def test_another_file_can_be_named(files: Files, tmp_path: Path) -> None:
    run(files, f"seats add ana --file {tmp_path / 'other.toml'}")
    assert "ana" in load_seats(tmp_path / "other.toml").accounts
    assert not files.seats_file.exists()


def test_admins_have_the_same_verbs(files: Files) -> None:
    first = run(files, "admins add eve --expires 2099-01-31").stdout
    assert first.startswith("moe-admin-")
    assert "The old token does not work any more." in run(files, "admins rotate eve").stderr
    assert run(files, "admins list").stdout.split() == ["admin", "state", "expires", "eve", "active", "2099-01-31"]
    assert json.loads(run(files, "admins list --json").stdout)["admins"][0]["name"] == "eve"
    assert "Admin eve is removed." in run(files, "admins remove eve").stderr
    assert load_admins(files.admins_file).accounts == {}
