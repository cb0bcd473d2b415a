"""The checks that all dialects share."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dialects import Dialect, fields
from gateway.dialects.messages import MESSAGES
from gateway.dialects.openai import CHAT
from gateway.dialects.responses import RESPONSES
from gateway.problem import Problem

ALL = pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda dialect: dialect.path)
BODY = {"messages": [{"role": "user", "content": "x"}], "input": "x"}
REFUSED: list[tuple[str, Any, str]] = [
    ("n", 2, "one sequence"), ("n", "1", "whole number"), ("best_of", 0, "one sequence"), ("n_cmpl", True, "whole"),
    ("background", True, "outlive"), ("use_beam_search", 1, "one sequence"), ("stream", "yes", "true or false"),
    ("stream", 0, "true or false"), ("model", 5, "string"), ("max_tokens", -1, "0 or more"),
    ("max_output_tokens", "5", "whole number"), ("max_completion_tokens", 1.5, "whole number"),
]  # fmt: skip


@ALL
@pytest.mark.parametrize(("field", "value", "said"), REFUSED)
def test_what_would_start_more_than_one_sequence_is_refused_by_name(
    dialect: Dialect, field: str, value: Any, said: str
) -> None:
    problem = dialect.prepare(b"{}", {**BODY, field: value})
    assert isinstance(problem, Problem)
    assert (problem.status, problem.param, problem.heals) == (400, field, False)
    assert said in problem.message


@ALL
@pytest.mark.parametrize("field", [row[0] for row in REFUSED])
def test_null_is_as_good_as_nothing(dialect: Dialect, field: str) -> None:
    assert not isinstance(dialect.prepare(b"{}", {**BODY, field: None}), Problem)


@ALL
def test_what_a_client_says_at_length_is_not_said_back_at_length(dialect: Dialect) -> None:
    problem = dialect.prepare(b"{}", {**BODY, "background": "x" * 100_000})
    assert isinstance(problem, Problem)
    assert len(problem.message) < 500


@pytest.mark.parametrize(
    ("body", "bound"),
    [
        ({}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 7}, ("max_tokens", 7)),
        ({"max_tokens": 7, "max_completion_tokens": 9}, ("max_completion_tokens", 9)),
        ({"max_output_tokens": 5}, ("max_output_tokens", 5)),
    ],
)
def test_the_field_that_bounds_the_answer(body: dict[str, Any], bound: tuple[str, int] | None) -> None:
    assert fields.max_tokens(body) == bound


@pytest.mark.parametrize(("value", "said"), [(None, "missing"), ([], "at least one"), ("x", "a list"), ({}, "a list")])
def test_a_conversation_is_a_list(value: Any, said: str) -> None:
    problem = fields.check_list({"messages": value}, "messages")
    assert problem is not None
    assert said in problem.message
    assert problem.param == "messages"
