"""cuda_child through deep_copies, against a fake libcuda.so.1."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.box.child import Answer
from appliance.box.deep_copies import CHILD, Copies, measure_copies, read_copies
from appliance.box.gpu import Gpu
from appliance.printable import printable
from tests.fake_cuda import fake_cuda

BUS_IDS = ("0000:41:00.0", "0000:81:00.0")
DEADLINE_S = 20.0
HANG_S = 1.0


def cards(*nodes: int | None) -> list[Gpu]:
    return [
        Gpu(index, f"GPU-{index}", "a card", BUS_IDS[index], 96 << 30, numa_node=n) for index, n in enumerate(nodes)
    ]


def measured(tmp_path: Path, *, deadline_s: float = DEADLINE_S, **knobs: object) -> Copies:
    spelled = {name.replace("__", "."): value for name, value in knobs.items()}
    return measure_copies(cards(None, None), fake_cuda(tmp_path, BUS_IDS, spelled, os.environ), deadline_s, tmp_path)


def test_two_good_cards_are_measured_alone_together_and_back(tmp_path: Path) -> None:
    found = measured(tmp_path, h2d__0=55, h2d__1=54, together__0=54, together__1=53, d2h__0=50, d2h__1=49)

    assert found.rates["h2d"] == {0: 55.0, 1: 54.0}
    assert found.rates["together"] == {0: 54.0, 1: 53.0}
    assert found.rates["d2h"] == {0: 50.0, 1: 49.0}
    assert "far" not in found.rates
    assert found.pin_s is not None
    assert (found.error, found.pin_error) == ("", "")


def test_one_card_has_nothing_to_be_measured_together_with(tmp_path: Path) -> None:
    found = measure_copies(cards(None), fake_cuda(tmp_path, BUS_IDS, {}, os.environ), DEADLINE_S, tmp_path)

    assert found.rates["h2d"] == {0: 50.0}
    assert "together" not in found.rates


def test_a_slow_card_is_slow_alone_and_together_and_the_other_is_not(tmp_path: Path) -> None:
    found = measured(tmp_path, h2d__0=55, h2d__1=6.5)

    assert found.rates["h2d"] == {0: 55.0, 1: 6.5}
    assert found.rates["together"] == {0: 55.0, 1: 6.5}


def test_cards_that_share_a_way_are_slower_together(tmp_path: Path) -> None:
    found = measured(tmp_path, together__0=28, together__1=27)

    assert found.rates["h2d"] == {0: 50.0, 1: 50.0}
    assert found.rates["together"] == {0: 28.0, 1: 27.0}


def test_an_address_is_what_names_a_card_not_what_the_engine_may_see(tmp_path: Path) -> None:
    environ = fake_cuda(tmp_path, BUS_IDS[::-1], {"h2d.0": 20}, os.environ) | {"CUDA_VISIBLE_DEVICES": "1"}

    found = measure_copies(cards(None, None), environ, DEADLINE_S, tmp_path)

    assert found.rates["h2d"] == {0: 50.0, 1: 20.0}


def test_memory_that_cannot_be_pinned_is_named_with_cudas_own_word(tmp_path: Path) -> None:
    found = measured(tmp_path, fail__cuMemHostAlloc__1=2)

    assert found.pin_error == "card 1: cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY"
    assert found.error == found.pin_error
    assert found.rates["h2d"] == {0: 50.0}


def test_an_error_that_cuda_has_no_name_for_is_a_number(tmp_path: Path) -> None:
    assert measured(tmp_path, fail__cuStreamCreate__0=777).error == "card 0: cuStreamCreate: error 777"


def test_a_driver_without_cards_says_so(tmp_path: Path) -> None:
    assert measured(tmp_path, fail__cuInit__0=100) == Copies(error="cuInit: CUDA_ERROR_NO_DEVICE")


def test_a_copy_that_takes_no_time_is_no_measurement(tmp_path: Path) -> None:
    found = measured(tmp_path, h2d__0="inf")

    assert found.error == "card 0: cuEventElapsedTime: 0.0 ms for 1073741824 bytes"
    assert found.rates["h2d"] == {1: 50.0}


def test_what_was_measured_before_a_hang_is_kept_and_the_place_is_named(tmp_path: Path) -> None:
    found = measured(tmp_path, hang="cuEventSynchronize.1", deadline_s=HANG_S)

    assert found.error == "HUNG: no end after 1 s (at: card 1: host to device)"
    assert found.rates["h2d"] == {0: 50.0}
    assert found.pin_error == ""


def test_a_pin_that_hangs_is_a_pin_that_failed(tmp_path: Path) -> None:
    found = measured(tmp_path, hang="cuMemHostAlloc", deadline_s=HANG_S)

    assert found.pin_error == "HUNG: no end after 1 s (at: card 0: pinning 1024 MiB)"


def test_a_crash_of_the_library_is_named_by_its_signal(tmp_path: Path) -> None:
    found = measured(tmp_path, crash="cuMemcpyDtoHAsync_v2.0")

    assert found.error == "ended by SIGSEGV (at: card 0: device to host)"
    assert found.rates["h2d"] == {0: 50.0}


def test_an_end_without_an_answer_is_an_error(tmp_path: Path) -> None:
    assert measured(tmp_path, garbage="cuInit") == Copies(error="no answer, exit code 0 (at: starting CUDA)")


def test_no_library_is_said_in_the_loaders_words(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()  # the loader stops at it, also where a real one is installed

    found = measure_copies(cards(None), {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, DEADLINE_S, tmp_path)

    assert found.rates == {}
    assert found.error.startswith("dlopen: ")
    assert "libcuda.so.1" in found.error


def test_a_child_whose_parent_is_gone_ends_itself(tmp_path: Path) -> None:
    environ = fake_cuda(tmp_path, BUS_IDS, {"hang": "cuInit"}, os.environ)
    spec = json.dumps({"cards": [], "bytes": 1, "seconds": 1, "limit_s": 1, "root": "/"})

    ended = subprocess.run([sys.executable, "-I", "-S", CHILD, spec], env=environ, capture_output=True, timeout=20)

    assert ended.returncode == -signal.SIGALRM


class TestNodes:
    """A root with nodes 0 (near), 1 and 2 (far, 2 without CPUs); CPUs are real ones, so that affinity can be set."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        nodes = tmp_path / "sys/devices/system/node"
        for node, (cpulist, distance) in enumerate([(cpus, "10 32 80"), (cpus, "32 10 80"), ("", "80 80 10")]):
            (nodes / f"node{node}").mkdir(parents=True)
            (nodes / f"node{node}/cpulist").write_text(cpulist + "\n")
            (nodes / f"node{node}/distance").write_text(distance + "\n")
        (nodes / "online").write_text("0-2\n")
        return tmp_path

    def far(self, root: Path, **knobs: object) -> dict[int, float]:
        spelled = {name.replace("__", "."): value for name, value in knobs.items()}
        found = measure_copies(cards(0, 1), fake_cuda(root, BUS_IDS, spelled, os.environ), DEADLINE_S, root)
        assert found.error == ""
        return dict(found.rates.get("far", {}))

    def test_the_farthest_node_with_cpus_shows_what_the_way_between_sockets_costs(self, root: Path) -> None:
        assert self.far(root, h2d__0=55, far__0=39, h2d__1=54, far__1=40) == {0: 39.0, 1: 40.0}

    def test_memory_that_the_kernel_put_elsewhere_is_not_called_far(self, root: Path) -> None:
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/numa_maps").write_text("0 default anon=262144 N0=262000 N1=144 kernelpagesize_kB=4\n")

        assert self.far(root, far__0=39, far__1=40) == {1: 40.0}

    def test_a_failure_on_the_far_side_leaves_the_near_figures(self, root: Path) -> None:
        environ = fake_cuda(root, BUS_IDS, {"fail.cuMemFreeHost.0": 1}, os.environ)

        found = measure_copies(cards(0, None), environ, DEADLINE_S, root)

        assert found.error == "card 0: cuMemFreeHost: error 1"
        assert found.rates["together"] == {0: 50.0, 1: 50.0}

    def test_a_card_of_unknown_node_is_measured_where_the_kernel_puts_its_memory(self, root: Path) -> None:
        found = measure_copies(cards(None), fake_cuda(root, BUS_IDS, {"far.0": 1}, os.environ), DEADLINE_S, root)

        assert dict(found.rates) == {"h2d": {0: 50.0}, "d2h": {0: 50.0}}

    def test_nodes_that_cannot_be_read_cost_nothing_but_the_placement(self, tmp_path: Path) -> None:
        found = measure_copies(cards(7), fake_cuda(tmp_path, BUS_IDS, {}, os.environ), DEADLINE_S, tmp_path)

        assert found.rates["h2d"] == {0: 50.0}


@given(st.text(), st.text(), st.none() | st.integers(-70, 255))
def test_no_output_of_a_child_is_too_strange_to_read(out: str, err: str, code: int | None) -> None:
    found = read_copies(Answer(out, err, code), 60)

    assert found.error
    assert found.error == printable(found.error, limit=10_000)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists), st.text())
def test_no_event_is_too_strange_to_read(value: object, text: str) -> None:
    fields = ("event", "kind", "card", "gb_s", "s", "call", "error", "text")
    lines = [
        json.dumps(dict.fromkeys(fields, value) | {"event": name}) for name in ("step", "rate", "pinned", "failed")
    ]

    found = read_copies(Answer("\n".join([*lines, "[" * 200_000, text]), "", 0), 60)

    assert found.error == printable(found.error, limit=10_000)
