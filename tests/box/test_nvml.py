"""appliance.box.nvml with its real child process, over a fake libnvidia-ml.so.1."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.box import nvml
from appliance.box.child import OneChild
from appliance.box.gpu import Gpu, GpuProcess, GpuReport, Link, Outcome, Relation
from appliance.box.nvml import gather, topo_text
from tests.fake_nvml import SOURCE, FakeNvml, Process, Setup, scenarios, symbols
from tests.fake_nvml.setup import CARD_BYTES, CARDS, GIB, Card

HANG_S = 1.5
"""The deadline of a gather that will hang; one that answers takes 0.05 s here."""


def gathered(folder: Path, setup: Setup | None = None, **changes: object) -> GpuReport:
    fake = FakeNvml(folder, replace(setup or Setup(), **changes))  # type: ignore[arg-type]
    return gather(fake.root, environ=fake.environ())


def test_every_call_of_the_fake_is_one_that_pynvml_makes() -> None:
    written = set(re.findall(r"^CALL\((\w+)\)", SOURCE.read_text(), re.M))
    assert len(written) >= 30
    assert written <= symbols()


def test_two_good_cards_are_reported_in_full(tmp_path: Path) -> None:
    report = gathered(tmp_path)
    assert replace(report, gpus=()) == GpuReport(
        Outcome.OK,
        driver="580.95.05",
        module="580.95.05",
        cuda="13.0",
        relations={(0, 1): Relation.NODE},
        p2p={(0, 1): "OK"},
        confidential=False,
    )
    assert len(report.gpus) == 2
    assert report.gpus[0] == Gpu(
        index=0,
        uuid="GPU-11111111-2222-3333-4444-555555555501",
        name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        bus_id="0000:41:00.0",
        total_bytes=CARD_BYTES,
        reserved_bytes=615 * 1024**2,
        used_bytes=0,
        capability=(12, 0),
        numa_node=0,
        cpus="0-31",
        link=Link(gen_now=5, gen_max=5, width_now=16, width_max=16, replays=0),
        bar1_bytes=128 * GIB,
        mig=(False, False),
        ecc=True,
        remap_pending=False,
        remap_failed=False,
        persistence=True,
        power_limit_w=600.0,
        power_default_w=600.0,
        throttle=("idle",),
    )


def test_cards_on_two_sockets_show_sys_and_their_nodes(tmp_path: Path) -> None:
    report = gathered(tmp_path, scenarios.SYS_TWO_NODES)
    assert report.relations == {(0, 1): Relation.SYS}
    assert [(gpu.numa_node, gpu.cpus) for gpu in report.gpus] == [(0, "0-31"), (1, "32-63")]


def test_a_node_that_the_kernel_does_not_know_is_none(tmp_path: Path) -> None:
    report = gathered(tmp_path, cards=tuple(replace(card, numa_node=-1) for card in CARDS))
    assert [gpu.numa_node for gpu in report.gpus] == [None, None]


def test_a_narrow_link_shows_its_width_beside_the_greatest(tmp_path: Path) -> None:
    link = gathered(tmp_path, scenarios.X8_LINK).gpus[1].link
    assert (link.width_now, link.width_max) == (8, 16)


def test_memory_of_another_process_is_shown_with_its_name(tmp_path: Path) -> None:
    held, free = gathered(tmp_path, scenarios.HELD_MEMORY).gpus
    assert (held.used_bytes, free.used_bytes) == (2 * GIB, 0)
    assert held.processes == (GpuProcess(scenarios.HELD_PID, 2 * GIB, "VLLM::Worker_TP"),)


def test_graphics_processes_count_and_one_of_both_kinds_counts_once(tmp_path: Path) -> None:
    # given a desktop, and a process that computes and draws
    held = (Process(101, GIB, "Xorg", graphics=True), Process(102, GIB, ""), Process(102, GIB, "", graphics=True))
    # when
    report = gathered(tmp_path, cards=(replace(CARDS[0], processes=held),))
    # then
    assert report.gpus[0].processes == (GpuProcess(101, GIB, "Xorg"), GpuProcess(102, GIB, ""))


def test_mig_on_is_shown_now_and_for_after_the_reset(tmp_path: Path) -> None:
    cards = (replace(CARDS[0], mig=(0, 1)), replace(CARDS[1], mig=(1, 1)))
    assert [gpu.mig for gpu in gathered(tmp_path, cards=cards).gpus] == [(False, True), (True, True)]


def test_a_card_that_the_driver_does_not_count_is_named_by_its_address(tmp_path: Path) -> None:
    report = gathered(tmp_path, scenarios.ONE_MISSING)
    assert [gpu.index for gpu in report.gpus] == [0]
    assert report.lost == ("0000:81:00.0: the kernel module has it, the library does not count it",)


@pytest.mark.parametrize("code", [15, 23, 999])
def test_a_driver_that_cannot_count_its_cards_is_a_failure_in_its_words(tmp_path: Path, code: int) -> None:
    report = gathered(tmp_path, fails={"nvmlDeviceGetCount_v2": code})
    assert report.outcome is Outcome.FAILED
    assert report.error


def test_a_card_that_is_refused_with_a_code_without_words_is_named(tmp_path: Path) -> None:
    report = gathered(tmp_path, fails={"nvmlDeviceGetHandleByIndex_v2": 29})
    assert report.lost[1] == "card 1 at 0000:81:00.0: An error that pynvml has no words for"


def test_a_lost_card_is_named_and_the_other_reported(tmp_path: Path) -> None:
    report = gathered(tmp_path, scenarios.ONE_LOST)
    assert (report.outcome, [gpu.index for gpu in report.gpus]) == (Outcome.OK, [0])
    assert report.lost == ("card 1 at 0000:81:00.0: GPU is lost",)


@pytest.mark.parametrize("code", [15, 16])
def test_a_card_that_is_lost_between_two_calls_is_lost(tmp_path: Path, code: int) -> None:
    cards = (replace(CARDS[0], fails={"nvmlDeviceGetEccMode": code}), CARDS[1])
    report = gathered(tmp_path, cards=cards)
    assert [gpu.index for gpu in report.gpus] == [1]
    assert report.lost[0].startswith("card 0 at 0000:41:00.0: GPU ")


def test_a_card_that_comes_back_is_reported_again(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, scenarios.ONE_LOST)
    assert len(gather(fake.root, environ=fake.environ()).gpus) == 1
    fake.configure(cards=CARDS)
    assert gather(fake.root, environ=fake.environ()) == gathered(tmp_path / "good")


OPTIONAL = {
    "nvmlDeviceGetUUID": ("uuid", ""),
    "nvmlDeviceGetName": ("name", ""),
    "nvmlDeviceGetCudaComputeCapability": ("capability", None),
    "nvmlDeviceGetCpuAffinity": ("cpus", ""),
    "nvmlDeviceGetBAR1MemoryInfo": ("bar1_bytes", None),
    "nvmlDeviceGetMigMode": ("mig", None),
    "nvmlDeviceGetEccMode": ("ecc", None),
    "nvmlDeviceGetRemappedRows": ("remap_failed", None),
    "nvmlDeviceGetPersistenceMode": ("persistence", None),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_w", None),
    "nvmlDeviceGetPowerManagementDefaultLimit": ("power_default_w", None),
    "nvmlDeviceGetCurrentClocksEventReasons": ("throttle", ()),
    "nvmlDeviceGetComputeRunningProcesses_v3": ("processes", ()),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": ("processes", ()),
}
LINK = {
    "nvmlDeviceGetCurrPcieLinkGeneration": "gen_now",
    "nvmlDeviceGetMaxPcieLinkGeneration": "gen_max",
    "nvmlDeviceGetCurrPcieLinkWidth": "width_now",
    "nvmlDeviceGetMaxPcieLinkWidth": "width_max",
    "nvmlDeviceGetPcieReplayCounter": "replays",
}


@pytest.mark.parametrize("code", [3, 13, 999])
def test_what_a_driver_refuses_is_none_and_the_rest_is_reported(tmp_path: Path, code: int) -> None:
    # given a driver that refuses one more call at a time
    fake = FakeNvml(tmp_path)
    good = gather(fake.root, environ=fake.environ())
    for call in [*OPTIONAL, *LINK]:
        fake.configure(fails={call: code})
        # when
        card = gather(fake.root, environ=fake.environ()).gpus[0]
        # then one field is unknown, and no other
        expected = good.gpus[0]
        if call in LINK:
            expected = replace(expected, link=replace(expected.link, **{LINK[call]: None}))
        else:
            field, unknown = OPTIONAL[call]
            expected = replace(expected, **{field: unknown})
        if call == "nvmlDeviceGetRemappedRows":
            expected = replace(expected, remap_pending=None)
        assert card == expected


def test_an_old_driver_tells_used_memory_with_its_own_share(tmp_path: Path) -> None:
    card = gathered(tmp_path, memory_v2=False).gpus[0]
    assert (card.total_bytes, card.reserved_bytes, card.used_bytes) == (CARD_BYTES, None, 615 * 1024**2)


def test_a_card_that_tells_no_memory_is_of_no_use_and_said_to_be_lost(tmp_path: Path) -> None:
    cards = (replace(CARDS[0], fails={"nvmlDeviceGetMemoryInfo": 999, "nvmlDeviceGetMemoryInfo_v2": 999}), CARDS[1])
    assert gathered(tmp_path, cards=cards).lost == (
        "card 0 at 0000:41:00.0: it tells neither its memory nor its PCI address",
    )


def test_throttle_reasons_have_names(tmp_path: Path) -> None:
    report = gathered(tmp_path, cards=(replace(CARDS[0], throttle=4 | 64 | 128),))
    assert report.gpus[0].throttle == ("power cap", "thermal (hardware)", "power brake")


def test_nvlink_between_two_cards_outdoes_the_common_ancestor(tmp_path: Path) -> None:
    one, two = CARDS
    cards = (replace(one, nvlink=4, nvlink_to=two.bus_id), replace(two, nvlink=4, nvlink_to=one.bus_id))
    assert gathered(tmp_path, cards=cards, relation="SYS").relations == {(0, 1): Relation.NV}


def test_nvlink_through_a_switch_joins_all_cards_on_it(tmp_path: Path) -> None:
    cards = (*(replace(card, nvlink=18) for card in CARDS), Card("00000000:C1:00.0", "GPU-3"))
    report = gathered(tmp_path, cards=cards, relation="PHB")
    assert report.relations == {(0, 1): Relation.NV, (0, 2): Relation.PHB, (1, 2): Relation.PHB}


@pytest.mark.parametrize(("status", "word"), [(0, "OK"), (1, "CNS"), (2, "GNS"), (5, "NS"), (6, "U")])
def test_peer_access_is_told_in_nvidia_smis_words(tmp_path: Path, status: int, word: str) -> None:
    assert gathered(tmp_path, p2p=status).p2p == {(0, 1): word}


def test_eight_cards_have_all_their_pairs(tmp_path: Path) -> None:
    cards = tuple(Card(f"00000000:{bus:02X}:00.0", f"GPU-{bus}") for bus in range(0x10, 0x90, 0x10))
    report = gathered(tmp_path, cards=cards, relations={(2, 5): "SYS"})
    assert len(report.gpus) == 8
    assert report.relations is not None
    assert len(report.relations) == 28
    assert [pair for pair, relation in report.relations.items() if relation is Relation.SYS] == [(2, 5)]


def test_confidential_computing_is_told(tmp_path: Path) -> None:
    assert gathered(tmp_path, confidential=1).confidential is True
    assert gathered(tmp_path / "old", fails={"nvmlSystemGetConfComputeState": 3}).confidential is None


def test_names_cannot_move_a_terminals_cursor(tmp_path: Path) -> None:
    report = gathered(
        tmp_path,
        cards=(replace(CARDS[0], name="RTX\x1b[2J", processes=(Process(7, 1, "a\x9bb"),)),),
    )
    assert report.gpus[0].name == "RTX\\x1b[2J"
    assert report.gpus[0].processes[0].name == "a\\x9bb"


def test_what_the_library_prints_by_itself_is_no_part_of_the_answer(tmp_path: Path) -> None:
    assert gathered(tmp_path, noise='{"code": 18}') == gathered(tmp_path / "quiet")


def test_the_library_is_never_shut_down(tmp_path: Path) -> None:
    assert gathered(tmp_path, crash="nvmlShutdown").outcome is Outcome.OK


def test_a_library_newer_than_the_kernel_module_is_a_mismatch_with_both_versions(tmp_path: Path) -> None:
    report = gathered(tmp_path, scenarios.MISMATCH)
    assert report == GpuReport(
        Outcome.MISMATCH,
        error="the library is 580.105.08, the kernel module 580.95.05",
        driver="580.105.08",
        module="580.95.05",
    )


def test_versions_that_differ_are_a_mismatch_even_when_the_library_starts(tmp_path: Path) -> None:
    assert gathered(tmp_path, driver="575.57.08").outcome is Outcome.MISMATCH


@pytest.mark.parametrize(
    ("setup", "outcome"),
    [
        (scenarios.NO_DRIVER, Outcome.NO_DRIVER),
        (scenarios.NO_LIBRARY, Outcome.NO_LIBRARY),
        (scenarios.NOT_LOADED, Outcome.NOT_LOADED),
        (Setup(init=999), Outcome.FAILED),
        (Setup(init=4), Outcome.FAILED),
    ],
)
def test_a_driver_that_does_not_start_has_its_outcome_and_no_cards(
    tmp_path: Path, setup: Setup, outcome: Outcome
) -> None:
    report = gathered(tmp_path, setup)
    assert (report.outcome, report.gpus, report.relations) == (outcome, (), None)
    assert report.error
    assert report.module == setup.module


@pytest.mark.parametrize(
    ("call", "where"),
    [
        ("nvmlInitWithFlags", "nvmlInit"),
        ("nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetEnforcedPowerLimit of card 0"),
    ],
)
def test_a_driver_that_hangs_is_killed_at_the_deadline_and_the_call_named(
    tmp_path: Path, call: str, where: str
) -> None:
    fake = FakeNvml(tmp_path, Setup(hang=call))
    started = time.monotonic()
    report = gather(fake.root, HANG_S, fake.environ())
    assert time.monotonic() - started < HANG_S + 2
    assert report.outcome is Outcome.HUNG
    assert report.error == f"no answer within {HANG_S:g} s in {where}"


def test_a_driver_that_crashes_names_the_signal_and_the_call(tmp_path: Path) -> None:
    report = gathered(tmp_path, scenarios.CRASHES)
    assert (report.outcome, report.error) == (
        Outcome.CRASHED,
        "the process that asked died of SIGSEGV in nvmlDeviceGetMemoryInfo of card 0",
    )


def test_a_child_that_outlives_sigkill_is_not_waited_for_and_not_joined_by_others(tmp_path: Path) -> None:
    # given a driver that holds its caller so that no signal ends it
    killed: list[int] = []
    fake = FakeNvml(tmp_path, scenarios.HANGS_AT_INIT)
    child = OneChild(kill=lambda group, number: killed.append(group))
    assert gather(fake.root, HANG_S, fake.environ(), child=child).outcome is Outcome.HUNG
    # when it is asked again
    started = time.monotonic()
    again = gather(fake.root, 60.0, fake.environ(), child=child)
    # then there is an answer at once, and no second process
    assert time.monotonic() - started < 1
    assert (again.outcome, len(killed)) == (Outcome.HUNG, 1)
    assert again.error == f"process {killed[0]} still hangs since an earlier question"
    # and when the driver lets go of it, the next question is asked
    os.killpg(killed[0], signal.SIGKILL)
    os.waitid(os.P_PID, killed[0], os.WEXITED | os.WNOWAIT)
    fake.configure(hang="")
    assert gather(fake.root, environ=fake.environ(), child=child).outcome is Outcome.OK


def test_a_child_whose_parent_is_gone_ends_itself(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path, scenarios.HANGS_AT_INIT)
    argv = [sys.executable, "-I", "-m", "appliance.box.nvml_child", "0.1"]
    ended = subprocess.run(argv, env=fake.environ(), capture_output=True, timeout=20, check=False)
    assert ended.returncode == -signal.SIGALRM


def test_the_process_that_asks_does_not_load_nvml(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path)
    code = (
        "import sys; from pathlib import Path; from appliance.box.nvml import gather\n"
        f"print(gather(Path({str(fake.root)!r})).outcome, 'pynvml' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], env=fake.environ(), capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["ok", "False"]


def test_a_python_that_cannot_be_started_is_a_failure_and_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml.sys, "executable", str(tmp_path / "gone"))
    report = gather(tmp_path)
    assert report.outcome is Outcome.FAILED
    assert "cannot be started" in report.error


NODE = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNODE\t0-31\nGPU1\tNODE\t X \t0-31\n"


def test_nvidia_smi_that_says_the_same_is_not_mentioned(tmp_path: Path) -> None:
    assert gathered(tmp_path, topo=NODE).topo_text_disagrees == ""


def test_nvidia_smi_that_says_something_else_is_quoted(tmp_path: Path) -> None:
    assert gathered(tmp_path, topo=NODE, relation="SYS").topo_text_disagrees == (
        "GPU0 and GPU1: nvidia-smi topo -m says NODE, NVML says SYS"
    )


def test_topo_text_is_none_where_nvidia_smi_is_missing_fails_or_hangs(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    environ = {"PATH": str(tmp_path)}
    assert topo_text(5.0, environ) is None
    for script, answer in [("exit 9", None), ("exec /bin/sleep 60", None), ("echo table", "table\n")]:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert topo_text(0.5 if "sleep" in script else 20.0, environ, child=OneChild()) == answer
    program.write_text("no program")
    assert topo_text(5.0, environ) is None
