"""One package built, one machine booted and one service installed for all tests; each test finds it serving."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.systemd.machine import Machine, Ran
from tests.systemd.service import ETC, Service
from tests.systemd.trees import base_tree

NewMachine = Callable[[], Machine]


@pytest.fixture(scope="session")
def deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package: of $MOE_SYSTEMD_DEB, else built now from this checkout."""
    if ready := os.environ.get("MOE_SYSTEMD_DEB"):
        return Path(ready)
    from tests.systemd.packages import build

    return build(tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="session")
def new_machine(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewMachine]:
    """Boots machines that have what the package depends on, not the package."""
    depends = subprocess.run(["dpkg-deb", "-f", deb, "Depends"], capture_output=True, text=True, check=True).stdout
    machines: list[Machine] = []

    def boot() -> Machine:
        machines.append(Machine(base_tree(), tmp_path_factory.mktemp("machine"), depends.strip()))
        return machines[-1]

    yield boot
    for machine in machines:
        machine.close()


@pytest.fixture(scope="session")
def fresh(new_machine: NewMachine) -> Service:
    """A machine whose only package of ours comes by `told`: for what an operator finds first, upgrades and removal."""
    return Service(new_machine())


@pytest.fixture(scope="session")
def told(fresh: Service, deb: Path) -> Ran:
    """What the first installation on `fresh` said."""
    return fresh.install(deb)


@pytest.fixture(scope="session")
def installed(new_machine: NewMachine, deb: Path) -> Service:
    """A machine with the package, the fake engine and the seats ana and ben; started."""
    service = Service(new_machine())
    service.install(deb).ok()
    service.configure()
    return service.start()


@pytest.fixture
def service(installed: Service) -> Iterator[Service]:
    """The installed service, serving, with its shipped unit; a test may leave it in any state but removed."""
    seats = installed.machine.path(f"{ETC}/seats.toml").read_bytes()
    config = installed.machine.path(f"{ETC}/appliance.toml").read_bytes()
    yield installed.start()
    installed.machine.path(f"{ETC}/seats.toml").write_bytes(seats)
    installed.machine.path(f"{ETC}/appliance.toml").write_bytes(config)
    installed.set_knobs()
    installed.drop_in()
