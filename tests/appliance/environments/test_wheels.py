"""Which wheels are fetched together, which count as there."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.environments import wheels
from appliance.engine.environments.lock import Wheel, parse
from appliance.errors import MoeError
from tests.appliance.environments.wheelhouse import House


def of(size_bytes: int) -> Wheel:
    return Wheel("a", "1", "0" * 64, size_bytes, "a.whl")


@given(st.lists(st.integers(1, 3 * wheels.BATCH_BYTES).map(of), max_size=80))
def test_batches_hold_every_wheel_once_and_little_each(given_: list[Wheel]) -> None:
    cut = wheels.batches(given_)
    assert [one for batch in cut for one in batch] == given_
    for batch in cut:
        assert 1 <= len(batch) <= wheels.BATCH_WHEELS
        assert len(batch) == 1 or sum(one.size_bytes for one in batch) <= wheels.BATCH_BYTES


def test_a_wheel_that_is_not_whole_counts_as_missing_and_is_removed(tiny: House, tmp_path: Path) -> None:
    lock = parse((tiny.locks / "tiny.lock").read_text())
    whole, cut = lock.wheels
    (tmp_path / whole.file).write_bytes((tiny.wheels / whole.file).read_bytes())
    (tmp_path / cut.file).write_bytes((tiny.wheels / cut.file).read_bytes()[:-1])
    assert wheels.present(tmp_path, lock.wheels, lambda _: None) == {whole.file}
    assert not (tmp_path / cut.file).exists()


def test_what_is_missing_or_wrong_in_an_operators_folder_is_named(tiny: House, tmp_path: Path) -> None:
    lock = parse((tiny.locks / "tiny.lock").read_text())
    (tmp_path / lock.wheels[0].file).write_text("something else")
    with pytest.raises(MoeError) as caught:
        wheels.supplied(tmp_path, lock.wheels, tiny.locks / "tiny.lock", lambda _: None)
    assert f"{lock.wheels[0].file} is another file" in caught.value.message
    assert f"{lock.wheels[1].file} is not there" in caught.value.message
    assert f"-r {tiny.locks}/tiny.lock --dest {tmp_path}" in caught.value.remedy
    assert (tmp_path / lock.wheels[0].file).exists(), "it is the operator's folder"


def test_a_folder_of_wheels_that_is_not_there_is_said_in_one_line(tiny: House, tmp_path: Path) -> None:
    lock = parse((tiny.locks / "tiny.lock").read_text())
    with pytest.raises(MoeError, match="nope: there is no such folder"):
        wheels.supplied(tmp_path / "nope", lock.wheels, tiny.locks / "tiny.lock", lambda _: None)
