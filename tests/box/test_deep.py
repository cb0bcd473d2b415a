"""The whole of `preflight --deep`, against fake libraries and a stand-in for torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.box.deep import FREE_BYTES, measure
from appliance.box.gpu import DeepReport, Gpu
from appliance.box.nvml import gather
from tests.fake_cuda import fake_cuda
from tests.fake_nvml import FakeNvml, scenarios
from tests.fake_torch import PYTHONPATH

PYTHON = Path(sys.executable)
UNTOUCHED: Mapping[str, str] = {"PATH": "/nonexistent"}


def deep(
    fake: FakeNvml, tmp_path: Path, *, deadline_s: float = 20.0, knobs: Mapping[str, object] | None = None
) -> DeepReport:
    environ = {**fake.environ(), "PYTHONPATH": PYTHONPATH}
    cards = gather(fake.root, environ=environ).gpus
    spelled = {"load": fake.load, **(knobs or {})}
    environ = fake_cuda(tmp_path, [card.bus_id for card in cards], spelled, environ)
    return measure(cards, engine_python=PYTHON, environ=environ, root=fake.root, deadline_s=deadline_s)


def test_a_link_that_sleeps_is_seen_at_its_speed_while_it_copies(tmp_path: Path) -> None:
    found = deep(FakeNvml(tmp_path, scenarios.SLEEPY_LINK), tmp_path)

    assert found.bandwidth is not None
    assert found.bandwidth.gen == {0: 5, 1: 5}
    assert found.bandwidth.width == {0: 16, 1: 16}
    assert found.bandwidth.alone == found.bandwidth.together == found.bandwidth.back == {0: 50.0, 1: 50.0}
    assert found.pinned_bytes == 1 << 30
    assert found.pin_s is not None
    assert found.nccl_p2p is True
    assert (found.bandwidth_error, found.pin_error, found.nccl_error, found.nccl_skipped) == ("", "", "", "")


def test_a_link_that_stays_slow_under_load_is_seen_so(tmp_path: Path) -> None:
    found = deep(FakeNvml(tmp_path, scenarios.SLOW_LINK), tmp_path, knobs={"h2d.1": 6.5})

    assert found.bandwidth is not None
    assert found.bandwidth.gen == {0: 5, 1: 2}
    assert found.bandwidth.alone == {0: 50.0, 1: 6.5}


def test_copies_that_hang_do_not_keep_nccl_from_being_tried(tmp_path: Path) -> None:
    found = deep(FakeNvml(tmp_path), tmp_path, deadline_s=3.0, knobs={"hang": "cuCtxSetCurrent"})

    assert found.bandwidth is None
    assert found.bandwidth_error == "HUNG: no end after 3 s (at: card 0: making its context)"
    assert found.nccl_p2p is True


def test_a_driver_that_tells_no_link_leaves_the_copies(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path)
    cards = gather(fake.root, environ=fake.environ()).gpus
    fake.configure(library=False)
    environ = fake_cuda(tmp_path, [card.bus_id for card in cards], {}, fake.environ())

    found = measure(cards, engine_python=None, environ=environ, root=fake.root)

    assert found.bandwidth is not None
    assert found.bandwidth.alone == {0: 50.0, 1: 50.0}
    assert found.bandwidth.gen == {}
    assert "engine_python" in found.nccl_skipped


CARD = Gpu(0, "GPU-0", "a card", "0000:41:00.0", 96 << 30, reserved_bytes=1 << 29, used_bytes=0)


@pytest.mark.parametrize(
    ("cards", "serves", "reason"),
    [
        ([], False, "no card answers"),
        ([CARD], True, "the engine is serving: its cards are in use"),
        ([replace(CARD, used_bytes=CARD.total_bytes - (3 << 29))], False, "card 0 is in use: 1024 MiB are free"),
    ],
)
def test_cards_that_are_in_use_are_left_alone(cards: list[Gpu], serves: bool, reason: str) -> None:
    found = measure(cards, engine_python=PYTHON, engine_serves=serves, environ=UNTOUCHED)

    assert found == DeepReport(at_s=found.at_s, bandwidth_skipped=reason, nccl_skipped=reason)


def test_two_gib_free_are_enough(tmp_path: Path) -> None:
    card = replace(CARD, reserved_bytes=None, used_bytes=CARD.total_bytes - FREE_BYTES)

    found = measure(
        [card], engine_python=None, environ=fake_cuda(tmp_path, [card.bus_id], {}, UNTOUCHED), root=tmp_path
    )

    assert found.bandwidth is not None
    assert found.bandwidth_skipped == ""
