"""The journal: fields to ask for, and nothing that anybody said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.systemd.service import ETC, UNIT, Service

pytestmark = pytest.mark.systemd
SECRET = "the-plum-tree-behind-the-mill"


def entries(service: Service, matches: str) -> list[dict[str, Any]]:
    """Journal entries with all their fields."""
    return [json.loads(line) for line in service.journal(f"--all {matches}", output="json").splitlines()]


def test_a_seats_requests_are_found_by_its_name_and_no_other_seats(service: Service) -> None:
    assert service.chat("ana", text=SECRET).done
    assert service.chat("ben", text=SECRET).done
    found = entries(service, "SEAT=ana")
    assert found
    assert {entry["SEAT"] for entry in found} == {"ana"}
    assert {entry["_SYSTEMD_UNIT"] for entry in found} == {f"{UNIT}.service"}
    assert {entry["SYSLOG_IDENTIFIER"] for entry in found} == {UNIT}
    assert any(entry.get("REQUEST_ID") for entry in found)


def test_a_request_is_found_by_its_id(service: Service) -> None:
    answer = service.chat("ana")
    found = entries(service, f"REQUEST_ID={answer.headers['x-request-id']}")
    assert [entry["SEAT"] for entry in found] == ["ana"]


def test_the_engines_phases_are_found_by_their_field(service: Service) -> None:
    phases = {entry["ENGINE_STATE"] for entry in entries(service, "ENGINE_STATE=ready ENGINE_STATE=starting")}
    assert phases == {"ready", "starting"}


def test_neither_what_was_asked_nor_what_was_answered_nor_a_key_is_in_the_journal(service: Service) -> None:
    answer = service.chat("ana", text=SECRET, max_tokens=20)
    assert answer.done
    service.cli("seats list").ok()
    written = service.machine.run("journalctl --sync && journalctl --all -q -o export").ok()
    keys = [*service.keys.values(), service.machine.path(f"{ETC}/first-admin-token").read_text().strip()]
    keys.append(service.machine.path(service.state()["engine"]["key_file"]).read_text().strip())
    assert "SEAT=ana" in written
    for secret in (SECRET, answer.content.strip(), *keys):
        assert secret
        assert secret not in written
