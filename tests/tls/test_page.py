"""docs/tls.md itself: its settings are ours, its numbers follow from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.config import load
from gateway.routes import DIALECTS
from gateway.settings import AdmissionSettings
from tests.tls.conftest import PUBLIC
from tests.tls.forms import FORMS
from tests.tls.proxies import program
from tests.tls.snippets import snippet


def test_its_settings_are_those_of_the_tests(tmp_path: Path) -> None:
    file = tmp_path / "appliance.toml"
    file.write_text(snippet("toml"))
    config, _ = load(file, {})
    assert config.listen == "127.0.0.1:8000"
    assert {"public_url": config.public_url, "trusted_proxies": config.trusted_proxies} == PUBLIC


def test_no_proxy_is_less_patient_than_the_gateway() -> None:
    limits = AdmissionSettings()
    longest_s = limits.queue_deadline_s + limits.max_stream_s
    found = [
        re.findall(r"proxy_read_timeout (\d+)s", snippet("nginx")),
        re.findall(r"timeout client (\d+)s", snippet("haproxy")),
        re.findall(r"timeout server (\d+)s", snippet("haproxy")),
    ]
    for (timeout_s,) in found:
        assert int(timeout_s) > longest_s


def test_every_route_that_streams_has_a_form() -> None:
    missing = {path for path in DIALECTS if not path.endswith("/count_tokens")} - {form.path for form in FORMS}
    assert not missing, f"add a line to tests/tls/forms.py for {missing}"


def test_a_missing_program_fails_unless_it_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOE_NO_PROXIES", raising=False)
    with pytest.raises(pytest.fail.Exception, match="apt-get install"):
        program("no-such-proxy")
    monkeypatch.setenv("MOE_NO_PROXIES", "1")
    with pytest.raises(pytest.skip.Exception):
        program("no-such-proxy")
