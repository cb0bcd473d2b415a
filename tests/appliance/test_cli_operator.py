"""The operator's verbs against a gateway's socket: what is asked, by whom, and what is said when it is not done."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from appliance.cli import events, operator
from appliance.cli.box import Box
from appliance.errors import MoeError, NotRunning
from appliance.using import STOPPING
from gateway.state import Event, Severity

NOW_S = 1_800_000_000.0


@dataclass
class FakeBox:
    """A box whose sockets answer as a test says."""

    answers: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    gateway_runs: bool = True
    daemon_runs: bool = True
    environ: dict[str, str] = field(default_factory=dict)
    state_dir: Path = Path("/nonexistent")

    @property
    def paths(self) -> FakeBox:
        return self

    asker = Box.asker

    def gateway(self, method: str, path: str) -> httpx.Response:
        if not self.gateway_runs:
            raise NotRunning("no appliance answers", "moe-appliance run")
        return self._answer("gateway", method, path)

    def daemon(self, method: str, path: str) -> httpx.Response:
        if not self.daemon_runs:
            raise NotRunning("no appliance answers", "moe-appliance run")
        return self._answer("daemon", method, path)

    def _answer(self, who: str, method: str, path: str) -> httpx.Response:
        self.asked.append(f"{who} {method} {path}")
        status, body = self.answers.get(path.partition("?")[0], (200, {"ok": True, "said": "done so"}))
        return httpx.Response(status, json=body)


Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    app, seats = typer.Typer(), typer.Typer()
    operator.register(app)
    operator.register_seats(seats)
    events.register(app)
    app.add_typer(seats, name="seats")

    def call(box: FakeBox, *words: str) -> Any:
        return CliRunner().invoke(app, words, obj=box)

    return call


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("drain",), "/drain"),
        (("pause",), "/pause"),
        (("resume",), "/resume"),
        (("seats", "off", "ana"), "/disable-seat?seat=ana"),
        (("seats", "on", "ana"), "/enable-seat?seat=ana"),
        (("restart",), "/restart-engine"),
        (("start-engine",), "/start-engine"),
        (("stop",), "/stop"),
    ],
)
def test_each_verb_asks_the_running_box_and_prints_its_words(run: Run, words: tuple[str, ...], asked: str) -> None:
    box = FakeBox()
    done = run(box, *words)
    assert (done.exit_code, done.output) == (0, "done so\n")
    assert box.asked == [f"{'daemon' if asked == '/stop' else 'gateway'} POST {asked}"]


def test_under_sudo_the_person_is_named_also_to_the_daemon(run: Run) -> None:
    box = FakeBox(environ={"SUDO_USER": "carla"})
    for words in (("seats", "off", "a&b"), ("reload",), ("stop",)):
        run(box, *words)
    box.gateway_runs = False
    run(box, "restart")
    assert box.asked == [
        "gateway POST /disable-seat?who=carla&seat=a%26b",
        "gateway POST /reload?who=carla",
        "daemon POST /stop?who=carla",
        "daemon POST /restart?who=carla",
    ]


def test_a_reload_says_how_many_seats_there_are_or_what_is_broken(run: Run) -> None:
    assert run(FakeBox({"/reload": (200, {"reloaded": True, "seats": 1})}), "reload").output == "reloaded: 1 seat\n"
    two = FakeBox({"/reload": (200, {"reloaded": True, "seats": 2, "off": ["ana", "zed"]})})
    still = "Switched off by hand all the same: ana (moe-appliance seats on ana), zed (moe-appliance seats on zed)."
    assert run(two, "reload").output == f"reloaded: 2 seats\n{still}\n"
    done = run(FakeBox({"/reload": (422, {"reloaded": False, "errors": ["line 3"]})}), "reload")
    assert isinstance(done.exception, MoeError)
    assert done.exception.message.endswith("stay in use:\nline 3")


@pytest.mark.parametrize("verb", ["drain", "reload"])
def test_a_gateway_that_does_not_answer_is_no_box_that_does_not_run(run: Run, verb: str) -> None:
    away = run(FakeBox(gateway_runs=False), verb).exception
    assert isinstance(away, MoeError)
    assert not isinstance(away, NotRunning)
    assert "the daemon runs" in away.message
    assert isinstance(run(FakeBox(gateway_runs=False, daemon_runs=False), verb).exception, NotRunning)


@pytest.mark.parametrize("verb", ["drain", "reload", "stop", "restart"])
def test_an_answer_of_another_version_is_an_error_and_no_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(FakeBox, "_answer", lambda *_: httpx.Response(404, text="Not Found"))
    done = run(FakeBox(), verb)
    assert isinstance(done.exception, MoeError)
    assert "answered 404" in done.exception.message


def test_what_was_not_done_is_an_error_with_the_reason(run: Run) -> None:
    done = run(FakeBox({"/drain": (409, {"ok": False, "said": "it could not be"})}), "drain")
    assert isinstance(done.exception, MoeError)
    assert done.exception.message == "not done: it could not be"


def test_a_seat_that_is_none_leads_to_the_list_of_those_that_are(run: Run) -> None:
    box = FakeBox({"/disable-seat": (409, {"ok": False, "said": "there is no seat nobody"})})
    refused = run(box, "seats", "off", "nobody").exception
    assert isinstance(refused, MoeError)
    assert (refused.message, refused.remedy) == ("not done: there is no seat nobody", "moe-appliance seats list")


def test_the_engine_is_restarted_by_the_daemon_when_no_gateway_answers(run: Run) -> None:
    box = FakeBox(gateway_runs=False)
    assert run(box, "restart").exit_code == 0
    assert run(box, "start-engine").exit_code == 0
    assert box.asked == ["daemon POST /restart", "daemon POST /start-engine"]


def test_a_daemon_that_is_being_stopped_restarts_nothing_and_the_verb_fails(run: Run) -> None:
    status, said = STOPPING
    refused = run(FakeBox({"/restart": (status, dict(said))}, gateway_runs=False), "restart").exception
    assert isinstance(refused, MoeError)
    assert (refused.message, refused.remedy) == (f"not done: {said['said']}", said["remedy"])


# Events


def event(id: str, at_s: float, text: str = "the engine is ready", who: str = "") -> dict[str, Any]:
    made = Event(id=id, at_s=at_s, kind="engine.phase", severity=Severity.INFO, text=text, who=who)
    return made.model_dump(mode="json")


def test_events_come_from_the_gateway_without_a_ledger_and_are_escaped(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events.time, "time", lambda: NOW_S)
    told = [event("a", NOW_S - 90_000), event("b", NOW_S - 60, "bad \x1b[31m [red]name", "ana")]
    box = FakeBox({"/events": (200, {"events": told})})
    shown = run(box, "events").output
    assert "the engine is ready" not in shown, "older than a day"
    assert "\x1b" not in shown
    assert "[red]name" in shown
    assert "(ana)" in shown
    assert len(run(box, "events", "--since", "30d", "--json").output.splitlines()) == 2
    assert json.loads(run(box, "events", "--json").output)["id"] == "b"


def test_without_ledger_and_gateway_there_is_nothing_to_show(run: Run) -> None:
    assert isinstance(run(FakeBox(gateway_runs=False), "events").exception, MoeError)


def test_following_shows_each_event_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    box = FakeBox({"/events": (200, {"events": told})})

    def look_again(_: float) -> None:
        if len(told) == 3:
            raise KeyboardInterrupt
        told.append(event(f"e{len(told)}", events.time.time()))

    monkeypatch.setattr(events.time, "sleep", look_again)
    shown = run(box, "events", "--follow", "--json").output
    assert [json.loads(line)["id"] for line in shown.splitlines()] == ["e0", "e1", "e2"]


def test_following_goes_on_while_the_gateway_is_replaced_and_there_is_no_ledger(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [event("before", events.time.time())]
    box = FakeBox({"/events": (200, {"events": told})})
    looks = iter([False, False, True])

    def look_again(_: float) -> None:
        box.gateway_runs = next(looks)
        if box.gateway_runs:
            told.append(event("after", events.time.time()))
            monkeypatch.setattr(events.time, "sleep", stop)

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(events.time, "sleep", look_again)
    shown = run(box, "events", "--follow", "--json").output
    assert [json.loads(line)["id"] for line in shown.splitlines()] == ["before", "after"]


@pytest.mark.parametrize("since", ["", "5", "-1h", "1y", "1.5h", "999999d"])
def test_a_time_that_is_none_is_a_usage_error(run: Run, since: str) -> None:
    done = run(FakeBox(), "events", "--since", since)
    assert done.exit_code == 2
    assert "24h" in done.output
