"""Whether the cards are free again, and who holds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.box.gpu import Gpu, GpuProcess, GpuReport, Outcome
from appliance.engine.vram import LIMIT_S, MARGIN_BYTES, Go, Held, Look, Wait, before, decide, look

GIB = 1 << 30
NOBODY = frozenset[int]()


def gpu(index: int = 0, used: int | None = GIB, *processes: GpuProcess, mig: tuple[bool, bool] | None = None) -> Gpu:
    bus = f"0000:4{index}:00.0"
    return Gpu(index, f"GPU-{index}", "RTX", bus, 96 * GIB, used_bytes=used, processes=processes, mig=mig)


def report(*gpus: Gpu, outcome: Outcome = Outcome.OK, error: str = "") -> GpuReport:
    return GpuReport(outcome, error=error, gpus=gpus)


CARDS = before(report(gpu(0), gpu(1)))[0]


def test_the_cards_before_a_start_are_remembered_by_what_they_hold() -> None:
    cards, why = before(report(gpu(0, 3 * GIB, GpuProcess(7, GIB, "Xorg")), gpu(1)))
    assert why == ""
    assert {uuid: (card.used_bytes, dict(card.held)) for uuid, card in cards.items()} == {
        "GPU-0": (3 * GIB, {7: GIB}),
        "GPU-1": (GIB, {}),
    }


@pytest.mark.parametrize("outcome", [Outcome.NO_DRIVER, Outcome.NO_LIBRARY, Outcome.NOT_LOADED])
def test_a_box_without_a_driver_is_not_waited_for_and_nothing_is_said(outcome: Outcome) -> None:
    assert before(report(outcome=outcome)) == ({}, "")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (report(gpu(0, mig=(True, True))), "MIG"),
        (report(gpu(0, None)), "does not say"),
        (report(outcome=Outcome.HUNG, error="no answer for 10 s"), "no answer for 10 s"),
    ],
)
def test_what_cannot_be_compared_later_is_not_waited_for_and_said(asked: GpuReport, why: str) -> None:
    cards, said = before(asked)
    assert cards == {}
    assert why in said


def test_cards_within_the_margin_are_free() -> None:
    seen = look(CARDS, report(gpu(0, GIB + MARGIN_BYTES), gpu(1)), NOBODY, NOBODY)
    assert decide(seen, (), 0.0, ()) == Go()


def test_memory_of_a_dying_engine_is_waited_for_and_shown() -> None:
    worker = GpuProcess(9, 70 * GIB, "VLLM::Worker")
    seen = look(CARDS, report(gpu(0, 72 * GIB, worker), gpu(1)), frozenset({9}), frozenset({9}))
    assert decide(seen, (), LIMIT_S - 1, ()) == Wait("waiting for the cards' memory (71.0 GiB held)")


def test_an_engines_own_process_that_holds_memory_after_the_limit_needs_a_reboot() -> None:
    worker = GpuProcess(9, 70 * GIB, "VLLM::Worker")
    seen = look(CARDS, report(gpu(0, 72 * GIB, worker), gpu(1)), frozenset({9}), frozenset({9}))
    held = decide(seen, (), LIMIT_S, ("NVRM: Xid (PCI:0000:40:00): 79, fell off", "NVRM: Xid (PCI:0000:40:00): 154"))
    assert isinstance(held, Held)
    assert (held.cause.id, held.cause.retry) == ("engine.vram_held", False)
    assert "process 9 (VLLM::Worker) 71,680 MiB" in held.cause.title
    assert "Xid" in held.cause.evidence
    assert "154" in held.cause.evidence


def test_memory_that_nobody_is_seen_to_hold_may_be_given_back_by_itself() -> None:
    held = decide(look(CARDS, report(gpu(0, 72 * GIB), gpu(1)), NOBODY, NOBODY), (), LIMIT_S, None)
    assert isinstance(held, Held)
    assert held.cause.retry
    assert "journalctl -k" in held.cause.remedy


def test_a_stranger_is_named_and_no_reason_to_wait() -> None:
    theirs = GpuProcess(5, 71 * GIB, "blender")
    seen = look(CARDS, report(gpu(0, 72 * GIB, theirs), gpu(1)), NOBODY, frozenset({5}))
    going = decide(seen, (), 0.0, ())
    assert isinstance(going, Go)
    assert [(holder.pid, holder.command, holder.ours) for holder in going.strangers] == [(5, "blender", False)]


def test_a_stranger_of_unknown_size_is_believed_only_where_nothing_of_ours_is_left() -> None:
    theirs, ours = GpuProcess(5, None, "game"), GpuProcess(9, 30 * GIB, "VLLM::Worker")
    alone = look(CARDS, report(gpu(0, 72 * GIB, theirs), gpu(1)), NOBODY, frozenset({5}))
    assert isinstance(decide(alone, (), 0.0, ()), Go)
    both = look(CARDS, report(gpu(0, 72 * GIB, theirs, ours), gpu(1)), frozenset({9}), frozenset({5, 9}))
    assert isinstance(decide(both, (), 0.0, ()), Wait)


def test_what_a_stranger_held_before_the_start_explains_nothing() -> None:
    theirs = GpuProcess(5, 10 * GIB, "Xorg")
    cards = before(report(gpu(0, 11 * GIB, theirs)))[0]
    seen = look(cards, report(gpu(0, 50 * GIB, theirs)), NOBODY, frozenset({5}))
    assert seen.held_bytes == 39 * GIB
    assert seen.strangers == ()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (report(outcome=Outcome.HUNG, error="no answer for 10 s"), "does not answer (no answer for 10 s)"),
        (report(gpu(1)), "GPU 0 does not answer any more"),
        (report(gpu(0, None), gpu(1)), "GPU 0 does not answer any more"),
    ],
)
def test_what_is_silent_now_has_given_nothing_back(asked: GpuReport, why: str) -> None:
    seen = look(CARDS, asked, NOBODY, NOBODY)
    waiting = decide(seen, (), 0.0, ())
    assert isinstance(waiting, Wait)
    assert why in waiting.step
    held = decide(seen, (), LIMIT_S, ())
    assert isinstance(held, Held)
    assert (held.cause.id, held.cause.retry) == ("engine.vram_unknown", True)


def test_what_outlives_sigkill_is_waited_for_also_without_cards() -> None:
    assert decide(Look(), ("process 9 (python)",), 5.0, ()) == Wait(
        "waiting for the former engine's end (process 9 (python))"
    )
    held = decide(Look(), ("process 9 (python)",), LIMIT_S, ())
    assert isinstance(held, Held)
    assert (held.cause.id, held.cause.retry) == ("engine.unkillable", False)


PROCESSES = st.builds(GpuProcess, st.integers(1, 6), st.none() | st.integers(0, 40 * GIB), st.just("p"))
PIDS = st.frozensets(st.integers(1, 6))


@given(
    st.integers(0, 96 * GIB), st.lists(PROCESSES, max_size=4, unique_by=lambda p: p.pid), PIDS, PIDS, st.floats(0, 300)
)
def test_it_always_comes_to_an_end_and_a_reboot_is_never_a_strangers_fault(
    used: int, processes: list[GpuProcess], own: frozenset[int], visible: frozenset[int], ended_for_s: float
) -> None:
    seen = look(CARDS, report(gpu(0, used, *processes), gpu(1)), own, visible)
    decided = decide(seen, (), ended_for_s, ())
    assert not isinstance(decided, Wait) or ended_for_s < LIMIT_S
    if isinstance(decided, Held) and not decided.cause.retry:
        assert any(process.pid in own for process in processes)
    if used <= GIB + MARGIN_BYTES:
        assert isinstance(decided, Go)
