"""`systemctl start`, what a seat gets then, and `systemctl reload`."""

from __future__ import annotations

import pytest

from tests.e2e.box import until
from tests.systemd.service import ETC, Service

pytestmark = pytest.mark.systemd
BROKEN = '[seats.cleo]\ndigest = "sha256:beef"\n'


def test_start_returns_when_the_gateway_answers_and_the_status_line_says_what_the_engine_does(service: Service) -> None:
    service.systemctl("stop").ok()
    service.set_knobs(load_s=4)
    service.systemctl("start").ok()
    assert service.get("/health").status == 200
    assert service.get("/ready").status == 503
    loading = service.show("ActiveState", "SubState", "StatusText")
    assert (loading["ActiveState"], loading["SubState"]) == ("active", "running")
    assert "not serving" in loading["StatusText"]
    assert "engine starting" in loading["StatusText"]
    service.wait_ready()
    until("the status line says so", lambda: "engine ready" in service.show_one("StatusText"), 5)
    assert "engine ready" in service.systemctl("status --no-pager").ok()


def test_a_seat_that_was_added_while_it_runs_is_served(service: Service) -> None:
    service.add_seat("dora")
    answer = service.chat("dora", text="hello", max_tokens=5)
    assert (answer.status, answer.done, answer.clean) == (200, True, True), answer.told()
    assert answer.content.strip()
    assert service.get("/v1/models").status == 401
    assert service.get("/v1/models", service.keys["dora"]).json["data"][0]["id"] == "fake-model"


def test_the_command_line_says_the_same_as_the_unit(service: Service) -> None:
    assert "ana" in service.cli("seats list").ok()
    assert service.cli("status").code == 0
    assert service.cli("check").code == 0


def test_a_reload_of_a_broken_seat_file_fails_names_the_line_and_leaves_the_seats_as_they_were(
    service: Service,
) -> None:
    path = service.machine.path(f"{ETC}/seats.toml")
    good = path.read_text()
    path.write_text(good + "\n" + BROKEN)
    line = (good + "\n").count("\n") + 2
    with service.journal_since() as said:
        assert service.systemctl("reload").code != 0
    assert f"{ETC}/seats.toml:{line}: seats.cleo.digest" in said[0]
    assert service.show_one("ActiveState") == "active"
    assert service.answers("ana")
    assert service.answers("ben")


def test_a_reload_of_a_good_seat_file_holds_when_it_returns(service: Service) -> None:
    path = service.machine.path(f"{ETC}/seats.toml")
    good = path.read_text()
    head, _, tail = good.partition("[seats.ben]\n")
    path.write_text(f"{head}[seats.ben]\ndisabled = true\n{tail}")
    service.systemctl("reload").ok()
    assert service.chat("ben").status in (401, 403)
    assert service.answers("ana")
    path.write_text(good)
    service.systemctl("reload").ok()
    assert service.answers("ben")


def test_a_bad_configuration_ends_with_78_and_is_not_started_again(service: Service) -> None:
    service.systemctl("stop").ok()
    path = service.machine.path(f"{ETC}/appliance.toml")
    path.write_text(path.read_text() + "\n[admission]\nqueue_maxx = 3\n")
    with service.journal_since() as said:
        assert service.systemctl("start").code != 0
    shown = service.show("ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts")
    assert shown == {
        "ActiveState": "failed",
        "SubState": "failed",
        "Result": "exit-code",
        "ExecMainStatus": "78",
        "NRestarts": "0",
    }
    assert f"{ETC}/appliance.toml" in said[0]
    assert "queue_maxx" in said[0]


def test_it_comes_up_with_the_machine_when_enabled(service: Service) -> None:
    service.systemctl("enable").ok()
    wanted = service.machine.run("systemctl list-dependencies --plain multi-user.target").ok()
    assert "moe-appliance.service" in wanted
    service.systemctl("disable").ok()
