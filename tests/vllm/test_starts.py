"""Starts of the real vLLM that cannot work: the cause, the line that shows it, what to type, and no second try."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.conftest import MakeVllm
from tests.vllm.models import SHARD, variant
from tests.vllm.vllm_box import VllmBox

pytestmark = pytest.mark.vllm

Transcript = Callable[..., None]


@dataclass(frozen=True)
class Fault:
    """What is configured, and what must be said: parts of title, remedy and evidence."""

    id: str
    title: str
    remedy: str
    evidence: str
    engine: dict[str, Any] = field(default_factory=dict)


FAULTS = {
    "a truncated shard": Fault(
        "engine.shard_cut", "cut off or damaged", "moe-appliance checkpoint verify", "SafetensorError"
    ),
    "a KV cache of 10 MiB": Fault(
        "engine.kv_small",
        "One context of 4096 tokens needs",
        "set [engine] context_tokens = ",
        "ValueError: To serve at least one request",
        {"kv_cache_gib": 0.01},
    ),
    "an unknown flag": Fault(
        "engine.flag_unknown",
        "does not know the flag --nope-flag",
        "moe-appliance engine command",
        "error: unrecognized arguments: --nope-flag",
        {"args": ["--nope-flag", "1"]},
    ),
    "an unknown tool parser": Fault(
        "engine.tool_parser",
        "no tool call parser nope",
        "set [engine] tool_call_parser to one of",
        "invalid tool call parser: nope",
        {"tool_call_parser": "nope"},
    ),
}


@pytest.fixture
def cut_model(tiny_moe: Path, tmp_path: Path) -> Path:
    """Half of its weights are there."""
    folder = variant(tiny_moe, tmp_path / "cut")
    whole = (folder / SHARD).read_bytes()
    (folder / SHARD).unlink()
    (folder / SHARD).write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.mark.parametrize("what", FAULTS)
def test_a_start_that_cannot_work_fails_once_and_says_why(
    make_vllm: MakeVllm, tiny_moe: Path, cut_model: Path, transcript: Transcript, what: str
) -> None:
    # given
    fault = FAULTS[what]
    model = cut_model if what == "a truncated shard" else tiny_moe
    box = make_vllm(model=str(model), allow_degraded=True, **fault.engine)
    began_s = time.monotonic()
    # when
    box.start()
    engine = box.wait_phase("failed", 120)
    # then
    cause = engine["cause"]
    transcript(f"start with {what}", time.monotonic() - began_s, "", "", f"{cause['id']}: {cause['title']}")
    assert cause["id"] == fault.id
    assert fault.title in cause["title"]
    assert fault.remedy in cause["remedy"]
    assert fault.evidence in cause["evidence"]
    assert (cause["retry"], engine["restarts"], engine["retry_at_s"]) == (False, 0, None)
    refused_and_gone(box, cause["title"])


def test_a_model_that_is_not_there_is_found_before_anything_starts(make_vllm: MakeVllm, tmp_path: Path) -> None:
    box = make_vllm(model=str(tmp_path / "nowhere"))
    box.start()
    box.wait_phase("refused", 30)
    findings = {one["id"]: one for one in box.state()["findings"]}
    assert str(tmp_path / "nowhere") in findings["engine.model"]["observed"]
    assert "moe-appliance checkpoint fetch" in findings["engine.model"]["remedy"]
    refused_and_gone(box, "The model is not there")


def refused_and_gone(box: VllmBox, title: str) -> None:
    """The gateway is up and says that nothing serves, `status` says why, and nothing of the engine is left."""
    assert box.chat("a").status == 503
    assert " ".join(title.split())[:60] in " ".join(box.cli("status").stdout.split())
    assert box.stop() == 0
