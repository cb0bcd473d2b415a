"""`moe-appliance checkpoint show`, as a process: what it prints, for people and for programs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.hub_server import COMMIT, HubServer
from tests.checkpoint.packs.fixtures import PackFolder
from tests.checkpoint.packs.writer import INDEX, Spec, write
from tests.checkpoint.range_server import RangeServer

SPECS = [Spec("a.weight", "BF16", (4, 8)), Spec("b.weight", "F32", (2,))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model", {"model.safetensors": SPECS}, {"model_type": "unheard-of"})


def show(*words: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the verb; the cache is in a folder that does not exist unless one is given."""
    return subprocess.run(
        [sys.executable, "-m", "appliance", "checkpoint", "show", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"], "CACHE_DIRECTORY": "/proc/none", "COLUMNS": "100", **environ},
    )


def shown_json(*words: str | Path, **environ: str) -> dict[str, Any]:
    done = show(*words, "--json", **environ)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_released_checkpoint_is_shown_by_class(pack_folder: PackFolder) -> None:
    folder = pack_folder("released")

    found = shown_json(folder)
    text = show(folder)

    assert found["tensor_count"] == 96_085
    assert found["total_bytes"] == 510_286_023_000
    assert sum(found["classes"].values()) == sum(found["dtypes"].values()) == 510_286_023_000
    assert set(found["classes"]) == {
        "routed_experts", "shared_experts", "attention", "dense", "embedding", "head", "engram", "draft", "vision",
        "other",
    }  # fmt: skip
    experts = found["experts"]
    assert (experts["layers"], experts["per_layer"], experts["top_k"]) == (40, 384, 6)
    assert experts["bytes_each"] * 384 * 40 == found["classes"]["routed_experts"]
    assert (len(found["shards"]), found["missing"], found["notes"]) == (48, "", [])
    assert found["fetched"] == {"requests": 0, "header_bytes": 0, "bytes": 0}
    assert (text.returncode, text.stderr) == (0, "")
    assert "96,085 tensors, 510,286,023,000 bytes = 475.241 GiB, 48 files" in text.stdout
    assert "routed experts" in text.stdout
    assert f"layers 0 to 39: {experts['bytes_each']:,} bytes an expert" in text.stdout


def test_an_unknown_family_has_totals_and_says_what_a_plan_lacks(folder: Path) -> None:
    found = shown_json(folder)
    text = show(folder)

    assert (found["family"], found["total_bytes"]) == ("unknown", 72)
    assert found["classes"]["other"] == 72
    assert found["experts"]["layers"] == 0
    assert found["missing"]
    assert text.returncode == 0
    assert "no plan can be made for it: " in text.stdout


def test_a_hub_and_a_url_say_what_was_fetched(folder: Path, tmp_path: Path) -> None:
    with RangeServer(folder) as server, HubServer(folder, server) as hub:
        hub.token = "sesame"
        environ = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "sesame", "CACHE_DIRECTORY": str(tmp_path / "cache")}
        found = shown_json("org/name", "--revision", "main", **environ)
        again = shown_json("org/name@main", **environ)
        text = show(server.url)

    assert (found["revision"], found["origin"]) == (COMMIT, "org/name@main")
    assert found["fetched"]["requests"] == 5
    assert found["fetched"]["header_bytes"] > 0
    assert again["fetched"]["header_bytes"] == 0
    assert "of headers; no weights" in text.stdout


def test_a_broken_checkpoint_is_one_error_with_a_remedy(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"<html>")

    done = show(folder)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {folder}: model.safetensors: an HTML or XML page in place of data")
    assert "remedy: " in done.stderr


def test_names_in_files_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    evil = "a\x1b]0;x\x07[bold]\u202e"
    folder = write(tmp_path, {"1.safetensors": [Spec(evil, "U8", (1,)), Spec("b", "U8", (1,))]})
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][evil]
    (folder / INDEX).write_text(json.dumps(index))

    done = show(folder)

    assert "tensor a\\x1b]0;x\\x07[bold]\\u202e: is not in the index" in done.stderr
    assert "\x1b" not in done.stderr
    assert "\x07" not in done.stderr


def test_a_token_is_in_no_output(folder: Path) -> None:
    with RangeServer(folder) as server, HubServer(folder, server) as hub:
        hub.token = "another"
        done = show("org/name", HF_ENDPOINT=hub.url, HF_TOKEN="sesame")

    assert done.returncode == 1
    assert "sesame" not in done.stdout + done.stderr
    assert "export HF_TOKEN=" in done.stderr


def test_a_terminal_sees_progress(pack_folder: PackFolder) -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "appliance", "checkpoint", "show", str(pack_folder("released")), "--json"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=60,
            check=False,
            env={"PATH": os.environ["PATH"], "TERM": "xterm", "COLUMNS": "80"},
        )
        os.close(theirs)
        said = os.read(ours, 65_536).decode()
    finally:
        os.close(ours)

    assert "headers" in said
    assert "/48" in said
    assert json.loads(done.stdout)["tensor_count"] == 96_085
