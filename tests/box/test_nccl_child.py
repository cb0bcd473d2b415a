"""nccl_child through deep_nccl, with a stand-in for torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from appliance.box.deep_nccl import Nccl, measure_nccl
from appliance.box.gpu import Gpu
from tests.fake_torch import PYTHONPATH

CARDS = [Gpu(index, f"GPU-{index}", "a card", f"0000:{index}1:00.0", 96 << 30) for index in range(2)]
PYTHON = Path(sys.executable)
DEADLINE_S = 20.0
HANG_S = 3.0
P2P_HUNG = "HUNG: no end after 3 s (at: all-reduce 1)"


def reduced(knob: str, *, deadline_s: float = DEADLINE_S, cards: list[Gpu] = CARDS, **environ: str) -> Nccl:
    return measure_nccl(
        cards, PYTHON, {**os.environ, "PYTHONPATH": PYTHONPATH, "FAKE_TORCH": knob, **environ}, deadline_s
    )


def processes_with(mark: str) -> list[str]:
    """Live processes whose environment has `mark`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("count", [2, 4])
def test_right_sums_with_peer_access_are_good(count: int) -> None:
    found = reduced("", cards=[Gpu(index, f"GPU-{index}", "a card", "", 1) for index in range(count)])

    assert found.p2p is True
    assert found.s is not None
    assert found.gb_s is not None
    assert (found.error, found.p2p_error, found.skipped) == ("", "", "")


def test_a_hang_with_peer_access_is_tried_without_it_and_leaves_no_process() -> None:
    mark = "MOE_TEST_MARK=nccl-hang-p2p"

    found = reduced("hang-p2p", deadline_s=HANG_S, MOE_TEST_MARK="nccl-hang-p2p")

    assert (found.p2p, found.p2p_error, found.error) == (False, P2P_HUNG, "")
    assert found.s is not None
    assert processes_with(mark) == []


def test_a_rank_that_never_joins_is_a_hang_at_the_start_of_nccl() -> None:
    assert reduced("deaf-p2p", deadline_s=HANG_S).p2p_error == "HUNG: no end after 3 s (at: starting NCCL)"


def test_an_answer_that_moved_nothing_is_caught_by_its_sum() -> None:
    found = reduced("wrong-p2p")

    assert found.p2p is False
    assert "the sum is wrong" in found.p2p_error


def test_a_rank_that_dies_is_named_and_takes_the_others_with_it() -> None:
    assert reduced("crash-p2p").p2p_error == "rank 1: ended by SIGSEGV"


def test_a_failure_with_and_without_peer_access_is_an_error_on_one_line() -> None:
    found = reduced("fail")

    assert found.s is None
    assert found.p2p is None
    assert "RuntimeError: NCCL error: unhandled cuda error" in found.error
    assert "NCCL_P2P_DISABLE=1" in found.error
    assert found.error.isprintable()


def test_an_engine_that_runs_without_peer_access_anyway_is_not_asked_for_it() -> None:
    good = reduced("", NCCL_P2P_DISABLE="1")
    bad = reduced("fail", NCCL_P2P_DISABLE="1")

    assert (good.p2p, good.p2p_error) == (False, "")
    assert "RuntimeError" in bad.error
    assert "NCCL_P2P_DISABLE" not in bad.error


@pytest.mark.parametrize(("knob", "words"), [("absent", "No module named 'torch'"), ("cpu", "without CUDA")])
def test_a_python_without_torch_says_nothing_about_the_cards(knob: str, words: str) -> None:
    found = reduced(knob)

    assert found.error == ""
    assert words in found.skipped
    assert "set engine_python in [preflight]" in found.skipped


def test_a_python_that_is_not_there_says_nothing_about_the_cards(tmp_path: Path) -> None:
    found = measure_nccl(CARDS, tmp_path / "python", os.environ, DEADLINE_S)

    assert found.error == ""
    assert f"No such file or directory: '{tmp_path / 'python'}'" in found.skipped


def test_no_place_for_the_rendezvous_says_nothing_about_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")

    found = reduced("")

    assert found.error == ""
    assert "/nonexistent" in found.skipped


def test_without_a_python_the_key_to_set_is_named() -> None:
    found = measure_nccl(CARDS, None, os.environ, DEADLINE_S)

    assert found == Nccl(skipped="the engine's Python is not known: set engine_python in [preflight]")


def test_one_card_has_nobody_to_talk_to() -> None:
    assert measure_nccl(CARDS[:1], PYTHON, os.environ, DEADLINE_S).skipped.startswith("one card")
