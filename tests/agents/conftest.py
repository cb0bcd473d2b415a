"""Fixtures of the tests with real clients: no network but loopback, and no process left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.agents import isolated
from tests.agents.clients import AGENT_CLIENTS, BILLED, CLIENTS, SDKS
from tests.agents.processes import living

REMEDY = "run scripts/test, or python -m tests.agents.isolated .venv/bin/pytest tests/agents"


@pytest.fixture(scope="session", autouse=True)
def loopback_only() -> None:
    """Real clients never start where they could reach their vendor."""
    if isolated.routed():
        pytest.exit(f"tests/agents must run where only loopback exists: {REMEDY}", returncode=2)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Each test ends every process of its clients."""
    yield
    assert not living()


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("asyncio", {"use_uvloop": True})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`client`: each of them. `agent`: the coding agents, one of them twice. `several`: the SDKs, and all together."""
    npm = pytest.mark.agents
    if "client" in metafunc.fixturenames:
        rows = [pytest.param(client, id=client.name, marks=npm if client.agent else ()) for client in CLIENTS]
        metafunc.parametrize("client", rows)
    if "agent" in metafunc.fixturenames:
        rows = [pytest.param(client, id=client.name, marks=npm) for client in (*AGENT_CLIENTS, BILLED)]
        metafunc.parametrize("agent", rows)
    if "several" in metafunc.fixturenames:
        rows = [pytest.param(SDKS, id="sdks"), pytest.param(CLIENTS, id="all", marks=npm)]
        metafunc.parametrize("several", rows)
