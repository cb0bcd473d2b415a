"""appliance.box.nvml_report: a report of whatever the child wrote, and of how it ended."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.box.gpu import Outcome
from appliance.box.nvml_report import Document, Kernel, document, no_answer, report

CARD = {"index": 0, "uuid": "GPU-1", "name": "card", "bus_id": "0000:41:00.0", "total_bytes": 5}
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("code", "written", "outcome", "error"),
    [
        (None, "", Outcome.HUNG, "no answer within 5 s"),
        (None, "asking nvmlInit\nasking A of card 1\n", Outcome.HUNG, "no answer within 5 s in A of card 1"),
        (-14, "asking nvmlInit\n", Outcome.HUNG, "no answer within 5 s in nvmlInit"),
        (-11, "asking A\nnoise\n", Outcome.CRASHED, "the process that asked died of SIGSEGV in A"),
        (-9, "", Outcome.CRASHED, "the process that asked died of SIGKILL"),
        (0, "", Outcome.FAILED, "the process that asked ended with code 0: its answer is unreadable"),
        (1, "asking A\nTrace\nNo: x\n", Outcome.FAILED, "the process that asked ended with code 1 in A: No: x"),
    ],
)
def test_an_end_without_an_answer_names_its_kind_and_the_last_call(
    code: int | None, written: str, outcome: Outcome, error: str
) -> None:
    found = no_answer(code, written, "580.95.05", 5.0)
    assert (found.outcome, found.error, found.module) == (outcome, error, "580.95.05")


def test_pynvml_that_is_missing_is_a_failure_in_pythons_words() -> None:
    found = report(Document(code=-1, error="No module named 'pynvml'"), Kernel())
    assert (found.outcome, found.error) == (Outcome.FAILED, "No module named 'pynvml'")


def test_traces_of_a_module_tell_a_missing_library_from_a_missing_driver() -> None:
    assert report(Document(code=12), Kernel(present=True)).outcome is Outcome.NO_LIBRARY
    assert report(Document(code=12), Kernel(present=False)).outcome is Outcome.NO_DRIVER


def test_a_module_whose_version_is_unknown_is_no_mismatch() -> None:
    assert report(Document(code=0, driver="580.95.05"), Kernel(present=True)).outcome is Outcome.OK


def test_lost_cards_that_cannot_be_matched_to_addresses_are_told_by_index() -> None:
    # given two refused cards, and one address that nobody answers for
    said = Document(code=0, lost=((0, "GPU is lost"), (1, "GPU is lost")))
    # then no card gets an address that may be the other's
    assert report(said, Kernel(registered=["0000:41:00.0"])).lost == ("card 0: GPU is lost", "card 1: GPU is lost")


@given(st.one_of(st.text(), JSON.map(json.dumps)))
@example("")
@example("[" * 100_000)
@example('{"code": 0, "cards": [{}]}')
@example('{"code": 0} {"code": 0}')
def test_text_that_is_no_answer_is_none(text: str) -> None:
    assert document(text) is None


@given(st.dictionaries(st.sampled_from([*CARD, "link", "mig", "processes", "numa_node"]), JSON))
def test_a_card_with_odd_values_is_refused_or_reported_and_never_raises(odd: dict[str, object]) -> None:
    said = document(json.dumps({"code": 0, "cards": [{**CARD, **odd}]}))
    if said is not None:
        assert len(report(said, Kernel()).gpus) == 1
