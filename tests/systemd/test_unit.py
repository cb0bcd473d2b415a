"""The unit as systemd has it, and what it makes of the processes."""

from __future__ import annotations

import pytest

from tests.systemd.service import ETC, RUN, STATE, UNIT, Service, limits_of

pytestmark = pytest.mark.systemd

EXPOSURE_MAX = 2.0
"""10 = as exposed as can be. Source: `systemd-analyze security` says 2.0 with systemd 252 and 257, 2026-11-30."""
PROPERTIES = {
    "Type": "notify",
    "NotifyAccess": "main",
    "User": UNIT,
    "Group": UNIT,
    "KillMode": "mixed",
    "OOMPolicy": "continue",
    "OOMScoreAdjust": "-500",
    "LimitCORE": "0",
    "LimitMEMLOCK": "infinity",
    "LimitNOFILE": "65536",
    "TasksMax": "32768",
    "Restart": "on-failure",
    "RestartPreventExitStatus": "78",
    "RuntimeDirectory": UNIT,
    "RuntimeDirectoryMode": "0750",
    "StateDirectory": UNIT,
    "StateDirectoryMode": "0750",
    "CacheDirectory": UNIT,
    "ConfigurationDirectory": UNIT,
    "ConfigurationDirectoryMode": "0750",
    "DevicePolicy": "closed",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "read-only",
    "CapabilityBoundingSet": "",
    "PrivateDevices": "no",
}
DEVICES = {"char-nvidia", "char-nvidiactl", "char-nvidia-frontend", "char-nvidia-uvm", "char-nvidia-caps"}


def test_systemd_has_read_every_property_as_it_was_meant(service: Service) -> None:
    assert service.show(*PROPERTIES) == PROPERTIES
    allowed = service.machine.run(f"systemctl show --property=DeviceAllow --value {UNIT}").ok()
    assert {line.split()[0] for line in allowed.splitlines()} >= DEVICES


def test_a_hang_a_start_and_a_stop_all_have_limits(service: Service) -> None:
    assert service.show("WatchdogUSec", "TimeoutStartUSec", "TimeoutStopUSec", "TimeoutAbortUSec") == {
        "WatchdogUSec": "2min",
        "TimeoutStartUSec": "1min 30s",
        "TimeoutStopUSec": "1min 30s",
        "TimeoutAbortUSec": "30s",
    }


def test_the_devices_unit_is_there_and_runs_before_where_there_is_a_driver(service: Service) -> None:
    unit = f"{UNIT}-devices.service"
    assert unit in service.show_one("Wants").split()
    assert unit in service.show_one("After").split()
    assert service.systemctl(f"show --property=LoadState --value {unit}").out.strip() == "loaded"


def test_verify_finds_nothing_and_the_exposure_stays_low(service: Service) -> None:
    assert service.machine.run(f"systemd-analyze verify {UNIT}.service").told.strip() == ""
    ran = service.machine.run(f"systemd-analyze security --no-pager {UNIT}.service")
    exposure = float(ran.out.partition("Overall exposure level")[2].partition(":")[2].split()[0])
    assert exposure <= EXPOSURE_MAX, ran.out


def test_the_kernel_would_take_the_engine_first_and_nobody_dumps_core(service: Service) -> None:
    scores, cores = {}, {}
    for name, pid in service.pids.items():
        scores[name] = int(service.machine.path(f"/proc/{pid}/oom_score_adj").read_text())
        cores[name] = limits_of(service.machine.path(f"/proc/{pid}/limits").read_text())["Max core file size"]
    # Without CAP_SYS_RESOURCE a score below 0 is not given, and systemd says nothing; on a real box it is -500.
    assert scores == {"daemon": 0, "gateway": 0, "engine": 1000}
    assert cores == dict.fromkeys(scores, "0")


def test_folders_are_made_for_the_service_alone(service: Service) -> None:
    shown = service.machine.run(f"stat --format='%a %U %n' {RUN} {STATE} {ETC}").ok().splitlines()
    assert shown == [f"750 {UNIT} {RUN}", f"750 {UNIT} {STATE}", f"750 root {ETC}"]


def test_nobody_else_reaches_keys_seats_sockets_or_state(service: Service) -> None:
    service.answers("ana")
    look = f"find {RUN} {STATE} {ETC} -mindepth 1 ( -type f -o -type s )".replace("(", "\\(").replace(")", "\\)")
    files = service.machine.run(look).ok().split()
    assert {f"{RUN}/control.sock", f"{RUN}/gateway.sock", f"{ETC}/seats.toml", f"{ETC}/first-admin-token"} <= {*files}
    assert any("engine" in file and file.endswith(".key") for file in files), files
    reached = service.machine.run(f"runuser -u nobody -- sh -c 'for f in {' '.join(files)}; do ls -d $f; done'")
    assert reached.out == ""
    for name in ("control", "gateway"):
        connect = f'import socket; socket.socket(socket.AF_UNIX).connect("{RUN}/{name}.sock")'
        ran = service.machine.run(f"runuser -u nobody -- python3 -c '{connect}'")
        assert "PermissionError" in ran.err, ran.told


def test_somebody_else_on_the_box_gets_nothing_from_the_engine_without_its_key(service: Service) -> None:
    url = service.state()["engine"]["url"]
    ask = f'import urllib.request as r; r.urlopen("{url}/v1/models")'
    assert "401" in service.machine.run(f"runuser -u nobody -- python3 -c '{ask}'").err


def test_no_key_is_in_the_arguments_or_the_environment_of_a_process(service: Service) -> None:
    keys = [*service.keys.values(), service.machine.path(f"{ETC}/first-admin-token").read_text().strip()]
    keys.append(service.machine.path(service.state()["engine"]["key_file"]).read_text().strip())
    shown = b""
    for pid in service.pids.values():
        for name in ("cmdline", "environ"):
            shown += service.machine.path(f"/proc/{pid}/{name}").read_bytes()
    assert [key for key in keys if key.encode() in shown] == []
