"""docs/operations.md from its first command to its last, typed by root on a machine with the package installed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

from tests.checkpoint.packs.fixtures import PACKS
from tests.checkpoint.packs.writer import write
from tests.e2e.box import until
from tests.operations import commands_for
from tests.systemd.service import ETC, SEATS, UNIT, Service

pytestmark = pytest.mark.systemd
MODEL = "/srv/models/MODEL"


@pytest.fixture
def fresh_box(service: Service) -> Iterator[Service]:
    """As after the installation, but for the engine, which is there: weights, no seats, one admin. All is put back."""
    assert service.chat("ana").done
    for seat in SEATS:
        service.cli(f"seats remove {seat}").ok()
    model = service.machine.path(MODEL)
    model.mkdir(parents=True)
    write(model, *PACKS["qwen3-moe"]())
    secrets = {
        name: service.machine.path(f"{ETC}/{name}").read_bytes() for name in ("admins.toml", "first-admin-token")
    }
    yield service
    for name, data in secrets.items():
        service.machine.path(f"{ETC}/{name}").write_bytes(data)
    service.machine.path(f"{ETC}/first-admin-token").chmod(0o600)
    shutil.rmtree(model)
    service.machine.run(f"rm -f {ETC}/plan*.json {ETC}/*.before-restore-* /var/backups/bundle.tar.gz").ok()
    service.machine.run(f"rm -f /var/backups/box.tar.gz; systemctl disable {UNIT}; moe-appliance resume").ok()


def settle(service: Service) -> None:
    """Wait for the engine: the page's reader takes longer from one command to the next than it does to load."""
    until("the engine is ready", lambda: service.state().get("engine", {}).get("phase") == "ready", 30, 0.05)


def test_what_the_page_says_to_type_works_on_an_installed_box(fresh_box: Service) -> None:
    faults = []
    for command in commands_for("systemd"):
        ran = fresh_box.machine.run(f"export COLUMNS=200; {command.text}", limit_s=120)
        faults.append(command.fault(ran.code, ran.told))
        if re.search(r"\b(restart|start|start-engine|enable --now)\b", command.text):
            settle(fresh_box)
    if any(faults):
        pytest.fail("\n\n".join(filter(None, faults)), pytrace=False)
