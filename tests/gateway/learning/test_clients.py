"""gateway.learning.clients: families of agents, and nothing that a stranger wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.learning.clients import FAMILIES, OTHER, client_of


@pytest.mark.parametrize(
    ("agent", "family"),
    [
        (b"claude-cli/2.1.332 (external, cli)", "claude-cli"),
        (b"codex_cli_rs/0.171.0 (Debian 13; x86_64)", "codex"),
        (b"codex_exec/0.171.0", "codex"),
        (b"opencode/1.18.33 ai-sdk/provider-utils", "opencode"),
        (b"aider/0.86.2", "aider"),
        (b"litellm/1.81.10", "aider"),
        (b"pi/0.73.1", "pi"),
        (b"pi-coding-agent/0.73.1", "pi"),
        (b"QwenCode/0.24.4 (linux; x64)", "qwen"),
        (b"pip/24.0", OTHER),
        (b"OpenAI/Python 3.57.0", OTHER),
        (b"", OTHER),
        (b"\xff\x00", OTHER),
    ],
)
def test_the_family_is_told_by_the_first_product(agent: bytes, family: str) -> None:
    assert client_of([(b"host", b"x"), (b"user-agent", agent)]) == family


def test_without_a_user_agent_it_is_another() -> None:
    assert client_of([]) == OTHER


@given(st.binary(max_size=100))
def test_only_words_of_the_list_come_out(agent: bytes) -> None:
    assert client_of([(b"user-agent", agent)]) in {*FAMILIES.values(), OTHER}
