"""What a box used and what it is, told and saved by its command line while it runs and after it stopped."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.box import Box, until


def usage(box: Box, *words: str) -> Any:
    done = box.cli("usage", "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_box_tells_what_was_used_while_it_runs_and_after_and_comes_back_from_a_backup(box: Box) -> None:
    for seat, tokens in (("a", 8), ("a", 8), ("b", 5)):
        assert box.chat(seat, max_tokens=tokens).status == 200
    until("the rows are there", lambda: usage(box)["total"]["requests"] == 3, 5.0)
    running = usage(box)
    assert {row["seat"]: (row["requests"], row["completion_tokens"]) for row in running["usage"]} == {
        "a": (2, 16),
        "b": (1, 5),
    }
    archive = box.home / "b.tar.gz"
    assert box.cli("backup", str(archive)).returncode == 0
    refused = box.cli("restore", str(archive))
    assert (refused.returncode, "another moe-appliance" in refused.stderr) == (78, True)
    assert box.chat("b").status == 200, "a refused restore disturbs nobody"
    assert box.stop() == 0
    assert usage(box)["total"]["requests"] == 4, "the last row was written before the end"
    assert box.cli("usage").stdout.splitlines()[-1].split()[:2] == ["all", "4"]
    done = box.cli("restore", str(archive))
    assert done.returncode == 0, done.stderr
    assert usage(box) == running
    box.start().wait_ready()
    assert box.chat("a").status == 200
    until("rows go on", lambda: usage(box, "--seat", "a")["total"]["requests"] == 3, 5.0)
