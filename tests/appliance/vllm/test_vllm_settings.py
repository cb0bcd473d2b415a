"""[engine] with kind = "vllm": what goes together and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.appliance.vllm.vllm_requests import settings

NODES = {"nnodes": 2, "master_addr": "10.0.0.1", "interface": "eth1"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"args": ["--api-key", "x"]}, "--api-key is not for you to set"),
    ({"args": ["--host=0.0.0.0"]}, "--host is not for you to set"),
    ({"args": ["--headless"]}, "boxes that only help have"),
    ({"args": ["seed"]}, "belongs to no flag"),
    ({"env": {"VLLM_API_KEY": "x"}}, "VLLM_API_KEY is not for you to set"),
    ({"env": {"VLLM_PLUGINS": "x"}}, "name the plugins in"),
    ({"env": {"VLLM_SERVER_DEV_MODE": "1"}}, "paths that want no key"),
    ({"env": {"a b": "1"}}, "is not a variable's name"),
    (
        {"host_kv_gib": 1.0, "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
        "does not go together with host_kv_gib",
    ),
    (
        {"host_kv_gib": 1.0, "env": {"PYTORCH_ALLOC_CONF": "a:1,Expandable_Segments:true"}},
        "does not go together with host_kv_gib",
    ),
    ({"host_kv_gib": 1.0, "args": ["--kv-offloading-size", "3"]}, "are the same"),
    ({"host_kv_gib": 1.0, "profile": "vllm-cpu-tiny"}, "needs cards"),
    ({"host_kv_gib": 1.0, "nodes": NODES}, "is for one box"),
    ({"python": "/p", "environment": "vllm"}, "leave one of them out"),
    ({"revision": "0123", "model": "/m"}, "comes from the hub"),
    ({"revision": "0123"}, "comes from the hub"),
    ({"placement": "command"}, "plan_args is empty"),
    ({"plan_args": ["--x"]}, 'plan_args is for placement = "command"'),
    ({"plugins": {"p": "("}}, "is no regular expression"),
    ({"plugins": {"p": ".*"}}, "fits every line"),
    ({"plugins": {"a,b": "x"}}, "is not a plugin's name"),
    ({"profile": "vllm"}, "Input should be"),
    ({"unknown": 1}, "Extra inputs"),
]


@pytest.mark.parametrize(("table", "said"), REFUSED)
def test_what_does_not_go_together_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("(", r"\(")):
        settings(**table)


def test_the_dev_mode_may_be_written_with_the_tier_that_needs_it() -> None:
    assert settings(host_kv_gib=1.0, env={"VLLM_SERVER_DEV_MODE": "1"}).host_kv_gib == 1.0


def test_nothing_needs_to_be_set() -> None:
    assert settings().profile == "vllm-generic"
