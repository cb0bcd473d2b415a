"""The operator at work on a real box: pause, drain, a seat off, a bundle; and what outlives a killed gateway."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest

from tests.e2e.box import Box, kill9, until
from tests.e2e.client import Call, chat_body, request_bytes
from tests.e2e.conftest import MakeBox

SLOW = {"time_scale": 1.0, "decode_tok_per_s": 20.0}


def said(box: Box, *words: str) -> str:
    done = box.cli(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def verdict(box: Box) -> str:
    status, seen = box.control("GET", "/status", socket_name="gateway")
    assert status == 200
    return str(seen["verdict"]["sentence"])


def dialects(box: Box, seat: str) -> dict[str, Call]:
    """One short stream in each dialect."""
    user = [{"role": "user", "content": "hello"}]
    bodies = {
        "/v1/chat/completions": json.loads(chat_body()),
        "/v1/completions": {"prompt": "hello", "stream": True, "max_tokens": 8, "model": "fake-model"},
        "/v1/responses": {"input": user, "stream": True, "max_output_tokens": 8, "model": "fake-model"},
        "/v1/messages": {"messages": user, "stream": True, "max_tokens": 8, "model": "fake-model"},
    }
    key = box.keys[seat]
    return {
        path: box.call(request_bytes("POST", path, key, json.dumps(body).encode())) for path, body in bodies.items()
    }


def test_paused_requests_wait_with_heartbeats_and_are_served_after_resume(box: Box) -> None:
    assert "nobody is let through" in said(box, "pause")
    calls = [box.post(seat) for seat in ("a", "b")]
    until("both wait", lambda: box.waiting() == 2, 5)
    for call in calls:
        call.wait_bytes(b"\n:", 10)
    assert "Paused by" in verdict(box)
    assert "2 wait" in verdict(box)
    assert "served again" in said(box, "resume")
    assert all(call.wait().done for call in calls)


def test_drained_every_dialect_is_refused_with_a_time_while_a_stream_goes_on(make_box: MakeBox) -> None:
    box = make_box().start().wait_ready()
    [stream] = box.streams(("a",), max_tokens=400)
    assert "new requests are refused" in said(box, "drain")
    for path, call in dialects(box, "b").items():
        answer = call.wait()
        assert answer.status == 503, path
        assert 10 <= int(answer.headers["retry-after"]) <= 59
        assert answer.headers["x-moe-reject-reason"] == "maintenance"
        assert b"lets no new requests in" in answer.body
    assert box.get("/ready").status == 503
    assert box.get("/health").status == 200
    assert verdict(box).startswith("Drained by")
    assert verdict(box).endswith("moe-appliance resume")
    assert stream.wait().done, "it went on to its end"
    said(box, "resume")
    assert box.chat("b").done


def test_a_killed_gateway_is_still_paused_and_a_new_engine_opens_nothing(box: Box) -> None:
    said(box, "pause")
    before = box.gateway_pid
    kill9(before)
    box.wait_state("another gateway", lambda s: s["gateway"]["pid"] not in (None, before), 10)
    box.wait_ready()
    call = box.post("a")
    until("it waits", lambda: box.waiting() == 1, 5)
    said(box, "restart")
    call.wait()
    box.wait_ready()
    call = box.post("a")
    until("it waits for the new engine as well", lambda: box.waiting() == 1, 5)
    said(box, "resume")
    assert call.wait().done


def test_a_seat_that_is_switched_off_is_refused_and_its_stream_ends_in_time(make_box: MakeBox) -> None:
    box = make_box(tables={"admission": {"seat_grace_s": 0.5}}).start().wait_ready()
    before = box.seats_file.read_bytes()
    [mine] = box.streams(("a",))
    [others] = box.streams(("b",), max_tokens=300)
    assert "within 0.5 s" in said(box, "seats", "off", "a")
    refused = box.chat("a")
    assert refused.status == 403
    assert b"switched off" in refused.body
    error = mine.wait(10).in_stream_error
    assert error is not None
    assert error["code"] == "seat_gone"
    assert others.wait().done
    assert box.seats_file.read_bytes() == before
    said(box, "reload")
    assert box.chat("a").status == 403, "reading the file again brings nobody back"
    said(box, "seats", "on", "a")
    assert box.chat("a").done


def test_on_a_disk_that_takes_nothing_a_seat_goes_off_and_that_is_kept_once_there_is_room(box: Box) -> None:
    blocked = box.home / "state/overlay.json.new"
    blocked.mkdir()
    try:
        told = said(box, "seats", "off", "a")
        assert "would be lost at a restart" in told
        assert f"df -h {blocked.parent}" in told
        assert box.chat("a").status == 403
        assert "overlay.unkept" in said(box, "status")
    finally:
        blocked.rmdir()
    until("the finding goes", lambda: "overlay.unkept" not in said(box, "status"), 15, 0.5)
    kill9(box.gateway_pid)
    box.wait_ready()
    assert box.chat("a").status == 403
    [row] = [row for row in json.loads(said(box, "seats", "list", "--json"))["seats"] if row["name"] == "a"]
    assert row["off_by"]
    said(box, "seats", "on", "a")


def test_what_was_done_is_told_with_who_did_it(box: Box) -> None:
    said(box, "pause")
    said(box, "resume")
    failed = box.cli("seats", "off", "nobody")
    assert failed.returncode == 1
    assert "there is no seat nobody" in failed.stderr
    lines = [json.loads(line) for line in said(box, "events", "--json").splitlines()]
    mine = [(line["kind"], line["who"]) for line in lines if line["kind"].startswith("operator.")]
    user = "root" if os.geteuid() == 0 and "SUDO_USER" not in os.environ else mine[0][1]
    assert mine == [("operator.mode", user), ("operator.mode", user), ("operator.refused", user)]
    assert any(line["kind"] == "engine.phase" for line in lines), "the daemon's are among them"
    assert box.log.count('"operator.action"') == 3


# The bundle


def texts_of(bundle: Path) -> dict[str, str]:
    with tarfile.open(bundle) as archive:
        found = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.removeprefix("moe-appliance/")] = file.read().decode()
        return found


def test_the_bundle_of_a_live_box_holds_no_secret_no_prompt_and_no_name(make_box: MakeBox) -> None:
    knobs = {"load_log": ["a request asked for pelicans"], "die_on_marker": "DIE", "last_words": "it was about herons"}
    box = make_box(knobs=knobs, environ={"SUDO_USER": "jane.doe"}).start().wait_ready()
    box.post("a", text="DIE").wait()
    box.wait_state(
        "it died", lambda s: "herons" in str(s["engine"]["log_tail"]) and s["engine"]["phase"] == "ready", 30
    )
    said(box, "pause")
    said(box, "resume")
    engine = box.state()["engine"]
    secrets = {
        *box.keys.values(),
        box.admin_key,
        Path(engine["key_file"]).read_text().strip(),
        (box.home / "state/cookie.secret").read_bytes().hex(),
    }
    who = ["jane.doe"] if os.geteuid() == 0 else []
    digests = [line.split('"')[1] for line in box.seats_file.read_text().splitlines() if "digest" in line]
    assert box.chat("a", text="a prompt about the moon").done
    done = box.cli("doctor", "--out", str(box.home / "bundle.tar.gz"))
    assert done.returncode in (0, 1), done.stderr
    bundle = box.home / "bundle.tar.gz"
    assert bundle.stat().st_mode & 0o777 == 0o600
    found = texts_of(bundle)
    whole = "\n".join(found.values())
    for secret in (*secrets, *digests, "about the moon", "pelicans", "herons", *who):
        assert secret not in whole
    assert json.loads(found["status.json"])["verdict"]["rule"] > 0
    assert json.loads(found["box.json"])["engine"]["phase"] == "ready"
    assert "left out" in found["box.json"]
    assert json.loads(found["configuration.json"])["engine"]["env"] == {"PYTHONPATH": "[removed]"}
    assert "MemTotal" in found["proc/meminfo"]
    assert box.cli("doctor", "--out", str(bundle)).returncode == 1, "never over a file that is there"


@pytest.mark.parametrize("broken", ["", "listen = 5\n", "[seats.x\n"])
def test_the_bundle_can_be_had_when_nothing_runs(make_box: MakeBox, broken: str) -> None:
    box = make_box()
    if broken.startswith("["):
        box.seats_file.write_text(broken)
    elif broken:
        box.config.write_text(broken)
    done = box.cli("doctor", "--out", str(box.home / "bundle.tar.gz"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    found = texts_of(box.home / "bundle.tar.gz")
    assert found["status.json"].startswith("not there: ")
    assert "python" in json.loads(found["versions.json"])
    assert ("appliance.toml" if broken == "listen = 5\n" else "no appliance answers") in done.stdout.replace("\n", " ")
