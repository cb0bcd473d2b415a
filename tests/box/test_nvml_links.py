"""appliance.box.nvml.Links with its real child process: PCIe links watched while something copies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.box.nvml import Links
from tests.fake_nvml import FakeNvml, Setup, scenarios

HANG_S = 1.0


def test_links_show_the_most_that_was_seen_and_not_what_is_last(tmp_path: Path) -> None:
    # given cards at generation 1 that wake up under load
    fake = FakeNvml(tmp_path, scenarios.SLEEPY_LINK)
    fake.load.touch()
    # when the load ends before the watch does
    with Links(60, fake.environ()) as links:
        fake.load.unlink()
    # then
    assert links.seen == {0: (5, 16), 1: (5, 16)}


def test_links_of_idle_cards_show_what_they_idle_at(tmp_path: Path) -> None:
    with Links(60, FakeNvml(tmp_path, scenarios.SLEEPY_LINK).environ()) as links:
        pass
    assert links.seen == {0: (1, 16), 1: (1, 16)}


def test_links_that_rise_while_they_are_watched_are_told_as_they_rise(tmp_path: Path) -> None:
    # given a child that watches an idle box
    fake = FakeNvml(tmp_path, scenarios.SLEEPY_LINK)
    argv = [sys.executable, "-I", "-m", "appliance.box.nvml_child", "20", "--links"]
    with subprocess.Popen(argv, env=fake.environ(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline()) == {"0": [1, 16], "1": [1, 16]}
        # when the load begins
        fake.load.touch()
        # then the next line has the higher generation, of one card or of both
        most = json.loads(child.stdout.readline())
        assert most["1"] == [5, 16]
        child.kill()


def test_links_of_a_driver_that_hangs_crashes_or_is_missing_are_empty(tmp_path: Path) -> None:
    for place, setup in enumerate([scenarios.HANGS_AT_INIT, Setup(crash="nvmlInitWithFlags"), scenarios.NO_DRIVER]):
        fake = FakeNvml(tmp_path / str(place), setup)
        with Links(60, fake.environ(), deadline_s=HANG_S) as links:
            pass
        assert links.seen == {}


def test_a_watch_ends_after_its_time(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-m", "appliance.box.nvml_child", "0.2", "--links"]
    environ = FakeNvml(tmp_path).environ()
    assert subprocess.run(argv, env=environ, capture_output=True, timeout=20, check=False).returncode == 0


def test_an_exception_in_the_body_is_not_swallowed_and_the_watch_ends(tmp_path: Path) -> None:
    links = Links(60, FakeNvml(tmp_path).environ())
    with pytest.raises(ValueError, match="copy failed"), links:
        raise ValueError("copy failed")
    assert links.seen == {0: (5, 16), 1: (5, 16)}


@pytest.mark.parametrize("written", ["hello", "[1]", '{"0": 5}', '{"first": [1, 2]}'])
def test_a_line_that_something_else_wrote_is_no_link(written: str) -> None:
    links = Links(60, {"PATH": "/usr/bin:/bin"})
    links._argv = ["sh", "-c", f"echo '{written}'; exec sleep 60"]
    with links:
        pass
    assert links.seen == {}
