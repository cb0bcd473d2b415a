"""appliance/box/checks.py and facts.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.box import checks
from appliance.box.facts import Facts, is_loopback
from appliance.errors import DEMO_EXTRA
from appliance.units import GIB
from gateway.state import Severity

GOOD = Facts(
    machine="x86_64",
    cpu_flags=frozenset({"avx2", "fma", "f16c", "bmi2", "sse4_2"}),
    cores=2,
    mem_available_bytes=8 * GIB,
    disk_free_bytes=10**10,
    python=(3, 11, 7),
    euid=1000,
    listen_host="127.0.0.1",
    libs={"libgomp.so.1": True, "libstdc++.so.6": True},
    modules={"xllamacpp": True},
)


def test_a_good_box_has_no_findings() -> None:
    results = (
        checks.cpu_avx2(GOOD),
        checks.lib_gomp(GOOD),
        checks.lib_stdcxx(GOOD),
        checks.engine_package(GOOD),
        checks.mem_free(GOOD, 10**9),
        checks.disk_free(GOOD, 10**9),
        checks.listen_plain(GOOD),
    )
    assert checks.kept(*results) == ()


def test_an_old_x86_cpu_fails_and_the_missing_flags_are_named() -> None:
    found = checks.cpu_avx2(replace(GOOD, cpu_flags=frozenset({"avx", "fma", "f16c"})))
    assert found is not None
    assert found.severity is Severity.FAIL
    assert found.observed == "the CPU lacks avx2, bmi2"


def test_aarch64_and_unread_flags_pass_the_cpu_check() -> None:
    assert checks.cpu_avx2(replace(GOOD, machine="aarch64", cpu_flags=frozenset({"asimd"}))) is None
    assert checks.cpu_avx2(replace(GOOD, cpu_flags=frozenset())) is None


def test_missing_libraries_name_their_debian_package() -> None:
    facts = replace(GOOD, libs={"libgomp.so.1": False, "libstdc++.so.6": False})
    found = checks.kept(checks.lib_gomp(facts), checks.lib_stdcxx(facts))
    assert [(f.id, f.remedy) for f in found] == [
        ("lib.gomp", "apt-get install libgomp1"),
        ("lib.stdcxx", "apt-get install libstdc++6"),
    ]


def test_a_missing_package_names_the_extra() -> None:
    found = checks.engine_package(replace(GOOD, modules={"xllamacpp": False}))
    assert found is not None
    assert found.remedy == DEMO_EXTRA


def test_what_could_not_be_read_is_no_finding() -> None:
    facts = replace(GOOD, libs={}, modules={}, mem_available_bytes=None, disk_free_bytes=None)
    results = (
        checks.lib_gomp(facts),
        checks.lib_stdcxx(facts),
        checks.engine_package(facts),
        checks.mem_free(facts, 10**15),
        checks.disk_free(facts, 10**15),
    )
    assert checks.kept(*results) == ()


def test_too_little_memory_and_disk_say_how_much_there_is() -> None:
    facts = replace(GOOD, mem_available_bytes=GIB // 2, disk_free_bytes=123_000_000)
    memory = checks.mem_free(facts, 3 * GIB // 2)
    disk = checks.disk_free(facts, 300_000_000)
    assert memory is not None
    assert (memory.observed, memory.required) == ("0.5 GiB available", "1.5 GiB")
    assert disk is not None
    assert disk.required == "300 MB"
    assert disk.observed.startswith("123 MB")


def test_plain_http_on_the_network_is_a_warning_only() -> None:
    found = checks.listen_plain(replace(GOOD, listen_host="0.0.0.0"))
    assert found is not None
    assert found.severity is Severity.WARN
    assert "0.0.0.0" in found.observed


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("/run/x.sock", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.1.2.3", False),
        ("box.example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_more_streams_than_the_engine_runs_are_a_finding() -> None:
    assert checks.admission_streams(0, 4, declared=True) is None
    assert checks.admission_streams(4, 4, declared=True) is None
    found = checks.admission_streams(8, 4, declared=True)
    assert found is not None
    assert (found.id, found.severity) == ("admission.streams", Severity.WARN)
    assert found.observed == "8 asked, the engine's profile allows 4"
    assert "8 to [engine] streams" in found.remedy
    embedded = checks.admission_streams(8, 4, declared=False)
    assert embedded is not None
    assert "[engine]" not in embedded.remedy
