"""The bundle: written once and for its owner alone, whatever is broken; programs that hang cost their deadline."""

from __future__ import annotations

import json
import tarfile
import threading
import time
from pathlib import Path

import httpx
import pytest

from appliance.cli import doctor_bundle as bundle
from appliance.cli.box import Box
from appliance.cli.doctor_bundle import Part, at_once, collect, write
from appliance.engine import host_kv
from appliance.engine.failures import Context, Exit, diagnose
from appliance.errors import MoeError, NotRunning
from appliance.happenings import happened
from appliance.keyedit import add_admin, add_seat
from appliance.redact import MASK
from appliance.service import sentence
from gateway.journal import message
from gateway.ledger.rows import Usage
from gateway.overlay import Changed, Mode, Overlay
from gateway.state import Event, HostKv, Pair, Phase, Reverted
from gateway.status.compose import view
from tests import status_sample as sample

NOW_S = 1_800_000_000.0
PARTS = [Part("a.txt", "text\ud83d"), Part("proc/meminfo", "MemTotal\n")]


def nobody(*_: object) -> None:
    raise NotRunning("no appliance answers", "start it: moe-appliance run")


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Box:
    """A configured box that does not run; no program of the machine is asked."""
    monkeypatch.setattr(bundle, "_program", lambda *argv: f"{argv[0]} was asked\n")
    monkeypatch.setattr("appliance.cli.box.Box._ask", nobody)  # httpx leaves a socket open when nobody listens
    monkeypatch.setattr(bundle, "_us", lambda *_: bundle.child.Answer(out="{}", code=0))
    config = tmp_path / "appliance.toml"
    config.write_text(
        '[engine]\nkind = "command"\ncommand = ["serve", "--api-key", "abcd1234efgh", "{port}"]\n'
        'env = { HUB = "a-secret-value" }\n'
    )
    made = Box(config, {})
    made.paths.state_dir.mkdir()
    made.paths.runtime_dir.mkdir()
    return made


def texts(parts: list[Part]) -> dict[str, str]:
    return {part.name: part.text for part in parts}


def test_a_bundle_is_its_owners_alone_and_never_written_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    write(PARTS, path, NOW_S)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["moe-appliance/a.txt", "moe-appliance/proc/meminfo"]
    before = path.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for taken in (path, tmp_path / "link"):
        with pytest.raises(MoeError, match="cannot write"):
            write(PARTS, taken, NOW_S)
    assert path.read_bytes() == before
    assert not (tmp_path / "elsewhere").exists()


def test_half_a_bundle_on_a_full_disk_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(MoeError, match="No space left"):
        write(PARTS, tmp_path / "bundle.tar.gz", NOW_S)
    assert list(tmp_path.iterdir()) == []


def test_what_hangs_costs_the_limit_once_and_the_rest_is_there() -> None:
    never = threading.Event()

    def hang(name: str) -> Part:
        never.wait(20)
        return Part(name, "late")

    started_s = time.monotonic()
    hung, there, hung_too = at_once(
        {"a": lambda: hang("a"), "b": lambda: Part("b", "text"), "c": lambda: hang("c")}, 0.3
    )
    never.set()
    assert time.monotonic() - started_s < 5
    assert (hung.there, hung_too.there) == (False, False)
    assert "no answer within 0.3 s" in hung.text
    assert there == Part("b", "text")


