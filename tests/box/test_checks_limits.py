"""appliance/box/checks: what is just enough is no finding, one step less is one; and effects name their causes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.box.checks import judge, linked
from appliance.box.facts import Counters, Facts
from appliance.box.gpu import Bandwidth, Gpu, GpuReport, Outcome, Relation
from appliance.box.host import Bridge, PciErrors, Xid
from appliance.box.needs import Needs
from appliance.box.topology_verdict import Grade, verdict
from appliance.units import GIB
from gateway.state import Severity
from tests.box.boxes import CARD_BYTES, bar, deep, facts, gpu, host, node, report

RESERVED = 615 * 1024**2
ROOM_GIB = (CARD_BYTES - RESERVED) / GIB


def card(**changes: object) -> Facts:
    return facts(gpus=report(gpu(0, **changes)))


def lanes(width: int) -> Facts:
    return card(link=replace(gpu(0).link, width_now=width))


def replays(now: int) -> Facts:
    box = card(link=replace(gpu(0).link, replays=now))
    return replace(box, first=Counters(at_s=1.0, replays={"0000:41:00.0": 7}))


def copies(rate: float) -> Facts:
    return replace(card(), deep=deep(bandwidth=Bandwidth(alone={0: rate}, together={}, gen={0: 5}, width={0: 16})))


def severity(box: Facts, check: str, needs: Needs) -> Severity | None:
    return next((found.severity for found in judge(box, needs) if found.id == check), None)


ONE = Needs(gpus=1)
FAIL, WARN = Severity.FAIL, Severity.WARN
MODES = {"/seats.toml": 0o646, "/admins.toml": 0o644}


@pytest.mark.parametrize(
    ("check", "enough", "less", "expected"),
    [
        ("vram.free", card(used_bytes=GIB), card(used_bytes=GIB + 1), FAIL),
        ("pcie.width", lanes(16), lanes(15), WARN),
        ("pcie.replay", replays(7), replays(8), WARN),
        ("bar1", card(bar1_bytes=CARD_BYTES), card(bar1_bytes=CARD_BYTES - 1), WARN),
        ("bw.h2d", copies(45.0), copies(44.9), WARN),
        ("shm", facts(host=host(shm_free_bytes=8 * GIB)), facts(host=host(shm_free_bytes=8 * GIB - 1)), WARN),
        ("max_map_count", facts(host=host(max_map_count=262_144)), facts(host=host(max_map_count=262_143)), WARN),
        ("throttle", card(throttle=("power cap",)), card(throttle=("thermal (software)",)), WARN),
        ("numactl", facts(host=host(numactl=False)), facts(host=host(numactl=False, nodes=(node(0), node(1)))), WARN),
    ],
)
def test_just_enough_is_no_finding_and_one_step_less_is_one(
    check: str, enough: Facts, less: Facts, expected: Severity
) -> None:
    assert severity(enough, check, Needs()) is None
    assert severity(less, check, Needs()) is expected


def test_a_little_swap_in_use_is_ordinary() -> None:
    assert severity(facts(host=host(swap_used_bytes=GIB // 10 - 1)), "swap", ONE) is None
    assert severity(facts(host=host(swap_used_bytes=GIB // 10)), "swap", ONE) is Severity.INFO


def test_copies_at_the_least_pace_are_a_warning_yet() -> None:
    assert severity(copies(20.0), "bw.h2d", ONE) is WARN
    assert severity(copies(19.9), "bw.h2d", ONE) is FAIL


def test_a_plan_that_fills_the_card_to_the_last_byte_fits() -> None:
    full = bar("gpu0", ROOM_GIB)
    assert full.total_bytes() == CARD_BYTES - RESERVED
    assert severity(card(), "vram.total", Needs(gpus=1, bars=(full,))) is None
    assert severity(card(reserved_bytes=RESERVED + 1), "vram.total", Needs(gpus=1, bars=(full,))) is FAIL


@pytest.mark.parametrize(("region", "expected"), [(511 * GIB - 1, None), (511 * GIB, FAIL)])
def test_a_region_of_511_gib_is_too_large(region: int, expected: Severity | None) -> None:
    assert severity(facts(), "mem.region", Needs(largest_region_bytes=region)) is expected


def test_what_others_hold_of_a_containers_memory_counts_until_our_engine_is_loaded() -> None:
    box = facts(host=host(cgroup_bytes=200 * GIB, cgroup_free_bytes=115 * GIB))
    needs = Needs(bars=(bar("node0", 100.0),))
    assert severity(box, "mem.cgroup", needs) is FAIL
    assert severity(box, "mem.cgroup", replace(needs, bars=(bar("node0", 99.0),))) is None
    assert severity(box, "mem.cgroup", replace(needs, own_pids=frozenset({1}))) is None


def test_one_file_that_others_may_write_is_a_failure_among_those_they_may_read() -> None:
    assert severity(facts(host=host(secret_modes=MODES)), "file.mode", ONE) is FAIL


def test_one_card_needs_a_driver_where_one_is_wanted() -> None:
    assert severity(facts(gpus=GpuReport(Outcome.NO_DRIVER)), "nvml.load", ONE) is FAIL


def test_a_bridge_above_one_card_alone_keeps_it_from_nobody() -> None:
    bridges = (Bridge("0000:40:01.1", ("ReqRedir",)),)
    assert severity(replace(card(), host=host(acs=bridges)), "acs", ONE) is None
    assert severity(facts(host=host(acs=bridges)), "acs", Needs(gpus=2)) is WARN


LOST = report(gpu(0), lost=("card 1: GPU is lost",))
BUSY = replace(facts(host=host(aer=(PciErrors("0000:41:00.0", 9, 0),))), gpus=replays(8).gpus)
FIRST = Counters(at_s=1.0, replays={"0000:41:00.0": 7}, corrected={"0000:41:00.0": 1})
OFF_THE_BUS = (Xid(79, "0000:81:00", "NVRM: Xid (PCI:0000:81:00): 79, GPU has fallen off the bus."),)


@pytest.mark.parametrize(
    ("box", "effect", "cause"),
    [
        (facts(gpus=LOST, host=host(xids=OFF_THE_BUS)), "xid.history", "gpu.lost"),
        (facts(gpus=GpuReport(Outcome.HUNG), host=host(xids=OFF_THE_BUS)), "xid.history", "nvml.load"),
        (replace(BUSY, first=FIRST), "pcie.replay", "pcie.aer"),
        (facts(host=host(nodes=(node(free_bytes=0),)), deep=deep(pin_error="no memory")), "mem.pin", "mem.node"),
    ],
)
def test_an_effect_names_the_cause_that_is_there(box: Facts, effect: str, cause: str) -> None:
    found = {finding.id: finding for finding in linked(judge(box, Needs(bars=(bar("node0", 100.0),))))}
    assert cause in found
    assert found[effect].depends_on == cause


def test_two_cards_of_which_nobody_says_anything_are_unknown_and_not_good() -> None:
    assert verdict({}, {}, [0, 1]).grade is Grade.UNKNOWN


def test_the_order_of_the_cards_does_not_hide_a_pair() -> None:
    cards: list[Gpu] = [gpu(1), gpu(0)]
    seen = verdict({(0, 1): Relation.SYS}, {0: 0, 1: 1}, [card.index for card in cards])
    assert (seen.grade, seen.pairs) == (Grade.SLOW, ((0, 1),))
