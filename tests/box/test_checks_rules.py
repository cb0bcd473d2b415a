"""appliance/box/checks: what holds for every check and for all facts."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.box import checks
from appliance.box.checks import page as docs
from appliance.box.facts import Counters, Facts
from appliance.box.gpu import Bandwidth, DeepReport, Gpu, GpuProcess, GpuReport, Outcome, Relation
from appliance.box.host import Host
from appliance.box.needs import Needs
from appliance.units import GIB
from gateway.state import Severity
from gateway.status.findings import arranged
from tests.box.boxes import bar, deep, facts, gpu, host, report
from tests.box.test_checks_cases import CASES, said

ENOUGH = settings(max_examples=200, deadline=None)
NEEDS = st.builds(
    Needs,
    gpus=st.integers(0, 4),
    gpu_names=st.sampled_from([(), ("L40S",)]),
    capability=st.sampled_from([None, (12, 0), (99, 0)]),
    bars=st.lists(
        st.builds(bar, st.sampled_from(["gpu0", "gpu1", "gpu9", "node0", "node7", "host"]), st.floats(0, 900)),
        max_size=4,
    ).map(tuple),
    largest_region_bytes=st.sampled_from([None, 0, 2**40]),
    own_pids=st.sampled_from([frozenset[int](), frozenset({1})]),
    visible=st.sampled_from([None, (), ("1",), ("1", "0"), ("GPU-",), ("7",)]),
)
BOXES = [box for box, _, _, _, _ in CASES.values()] + [facts()]


def without(value: Any, drawn: st.DataObject, keep: tuple[str, ...]) -> Any:
    """The value with some of its fields as they are when nothing could be read."""
    empty = type(value)(**{name: getattr(value, name) for name in keep})
    names = [field.name for field in fields(value) if field.name not in keep]
    gone = drawn.draw(st.sets(st.sampled_from(names)))
    return replace(value, **{name: getattr(empty, name) for name in gone})


def thinned(box: Facts, drawn: st.DataObject) -> Facts:
    """The box with facts missing at random, at every depth."""
    if box.gpus is not None:
        cards = tuple(
            without(card, drawn, ("index", "uuid", "name", "bus_id", "total_bytes")) for card in box.gpus.gpus
        )
        box = replace(box, gpus=without(replace(box.gpus, gpus=cards), drawn, ("outcome",)))
    if box.host is not None:
        box = replace(box, host=without(box.host, drawn, ()))
    if box.deep is not None:
        box = replace(box, deep=without(box.deep, drawn, ("at_s",)))
    gone = drawn.draw(st.sets(st.sampled_from(["gpus", "host", "deep", "first"])))
    return replace(box, **{name: None for name in gone})


@ENOUGH
@given(st.data(), st.sampled_from(BOXES), st.sampled_from([None, *Outcome]), NEEDS)
def test_missing_facts_raise_nothing_and_every_finding_is_whole(
    drawn: st.DataObject, box: Facts, outcome: Outcome | None, needs: Needs
) -> None:
    if outcome is not None and box.gpus is not None:
        box = replace(box, gpus=replace(box.gpus, outcome=outcome))
    found = checks.judge(thinned(box, drawn), needs)
    for finding in found:
        assert finding.title
        assert finding.observed
        assert finding.required
        assert finding.remedy
        assert finding.id in checks.IDS
        assert "None" not in said(finding)
    assert max(Counter(finding.id for finding in found).values(), default=0) <= 1


@ENOUGH
@given(st.data(), st.lists(st.sampled_from(BOXES), min_size=2, max_size=6), NEEDS)
def test_folding_hides_nothing_and_makes_no_circle(drawn: st.DataObject, boxes: list[Facts], needs: Needs) -> None:
    """A box with parts of several bad ones."""
    pick = [drawn.draw(st.sampled_from(boxes)) for _ in range(4)]
    box = Facts(**{**{f.name: getattr(pick[0], f.name) for f in fields(Facts)}, "host": pick[1].host})
    box = replace(box, deep=pick[2].deep, first=pick[3].first)
    found = checks.linked(checks.judge(box, needs))
    rows = arranged(found)
    shown = [row.id for row in rows] + [child.id for row in rows for child in row.folded]
    assert sorted(shown) == sorted(finding.id for finding in found)
    standing = {row.id for row in rows}
    by_id = {finding.id: finding for finding in found}
    for finding in found:
        assert (finding.depends_on not in by_id) == (finding.id in standing)


def test_unknown_facts_are_silence() -> None:
    bare = Facts("x86_64", frozenset(), 1, None, None, (3, 11, 0), 0, "127.0.0.1")
    needs = Needs(gpus=2, bars=(bar("gpu0", 999), bar("node0", 999), bar("host", 999)), largest_region_bytes=2**50)
    assert checks.judge(bare, needs) == ()
    assert checks.judge(replace(bare, host=Host()), needs) == ()
    cards = (Gpu(0, "", "a", "0000:41:00.0", 2**40), Gpu(1, "", "a", "0000:81:00.0", 2**40))
    unread = GpuReport(Outcome.OK, gpus=cards)
    assert checks.judge(replace(bare, gpus=unread, deep=DeepReport(0.0), first=Counters(0.0)), Needs(gpus=2)) == ()


def test_every_check_has_a_case_here_and_every_case_a_documented_check() -> None:
    judged = {check.id for check in checks.CHECKS}
    assert {id_ for _, _, id_, _, _ in CASES.values()} == judged
    assert set(checks.CAUSES) <= judged
    causes = {cause for causes in checks.CAUSES.values() for cause in causes}
    assert causes - judged == {"plan.fits", "plan.host"}


def test_the_page_has_a_row_for_every_check_and_no_other() -> None:
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \|", docs.page(), re.MULTILINE)
    assert sorted(rows) == sorted(checks.IDS)
    assert len(rows) == len(checks.CHECKS) + len(checks.DEMO_CHECKS)
    assert all(line.count("|") == 7 for line in docs.page().splitlines() if line.startswith("| `"))


def test_the_page_names_every_severity_that_a_check_gives() -> None:
    words = {check.id: check.severity for check in checks.CHECKS}
    for _, _, id_, severity, _ in CASES.values():
        assert severity.name in words[id_]


def test_all_checks_of_the_table_of_facts_are_there() -> None:
    table = """nvml.load nvml.mismatch dev.nodes gpu.count gpu.model mig.off cc.off vram.total vram.free ecc.mode
    gpu.remap topo.pair pcie.width pcie.gen pcie.replay pcie.aer bw.h2d bw.together bar1 iommu acs uvm.hmm nccl.smoke
    mem.node mem.cgroup mem.region mem.pin memlock shm thp swap overcommit max_map_count power throttle persistence
    xid.history numactl file.mode ld.preload"""
    assert set(table.split()) <= checks.IDS


def test_good_boxes_of_many_cards_are_clean() -> None:
    four = report(*(gpu(index) for index in range(4)), p2p=None)
    nodes = {card.bus_id: 0 for card in four.gpus}
    box = facts(
        gpus=replace(four, relations=dict.fromkeys(four.relations or (), Relation.NV)), host=host(gpu_nodes=nodes)
    )
    assert [finding for finding in checks.judge(box, Needs(gpus=4)) if finding.severity is not Severity.INFO] == []
    assert checks.judge(replace(box, deep=deep()), Needs(gpus=4)) == ()


OTHERS = GpuProcess(4711, 80 * GIB, "somebody's")
FOUR = facts(
    gpus=report(
        gpu(0),
        gpu(1),
        gpu(2),
        gpu(3, mig=(True, True), used_bytes=80 * GIB, processes=(OTHERS,), remap_failed=True, persistence=False),
    ),
    deep=deep(
        bandwidth=Bandwidth(alone={0: 55.0, 1: 55.0, 2: 55.0, 3: 5.0}, together={}, gen={3: 1}, width={3: 4}),
    ),
)


def ids(box: Facts, needs: Needs) -> list[str]:
    return [finding.id for finding in checks.judge(box, needs)]


def test_a_card_that_the_engine_does_not_use_is_nobodys_concern() -> None:
    assert {"mig.off", "vram.free", "gpu.remap", "bw.h2d", "pcie.gen"} <= set(ids(FOUR, Needs()))
    assert ids(FOUR, Needs(gpus=2)) == ["gpu.count"]
    assert ids(FOUR, Needs(gpus=2, visible=("1", "2"))) == []
    assert "vram.free" in ids(FOUR, Needs(gpus=2, visible=("0", "3")))


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, [0, 1, 2, 3]),
        (("2", "0"), [2, 0]),
        (("GPU-3",), [3]),
        (("GPU-",), []),  # of several
        (("1", "9", "2"), [1]),  # CUDA stops at the first that is none
        (("1", "1"), [1]),
        (("",), []),
        (("-1",), []),
    ],
)
def test_the_cards_that_may_be_seen_are_named_as_cuda_names_them(
    visible: tuple[str, ...] | None, seen: list[int]
) -> None:
    assert FOUR.gpus is not None
    assert [card.index for card in checks.seen_of(FOUR.gpus.gpus, visible)] == seen


def test_cards_that_are_hidden_by_the_environment_are_missing_and_it_is_said_by_what() -> None:
    (finding,) = checks.judge(facts(), Needs(gpus=2, visible=("1",)))
    assert (finding.id, finding.severity) == ("gpu.count", Severity.FAIL)
    assert "CUDA_VISIBLE_DEVICES=1" in finding.observed
    assert "CUDA_VISIBLE_DEVICES=0,1" in finding.remedy


def test_a_plans_bars_are_for_the_engines_cards_in_its_order() -> None:
    small = facts(gpus=report(gpu(0, total_bytes=8 * GIB), gpu(1)))
    needs = Needs(gpus=1, visible=("1", "0"), bars=(bar("gpu0", 80.0),))
    assert "vram.total" not in ids(small, needs)
    (finding,) = [f for f in checks.judge(small, replace(needs, visible=("0",))) if f.id == "vram.total"]
    assert finding.observed.startswith("gpu0 has")


def test_a_container_with_some_of_the_machines_cards_is_no_fault() -> None:
    nodes = {
        "/dev/nvidiactl": "",
        "/dev/nvidia-uvm": "",
        "/dev/nvidia0": "",
        "/dev/nvidia1": "No such file or directory",
    }
    box = facts(
        gpus=report(gpu(0), lost=("0000:81:00.0: the kernel module has it, the library does not count it",)),
        host=host(device_nodes=nodes),
    )
    (finding,) = checks.judge(box, Needs(gpus=1))
    assert (finding.id, finding.severity) == ("gpu.lost", Severity.INFO)
    assert "reboot" not in finding.remedy
    # with too few of them there is one line, and its remedy is no reboot either
    (row,) = arranged(checks.linked(checks.judge(box, Needs(gpus=2))))
    assert (row.id, row.severity, [child.id for child in row.folded]) == ("gpu.lost", Severity.FAIL, ["gpu.count"])
    assert "docker run --gpus" in row.remedy
    # a node that is there and shut is a fault, also in a container
    shut = facts(gpus=report(gpu(0)), host=host(device_nodes={**nodes, "/dev/nvidia-uvm": "No such file or directory"}))
    (finding,) = checks.judge(shut, Needs(gpus=1))
    assert finding.id == "dev.nodes"
    assert "all 3 open" in finding.required


def test_nodes_that_are_missing_beside_a_driver_of_two_versions_are_its_effect() -> None:
    box = facts(
        gpus=GpuReport(Outcome.MISMATCH, driver="2", module="1"),
        host=host(device_nodes={"/dev/nvidia-uvm": "No such file or directory"}),
    )
    (row,) = arranged(checks.linked(checks.judge(box, Needs(gpus=2))))
    assert (row.id, [child.id for child in row.folded]) == ("nvml.mismatch", ["dev.nodes"])
