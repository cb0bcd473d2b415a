"""What ends `run` and `check` before anything is started: exit 78, with the cause named and a remedy."""

from __future__ import annotations

import subprocess

import pytest

from tests.e2e.box import Box
from tests.e2e.conftest import MakeBox

EXIT_CONFIG = 78


def refused(box: Box, verb: str, environ: dict[str, str] | None = None) -> str:
    """Run the verb, which must end with 78; what it said."""
    done = subprocess.run(
        box.argv(verb),
        cwd=box.home,
        env=box.environ() | (environ or {}),
        capture_output=True,
        text=True,
        timeout=15,
    )
    assert done.returncode == EXIT_CONFIG, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert "remedy:" in done.stderr
    return done.stderr


def test_second_daemon_on_the_same_folder_and_on_the_same_port(shared_box: Box, make_box: MakeBox) -> None:
    said = refused(shared_box, "run")
    assert f"pid {shared_box.pid}" in said
    assert str(shared_box.home / "state") in said
    assert "moe-appliance stop" in said
    other = make_box("other", port=shared_box.port)
    said = refused(other, "run")
    assert f"127.0.0.1:{shared_box.port} is in use" in said
    assert f"ss -ltnp 'sport = :{shared_box.port}'" in said
    assert not other.left()
    assert shared_box.chat("a").done
    assert shared_box.state()["gateway"]["restarts"] == 0


def test_same_runtime_folder_with_another_state_folder(shared_box: Box, make_box: MakeBox) -> None:
    other = make_box("other")
    text = other.config.read_text()
    other.config.write_text(text.replace(str(other.runtime), str(shared_box.runtime)))
    assert f"pid {shared_box.pid}" in refused(other, "run")
    assert shared_box.chat("a").done


@pytest.mark.parametrize("verb", ["run", "check"])
def test_unknown_key_is_named_with_file_and_line(make_box: MakeBox, verb: str) -> None:
    box = make_box(tables={"gateway": {"drain": 3}})
    line = box.config.read_text().splitlines().index("drain = 3") + 1
    said = refused(box, verb)
    assert f"{box.config}:{line}" in said
    assert "gateway.drain" in said
    assert "drain_s" in said


def test_unknown_variable_is_named(make_box: MakeBox) -> None:
    said = refused(make_box(), "run", {"MOE_APPLIANCE_LISTE": "127.0.0.1:1"})
    assert "MOE_APPLIANCE_LISTE " in said
    assert "MOE_APPLIANCE_LISTEN" in said


def test_broken_seats_are_named_with_line_and_key(make_box: MakeBox) -> None:
    box = make_box()
    text = box.seats_file.read_text()
    box.seats_file.write_text(text + "max_stream = 2\n")
    said = refused(box, "check")
    assert f"{box.seats_file}:{len(text.splitlines()) + 1}" in said
    assert "seats.h.max_stream" in said


def test_an_address_that_this_machine_does_not_have(make_box: MakeBox) -> None:
    box = make_box()
    box.config.write_text(box.config.read_text().replace("127.0.0.1:", "192.0.2.1:"))
    assert "192.0.2.1" in refused(box, "run")
