"""A package's life on one machine: upgrades under a running service, a new python3, removal, purge."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance import __version__
from tests.systemd.machine import Ran
from tests.systemd.packages import build_changed
from tests.systemd.service import ENGINE, ETC, HOME, RUN, STATE, UNIT, Service, Watch

pytestmark = pytest.mark.systemd
NEXT, OTHER = "0.9.8", "0.9.9"
DRAIN_S = 3.0
VERSION = "appliance/__init__.py"
PROTOCOL = {"gateway/state.py": ("protocol: int = 1", "protocol: int = 2")}


@pytest.fixture(scope="module")
def next_deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A later version that speaks as this one does."""
    return build_changed(tmp_path_factory.mktemp("next"), {VERSION: (__version__, NEXT)})


@pytest.fixture(scope="module")
def other_deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A later version whose gateway and daemon speak in another way."""
    return build_changed(tmp_path_factory.mktemp("other"), {VERSION: (__version__, OTHER), **PROTOCOL})


@pytest.fixture
def life(fresh: Service, told: Ran, deb: Path) -> Service:
    """Installed on the machine that is for upgrades, with its seats, serving; this version or a later one."""
    told.ok()
    if not fresh.keys:
        fresh.configure()
    if fresh.cli("--version").code != 0:
        fresh.install(deb).ok()
    return fresh.start()


def versions(service: Service) -> list[str]:
    """The virtual environments that are there."""
    return sorted(path.name for path in service.machine.path(f"{HOME}/venvs").iterdir())


def runs_from(service: Service, pid: int) -> str:
    """The command line of a process."""
    return service.machine.path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_after_a_change_of_python3_the_environment_is_made_anew_and_nobody_notices(life: Service) -> None:
    before = life.pids
    current = life.machine.path(f"{HOME}/current").readlink()
    broken = life.machine.path(f"{HOME}/{current}/bin/moe-appliance")
    broken.unlink()  # as if that Python were no more
    assert life.cli("--version").code != 0
    with Watch(life.healthy) as watch:
        life.machine.run("dpkg-trigger --by-package=python3 /usr/bin/python3 && dpkg --triggers-only --pending").ok()
    assert life.cli("--version").code == 0
    assert watch.missed == 0, watch.told
    assert life.pids["engine"] == before["engine"]
    assert life.answers("ana")


def test_removal_stops_the_service_and_keeps_what_the_operator_wrote(life: Service, deb: Path) -> None:
    life.systemctl("enable").ok()
    token = life.machine.path(f"{ETC}/first-admin-token").read_text()
    pids, seats = life.pids, life.machine.path(f"{ETC}/seats.toml").read_bytes()
    life.machine.run(f"dpkg --remove {UNIT}", limit_s=120).ok()
    assert [name for name, pid in pids.items() if life.machine.run(f"kill -0 {pid}").code == 0] == []
    for gone in (HOME, "/usr/bin/moe-appliance", f"/usr/lib/systemd/system/{UNIT}.service", RUN):
        assert not life.machine.path(gone).exists(), gone
    assert life.machine.path(f"{ETC}/seats.toml").read_bytes() == seats
    for kept in (f"{ETC}/appliance.toml", f"{ETC}/admins.toml", STATE):
        assert life.machine.path(kept).exists(), kept
    # And installed again it takes up where it was
    life.install(deb).ok()
    life.start()
    assert life.answers("ana")
    assert life.machine.path(f"{ETC}/first-admin-token").read_text() == token


def test_an_upgrade_replaces_the_gateway_and_leaves_the_engine_alone(life: Service, deb: Path, next_deb: Path) -> None:
    if life.cli("--version").ok().strip() != __version__:
        life.install(deb).ok()
        life.systemctl("restart").ok()
        life.wait_ready()
    # Given a seat that asks again and again, and one whose stream ends in no drain
    before, seats = life.pids, life.machine.path(f"{ETC}/seats.toml").read_bytes()
    config = life.machine.path(f"{ETC}/appliance.toml").read_bytes()
    long = life.stream("ben", 100_000)
    # When
    with Watch(lambda: life.answers("ana", max_tokens=60)) as watch:
        ran = life.install(next_deb)
    # Then the first sees nothing of it but a wait, and the second is told
    ran.ok()
    assert watch.missed == 0, watch.told
    assert watch.longest_s < DRAIN_S + 4, watch.told
    assert long.wait().in_stream_error is not None, long.answer.told()
    after = life.pids
    assert after["gateway"] != before["gateway"]
    assert (after["engine"], after["daemon"]) == (before["engine"], before["daemon"])
    assert f"venvs/{NEXT}" in runs_from(life, after["gateway"])
    assert f"venvs/{__version__}" in runs_from(life, after["daemon"])
    assert len(versions(life)) == 2
    assert life.answers("ana")
    assert NEXT in life.cli("--version").ok()
    assert life.machine.path(f"{ETC}/seats.toml").read_bytes() == seats
    assert life.machine.path(f"{ETC}/appliance.toml").read_bytes() == config
    # And the restart at leisure takes the daemon's own new version
    life.systemctl("restart").ok()
    life.wait_ready()
    assert f"venvs/{NEXT}" in runs_from(life, life.pids["daemon"])
    life.machine.run(f"{HOME}/make-venv").ok()
    assert [name.startswith(NEXT) for name in versions(life)] == [True]
    assert life.answers("ana")


def test_an_upgrade_with_another_protocol_says_what_to_restart_and_touches_nothing(
    life: Service, other_deb: Path
) -> None:
    before = life.pids
    with Watch(life.healthy) as watch:
        ran = life.install(other_deb)
    ran.ok()
    assert "systemctl restart moe-appliance" in ran.told
    assert life.pids == before
    assert watch.missed == 0, watch.told
    assert life.answers("ana")
    life.systemctl("restart").ok()
    life.wait_ready()
    assert life.answers("ana")


def test_purge_leaves_nothing_of_ours(life: Service) -> None:
    life.machine.run(f"dpkg --purge {UNIT}", limit_s=120).ok()
    # But for the copies that these tests made, logs, and pages that man keeps.
    apart = " ".join(f"-path {path} -prune -o" for path in (ENGINE, "/root", "/var/log", "/var/cache/man"))
    left = life.machine.run(f"find / -xdev {apart} -name '*moe[-_]appliance*' -print").ok().split()
    assert left == []
    assert life.machine.run(f"dpkg-query --show {UNIT}").code != 0
    assert life.machine.run(f"pgrep -u {UNIT}").out == ""
    assert "moe" not in life.machine.run("systemctl list-unit-files --no-legend").ok()
