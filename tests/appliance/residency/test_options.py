"""What the environment says is read whole, or refused by the variable's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.residency.document import FILE
from appliance.residency.errors import ResidencyError
from appliance.residency.options import (
    FOLDER,
    FOLLOW,
    FOLLOW_MIB_PER_S,
    STAGING,
    Options,
    options,
)


def test_only_the_document_must_be_named() -> None:
    assert options({FILE: "/d"}) == Options(Path("/d"), None, None, FOLLOW_MIB_PER_S)
    assert options({FILE: "/d", FOLDER: "", STAGING: "", FOLLOW: ""}) == options({FILE: "/d"})


def test_all_of_it_may_be_said_and_zero_switches_off() -> None:
    said = {FILE: "/d", FOLDER: "/s", STAGING: "0", FOLLOW: "0"}
    assert options(said) == Options(Path("/d"), Path("/s"), 0, 0)


@pytest.mark.parametrize("name", [STAGING, FOLLOW])
@pytest.mark.parametrize("said", ["-1", "1.5", "many", "²", "1" * 10])
def test_what_is_no_number_is_refused_by_name(name: str, said: str) -> None:
    with pytest.raises(ResidencyError, match=name):
        options({FILE: "/d", name: said})


@pytest.mark.parametrize("environment", [{}, {FILE: ""}], ids=str)
def test_without_a_document_there_is_nothing_to_place(environment: dict[str, str]) -> None:
    with pytest.raises(ResidencyError, match=f"{FILE} is not set"):
        options(environment)
