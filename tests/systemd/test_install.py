"""What `dpkg --install` leaves on a machine that never saw the package."""

from __future__ import annotations

import pytest

from gateway.keys import ADMIN_PREFIX
from tests.systemd.machine import Ran
from tests.systemd.service import ETC, HOME, RUN, STATE, UNIT, Service

pytestmark = pytest.mark.systemd


def modes(service: Service, *paths: str) -> list[str]:
    """`MODE OWNER GROUP PATH` of each."""
    return service.machine.run(f"stat --format='%a %U %G %n' {' '.join(paths)}").ok().splitlines()


def test_it_installs_without_a_network_and_says_what_to_do_next(told: Ran) -> None:
    told.ok()
    assert f"{ETC}/first-admin-token" in told.told
    assert "systemctl start moe-appliance" in told.told or "systemctl enable --now moe-appliance" in told.told


def test_the_unit_is_there_and_neither_enabled_nor_started(fresh: Service, told: Ran) -> None:
    assert fresh.systemctl("is-enabled").out.strip() == "disabled"
    assert fresh.show("LoadState", "ActiveState") == {"LoadState": "loaded", "ActiveState": "inactive"}
    assert fresh.machine.run(f"systemd-analyze verify {UNIT}.service").told.strip() == ""


def test_the_service_has_a_user_who_cannot_log_in_and_owns_its_state_alone(fresh: Service, told: Ran) -> None:
    entry = fresh.machine.run(f"getent passwd {UNIT}").ok().strip().split(":")
    assert entry[5:] == [STATE, "/usr/sbin/nologin"]
    assert 0 < int(entry[2]) < 1000
    assert modes(fresh, STATE) == [f"750 {UNIT} {UNIT} {STATE}"]


def test_configuration_seats_and_admins_are_for_the_service_to_read_and_for_root_to_write(
    fresh: Service, told: Ran
) -> None:
    files = [f"{ETC}/{name}.toml" for name in ("appliance", "seats", "admins")]
    assert modes(fresh, ETC, *files) == [f"750 root {UNIT} {ETC}", *(f"640 root {UNIT} {file}" for file in files)]
    conffiles = fresh.machine.run(f"dpkg-query --show --showformat='${{Conffiles}}' {UNIT}").ok().split()
    assert conffiles[::2] == [f"{ETC}/appliance.toml"]


def test_the_first_admins_token_is_roots_and_is_said_nowhere(fresh: Service, told: Ran) -> None:
    assert modes(fresh, f"{ETC}/first-admin-token") == [f"600 root root {ETC}/first-admin-token"]
    token = fresh.machine.path(f"{ETC}/first-admin-token").read_text().strip()
    assert token.startswith(ADMIN_PREFIX)
    assert token not in told.told
    assert "first" in fresh.cli("admins list").ok()


def test_man_page_and_completion_are_found(fresh: Service, told: Ran) -> None:
    page = fresh.machine.run("man --locale=C moe-appliance | col -b").ok()
    assert "seats add" in page
    assert fresh.machine.run("test -s /usr/share/bash-completion/completions/moe-appliance").code == 0


def test_the_library_is_roots_and_no_part_of_it_can_be_written_by_others(fresh: Service, told: Ran) -> None:
    look = f"find {HOME} /usr/bin/moe-appliance ! -type l ( ! -user root -o -perm /022 )"
    assert fresh.machine.run(look.replace("(", "\\(").replace(")", "\\)")).ok() == ""


def test_check_names_what_the_operator_still_has_to_fill_in(fresh: Service, told: Ran) -> None:
    ran = fresh.cli("check")
    assert ran.code == 78
    assert "engine" in ran.told
    assert not fresh.machine.path(RUN).exists()
