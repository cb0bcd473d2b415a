"""What speaks against several keys of a table is told in the line of the key that it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config import parsed
from appliance.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('args = ["foo"]', r":4: engine\.args 'foo' belongs to no flag"),
        ('env = { VLLM_API_KEY = "x" }', r":4: engine\.env VLLM_API_KEY is not for you to set"),
        ('plugins = { a = "(" }', r":4: engine\.plugins the pattern of a is no regular expression"),
        ('revision = "x"', r":4: engine\.revision is for a model"),
        ('placement = "command"', r":2: engine plan_args is empty"),
    ],
)
def test_a_key_that_does_not_go_with_another_is_told_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    text = f'listen = "127.0.0.1:1"\n[engine]\nkind = "vllm"\n{line}\n'
    with pytest.raises(ConfigError, match=said):
        parsed(tmp_path / "appliance.toml", text.encode(), {})
