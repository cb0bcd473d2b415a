"""What was measured becomes a sentence, and nobody else's process is ever to be ended by us."""

from __future__ import annotations

from appliance.engine.failures import VramHolder
from appliance.engine.failures.observed import collective_hang, vram_held
from appliance.units import GIB

OURS = VramHolder(5, "VLLM::EngineCore", 10 << 20, ours=True)
FOREIGN = VramHolder(6, "train\x1b[2J", (10 << 20) + 1)


def test_a_hang_names_figures_step_and_what_to_try() -> None:
    cause = collective_hang((GIB, 2 * GIB), 99.6, 125.4, "joining the cards")
    assert cause.title == (
        "The cards wait for each other for ever at 'joining the cards': 1.0 GiB, 2.0 GiB on them, 100 % of a processor,"
        " and no line in the log for 125 s."
    )
    assert "--disable-custom-all-reduce" in cause.remedy
    assert "ever:" in collective_hang((GIB,), 100, 120).title


def test_memory_that_our_own_process_holds_needs_a_reboot() -> None:
    cause = vram_held((OURS,), 120)
    assert "the engine's own process holds it: process 5 (VLLM::EngineCore) 10 MiB." in cause.title
    assert "reboot" in cause.remedy
    assert not cause.retry


def test_a_process_that_is_not_ours_is_named_and_left_alone() -> None:
    cause = vram_held((OURS, FOREIGN), 120)
    assert "a process that is not ours holds it" in cause.title
    assert "process 6 (train\\x1b[2J) 11 MiB" in cause.title
    assert "ps -o pid,args -p 6," in cause.remedy
    assert "kill" not in cause.remedy


def test_memory_that_nobody_holds_is_said_to_be_lost() -> None:
    cause = vram_held((), 120)
    assert cause.title == "The cards' memory was not free 120 s after the engine's end; nobody holds it."
    assert "reboot" in cause.remedy
