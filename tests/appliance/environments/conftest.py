"""An environment that is installed once, and pip without any index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.engine.environments.install import Installed, install
from appliance.engine.environments.sets import SETS
from tests.appliance.environments.wheelhouse import House, house

MakeInstalled = Callable[[Path, House], Installed]


def put(state_dir: Path, made: House, **more: Path) -> Installed:
    """Install the house's set from its own wheels."""
    SETS["tiny"] = made.made
    given = {"offline": made.wheels} | more
    return install(made.made, state_dir, lambda _: None, locks=made.locks, **given)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def tiny(home: Path) -> House:
    return house(home / "house")


@pytest.fixture(scope="module")
def done(home: Path, tiny: House) -> Installed:
    """The set, installed in `home`/state; for tests that leave it as it is."""
    return put(home / "state", tiny)


@pytest.fixture(autouse=True, scope="module")
def _no_index() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.delenv("PIP_FIND_LINKS", raising=False)
        yield
    SETS.pop("tiny", None)
