"""Seats that change while the box runs: at once, said so, and never half."""

from __future__ import annotations

import json
import os
import signal
import time

from tests.e2e.box import Box, until
from tests.e2e.client import Answer, chat_body, request_bytes

EFFECT_S = 1.0
TAKEN = "The running gateway has taken it."


def chat_with(box: Box, key: str) -> Answer:
    """A short completion with a key that is not of the box's first ones."""
    return box.call(request_bytes("POST", "/v1/chat/completions", key, chat_body())).wait()


def test_seats_added_rotated_and_disabled_by_command_count_at_once(shared_box: Box) -> None:
    gateway_pid = shared_box.gateway_pid
    added = shared_box.cli("seats", "add", "new")
    assert added.returncode == 0, added.stderr
    assert TAKEN in added.stderr
    first_key = added.stdout.strip()
    assert chat_with(shared_box, first_key).done

    rotated = shared_box.cli("seats", "rotate", "new", "--now")
    assert TAKEN in rotated.stderr
    assert chat_with(shared_box, rotated.stdout.strip()).done
    assert chat_with(shared_box, first_key).status == 401

    running = shared_box.streams(["a"])[0]
    disabled = shared_box.cli("seats", "disable", "a")
    assert TAKEN in disabled.stderr
    answer = shared_box.chat("a")
    assert answer.status == 403
    assert answer.headers["x-should-retry"] == "false"
    assert running.answer.ended_s is None, "a running stream has 30 s"
    running.close()
    enabled = shared_box.cli("seats", "enable", "a")
    assert TAKEN in enabled.stderr
    assert shared_box.chat("a").done
    assert shared_box.gateway_pid == gateway_pid


def test_a_file_changed_by_hand_counts_within_a_second_or_two_and_at_once_with_a_hangup(shared_box: Box) -> None:
    text = shared_box.seats_file.read_text()
    shared_box.seats_file.write_text(text.replace("[seats.b]", "[seats.b]\ndisabled = true"))
    os.kill(shared_box.pid, signal.SIGHUP)
    hangup_s = time.monotonic()
    until("b is refused", lambda: shared_box.chat("b").status == 403, EFFECT_S)
    print(f"MEASURED SIGHUP took effect after {time.monotonic() - hangup_s:.2f} s")
    shared_box.seats_file.write_text(text)
    written_s = time.monotonic()
    until("b is served", lambda: shared_box.chat("b").status == 200, 2.5)
    print(f"MEASURED a file changed by hand counted after {time.monotonic() - written_s:.2f} s")


def test_broken_seats_keep_the_old_ones_and_are_shown(shared_box: Box) -> None:
    text = shared_box.seats_file.read_text()
    shared_box.seats_file.write_text(text.replace("[seats.b]", "[seats.b]\nmax_stream = 3"))
    line = text.splitlines().index("[seats.b]") + 2
    said = shared_box.cli("reload")
    assert said.returncode == 1
    assert f"{shared_box.seats_file}:{line}" in said.stderr
    assert "max_stream" in said.stderr
    assert shared_box.chat("b").done
    assert f"seats.toml:{line}" in shared_box.cli("status").stdout
    shown = shared_box.control("GET", "/status", socket_name="gateway")[1]
    assert "max_stream" in json.dumps(shown)
    edit = shared_box.cli("seats", "add", "new")
    assert edit.returncode != 0, "an edit of a broken file would hide the fault"
    shared_box.seats_file.write_text(text)
    mended = shared_box.cli("reload")
    assert (mended.returncode, mended.stdout) == (0, f"reloaded: {text.count('[seats.')} seats\n")
    shown = shared_box.control("GET", "/status", socket_name="gateway")[1]
    now = json.dumps([shown["verdict"], shown["files"], shown["findings"]])
    assert "max_stream" not in now.replace("max_streams", ""), "only the events tell of it still"