def test_names_go_although_the_file_of_seats_is_broken_and_of_those_who_have_left(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_seat(box.seats_file, "carla")
    box.seats_file.write_text(box.seats_file.read_text() + "[seats.dieter\nbroken")
    (box.paths.state_dir / "seats.last-good.toml").write_text('[seats."emil"]\n')
    (box.paths.state_dir / "overlay.json").write_text(
        Overlay(mode=Mode.PAUSED, changed=Changed(by="fritz", at_s=1.0)).model_dump_json()
    )
    monkeypatch.setenv("SUDO_USER", "gerda")
    monkeypatch.setattr(bundle.reading, "months", lambda _: [("2026-01", Usage("heinz"))])
    monkeypatch.setattr(bundle, "kept", lambda *_: [])
    said = "carla dieter emil fritz gerda heinz"
    monkeypatch.setattr(bundle, "_program", lambda *_: said)
    found = texts(collect(box, engine_log=False))
    assert found["journal.txt"] == "seat-1 seat-2 seat-3 person-1 person-2 seat-4"
    for name in said.split():
        assert name not in "".join(found.values())


@pytest.mark.parametrize("asked", [False, True])
def test_what_an_engine_said_is_in_a_bundle_only_when_it_is_asked_for(
    box: Box, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    # given an engine that ended with words of a prompt, as did a trial and the tier in host RAM
    words = "ValueError: prompt: my diary"
    cause = diagnose(Exit(1, None), [words], Context()).model_copy(update={"evidence": words})
    reverted, tier = Reverted(tried=Pair(), cause=cause, at_s=NOW_S), HostKv(off=host_kv.blamed(cause))
    state = sample.box(Phase.FAILED, cause=cause, reverted=reverted, host_kv=tier, log_tail=(words,))
    events = [
        Event(id=str(number), at_s=NOW_S, kind=told.kind, severity=told.severity, text=told.text)
        for number, told in enumerate(happened(sample.box(), state))
    ]
    said = {
        "journalctl": message({"event": "engine.ended", "cause": cause.id, "title": cause.title}),
        "systemctl": f"StatusText={sentence(state, None, 30.0)}",
    }
    status = view(state, sample.gateway(), NOW_S).model_dump(mode="json")
    monkeypatch.setattr(Box, "daemon", lambda *_: httpx.Response(200, text=state.model_dump_json()))
    monkeypatch.setattr(Box, "gateway", lambda *_: httpx.Response(200, json=status))
    monkeypatch.setattr(bundle, "kept", lambda *_: events)
    monkeypatch.setattr(bundle, "_program", lambda *argv: said.get(argv[0], ""))

    # when a bundle is made
    found = texts(collect(box, engine_log=asked))

    # then each part that tells of the end has its words only if they were asked for
    parts = ("status.json", "box.json", "events.json", "journal.txt", "systemctl.txt")
    assert all("he engine ended with exit code 1" in found[name] for name in parts)
    assert {name for name in found if "diary" in found[name]} == (set(parts) if asked else set())


def test_a_box_that_does_not_run_still_tells_what_it_can(box: Box) -> None:
    key = add_seat(box.seats_file, "carla").key
    token = add_admin(box.admins_file, "boss").key
    found = texts(collect(box, engine_log=False))
    assert found["status.json"].startswith("not there: no appliance answers")
    assert json.loads(found["seats.json"])["seats"] == [{"name": "seat-1", "state": "active", "max_streams": None}]
    engine = json.loads(found["configuration.json"])["engine"]
    assert engine["env"] == {"HUB": MASK}
    assert found["journal.txt"] == "journalctl was asked\n"
    whole = "\n".join(found.values())
    for secret in (key, token, "carla", "boss", "abcd1234efgh", "a-secret-value"):
        assert secret not in whole


def test_a_secret_of_the_box_goes_from_every_part(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    (box.paths.runtime_dir / "engine-1.key").write_text("engine key of this start\n")
    (box.paths.state_dir / "cookie.secret").write_bytes(bytes(range(65, 97)))
    said = "it said: engine key of this start, a-secret-value, " + bytes(range(65, 97)).hex()
    monkeypatch.setattr(bundle, "_program", lambda *_: said)
    shown = texts(collect(box, engine_log=False))["journal.txt"]
    assert shown == f"it said: {MASK}, {MASK}, {MASK}"


@pytest.mark.parametrize("text", ["listen = 5\n", "[nonsense\n", '[engine]\nkind = "?"\n'])
def test_a_broken_configuration_costs_only_what_needs_it(box: Box, text: str) -> None:
    assert box.config_file is not None
    box.config_file.write_text(text)
    fresh = Box(box.config_file, {})
    found = texts(collect(fresh, engine_log=False))
    assert found["configuration.json"].startswith("not there: ")
    assert json.loads(found["versions.json"])["python"]
    assert "MemTotal" in found["proc/meminfo"]


def test_a_program_that_hangs_costs_its_deadline_and_one_that_is_missing_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bundle, "PROGRAM_S", 0.3)
    started_s = time.monotonic()
    assert "no answer within 0.3 s" in bundle._program("sleep", "30")
    assert time.monotonic() - started_s < 5
    assert "exit 3: " in bundle._program("sh", "-c", "echo x >&2; exit 3")
    with pytest.raises(OSError, match="moe-no-such-program"):
        bundle._program("moe-no-such-program")
