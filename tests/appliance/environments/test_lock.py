"""The locks that we ship, and what is read in one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.engine.environments.install import LOCKS, lock_of
from appliance.engine.environments.lock import identity, parse
from appliance.engine.environments.sets import SETS, named
from appliance.errors import MoeError
from tests.appliance.environments.wheelhouse import line, wheel

RAN = Path(__file__).parents[3] / "scripts" / "engine-locks.vllm-constraints"


@pytest.mark.parametrize("name", SETS)
def test_a_shipped_lock_pins_the_engine_and_its_torch(name: str) -> None:
    wanted = SETS[name]
    lock = lock_of(wanted)
    assert lock.version(wanted.distribution)
    assert lock.version("torch")
    assert wanted.installed_bytes > lock.total_bytes


def test_the_cuda_lock_has_what_the_gpu_machine_ran() -> None:
    lock = lock_of(SETS["vllm"])
    ran = dict(row.split("==") for row in RAN.read_text().split())
    in_lock = {name: lock.version(name) for name in ran if lock.version(name)}
    assert in_lock == {name: ran[name] for name in in_lock}
    assert in_lock.keys() >= {"vllm", "torch", "triton", "transformers"}


@pytest.mark.parametrize("path", sorted(LOCKS.iterdir()), ids=lambda path: path.name)
def test_a_shipped_lock_names_no_host_and_no_index(path: Path) -> None:
    assert not re.search(r"://|index|find-links|\.(org|com|io)\b", path.read_text())


def test_every_wheel_of_a_lock_fits_its_python() -> None:
    for wanted in SETS.values():
        own = "".join(map(str, wanted.python))
        for one in lock_of(wanted).wheels:
            tag = one.file.removesuffix(".whl").split("-")[-3]
            assert tag == f"cp{own}" or "abi3" in one.file or tag.startswith("py"), one.file


@pytest.mark.parametrize(
    "text",
    ["vllm==1.0\n", "vllm==1.0 --hash=sha256:00  # 1 v.whl\n", "-r other.txt\n", "--index-url x\n"],
)
def test_a_line_that_is_none_of_a_lock_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="line 2 is no line of a lock"):
        parse("# head\n" + text)


def test_a_package_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    row = line(wheel(tmp_path, "vllm", "1.0", {}))
    with pytest.raises(ValueError, match="line 2"):
        parse(row + row)


def test_other_sources_are_another_environment(tmp_path: Path) -> None:
    lock = parse(line(wheel(tmp_path, "vllm", "1.0", {})))
    assert identity(lock) == lock.sha256[:12]
    assert len({identity(lock), identity(lock, ["a 1"]), identity(lock, ["a 2"])}) == 3


def test_an_unknown_engine_is_told_the_known_ones() -> None:
    with pytest.raises(MoeError, match="vllm, vllm-cpu, vllm-exl3"):
        named("llm")
