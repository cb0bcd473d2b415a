"""The list of models, in both forms."""

from __future__ import annotations

import pytest

from gateway.listing import is_anthropic, listed, one
from gateway.state import EngineState

ENGINE = EngineState(models=("m", "n"), context_tokens=8192, since_s=1_764_000_000.9)
NOBODY = EngineState()
OPENAI = {"object": "model", "created": 1_764_000_000, "owned_by": "moe-appliance", "max_model_len": 8192,
          "context_length": 8192, "context_window": 8192}  # fmt: skip
ANTHROPIC = {
    "type": "model",
    "display_name": "m",
    "created_at": "2025-11-24T16:00:00Z",
    "lifecycle": "active",
    "max_input_tokens": 8192,
}


def test_the_form_of_openai() -> None:
    assert listed(ENGINE, anthropic=False) == {
        "object": "list",
        "data": [{"id": "m", **OPENAI}, {"id": "n", **OPENAI}],
    }
    assert listed(NOBODY, anthropic=False) == {"object": "list", "data": []}


def test_the_form_of_anthropic() -> None:
    found = listed(ENGINE, anthropic=True)
    assert found["data"][0] == {"id": "m", **ANTHROPIC}
    assert (found["has_more"], found["first_id"], found["last_id"]) == (False, "m", "n")
    assert listed(NOBODY, anthropic=True) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize("anthropic", [True, False])
def test_one_model_is_a_row_of_the_list(anthropic: bool) -> None:
    assert one(ENGINE, "n", anthropic=anthropic) == listed(ENGINE, anthropic=anthropic)["data"][1]
    assert one(ENGINE, "x", anthropic=anthropic) is None
    assert one(NOBODY, "", anthropic=anthropic) is None


def test_a_window_that_nobody_knows_is_not_told() -> None:
    engine = ENGINE.model_copy(update={"context_tokens": None})
    assert "max_input_tokens" not in listed(engine, anthropic=True)["data"][0]
    assert set(listed(engine, anthropic=False)["data"][0]) == {"id", "object", "created", "owned_by"}


def test_who_speaks_anthropics_form_says_so() -> None:
    assert is_anthropic({"anthropic-version": "2023-06-01"})
    assert not is_anthropic({"anthropic-beta": "x"})


def test_the_sdks_own_types_take_the_rows() -> None:
    from anthropic.types import ModelInfo
    from openai.types import Model

    assert Model.model_validate(listed(ENGINE, anthropic=False)["data"][0]).id == "m"
    row = ModelInfo.model_validate(listed(ENGINE, anthropic=True)["data"][0])
    assert (row.display_name, row.max_input_tokens) == ("m", 8192)
