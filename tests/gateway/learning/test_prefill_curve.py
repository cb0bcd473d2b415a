"""gateway.learning.prefill_curve: the box's own seconds of reading, whatever it was told before."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.learning.prefill_curve import A_STUDY, B_STUDY, OVERHEAD_STUDY_S, PrefillCurve

WHOLE = (4_000, 16_000, 64_000, 128_000, 200_000)


def truth(prompt: int, cached: int, scale: float = 1.0, a: float = A_STUDY, b: float = B_STUDY) -> float:
    return scale * (a * (prompt - cached) / 1e3 + b * (prompt**2 - cached**2) / 1e6)


def requests(rng: random.Random, count: int, longest: int = 150_000) -> Iterable[tuple[int, int]]:
    """One of four is cold, the others are turns of 3.5K."""
    for at in range(count):
        prompt = rng.randint(5_000, longest)
        yield prompt, 0 if at % 4 == 0 else prompt - min(prompt, 3_500)


def taught(count: int, *, seed: int = 1, noise: float = 0.05, overhead_s: float = 0.3, **shape: float) -> PrefillCurve:
    rng, curve = random.Random(seed), PrefillCurve()
    for prompt, cached in requests(rng, count):
        seconds = overhead_s + truth(prompt, cached, **shape)
        curve.learn(prompt, cached, seconds * rng.uniform(1 - noise, 1 + noise))
    return curve


def test_before_the_first_measurement_it_is_the_studys_curve() -> None:
    curve = PrefillCurve()
    assert curve.predict_s(128_000, 0) == pytest.approx(18.33, abs=0.01)
    assert curve.predict_s(260_000, 0) == pytest.approx(45.07, abs=0.01)
    assert not curve.fitted


@pytest.mark.parametrize("seed", range(5))
def test_the_studys_curve_comes_out_of_noisy_measurements_within_5_percent(seed: int) -> None:
    curve = taught(60, seed=seed)
    assert curve.fitted
    for prompt in WHOLE:
        assert curve.predict_s(prompt, 0) == pytest.approx(truth(prompt, 0), rel=0.05)


@pytest.mark.parametrize("shape", [{"a": 0.05, "b": 9e-4}, {"a": 0.3, "b": 0.0}, {"a": 0.0, "b": 5e-4}])
def test_another_shape_comes_out_as_well(shape: dict[str, float]) -> None:
    curve = taught(60, noise=0.03, **shape)
    for prompt in (30_000, 80_000, 150_000):
        assert curve.predict_s(prompt, 0) == pytest.approx(truth(prompt, 0, **shape), rel=0.08)


def test_an_engine_60_times_slower_is_followed_after_one_measurement() -> None:
    curve = PrefillCurve()
    curve.learn(2_000, 0, 0.3 + truth(2_000, 0, 60))
    for prompt in WHOLE:
        assert curve.predict_s(prompt, 0) == pytest.approx(truth(prompt, 0, 60), rel=0.05)


def test_a_small_engine_with_small_prompts_is_fitted() -> None:
    rng, curve = random.Random(3), PrefillCurve()
    for _ in range(30):
        prompt = rng.randint(300, 3_000)
        curve.learn(prompt, 0, 0.05 + truth(prompt, 0, 60) * rng.uniform(0.95, 1.05))
    assert curve.fitted
    assert curve.predict_s(2_000, 0) == pytest.approx(truth(2_000, 0, 60), rel=0.05)
    assert curve.predict_s(30_000, 0) == pytest.approx(truth(30_000, 0, 60), rel=0.5), "beyond what was measured"


@pytest.mark.parametrize("count", [3, 8, 20, 60])
@pytest.mark.parametrize("factor", [10.0, 0.1])
@pytest.mark.parametrize("size", [(3_500, 0), (90_000, 0), (90_000, 86_500)])
def test_one_outlier_moves_nothing_by_more_than_15_percent(count: int, factor: float, size: tuple[int, int]) -> None:
    curve = taught(count, seed=count)
    before = [curve.predict_s(prompt, 0) for prompt in WHOLE]
    curve.learn(*size, factor * (0.3 + truth(*size)))
    assert [curve.predict_s(prompt, 0) for prompt in WHOLE] == pytest.approx(before, rel=0.15)


@pytest.mark.parametrize("slower", [1.5, 2.0, 4.0])
def test_a_throttled_engine_is_followed_within_ten_cold_prompts(slower: float) -> None:
    curve, rng = taught(80), random.Random(9)
    for _ in range(10):
        prompt = rng.randint(20_000, 120_000)
        curve.learn(prompt, 0, (0.3 + truth(prompt, 0, slower)) * rng.uniform(0.95, 1.05))
    for prompt in (30_000, 88_000, 128_000):
        assert curve.predict_s(prompt, 0) == pytest.approx(truth(prompt, 0, slower), rel=0.12)


def test_what_a_warm_request_takes_is_overhead_and_no_reading() -> None:
    curve = PrefillCurve()
    for _ in range(20):
        curve.learn(88_000, 87_950, 0.4)
    assert curve.measured == 0
    assert curve.overhead_s == pytest.approx(0.4, abs=0.02)
    assert curve.predict_s(88_000, 0) == pytest.approx(truth(88_000, 0))
    assert curve.predict_s(88_000, 87_950) < 0.02
    curve = taught(60, overhead_s=2.0)
    assert curve.overhead_s == pytest.approx(2.0, rel=0.15)
    assert curve.predict_s(64_000, 60_500) == pytest.approx(truth(64_000, 60_500), rel=0.3)


def test_many_warm_turns_do_not_drive_out_the_cold_prompts() -> None:
    curve = taught(60, a=0.05, b=9e-4)
    for _ in range(200):
        curve.learn(40_000, 38_000, 0.3 + truth(40_000, 38_000, a=0.05, b=9e-4))
    assert curve.predict_s(128_000, 0) == pytest.approx(truth(128_000, 0, a=0.05, b=9e-4), rel=0.15)


@pytest.mark.parametrize("nonsense", [(100, 200, 1.0), (100, -1, 1.0), (100, 0, 0.0), (100, 0, float("nan"))])
def test_what_cannot_be_true_is_passed_over(nonsense: tuple[int, int, float]) -> None:
    curve = PrefillCurve()
    curve.learn(*nonsense)
    curve.learn(1 << 40, 0, 1.0)
    curve.learn(100, 0, float("inf"))
    assert curve.measured == 0
    assert curve.overhead_s == OVERHEAD_STUDY_S


SAMPLES = st.lists(
    st.tuples(st.integers(0, 300_000), st.integers(0, 300_000), st.floats(0.001, 5_000)).map(
        lambda s: (max(s[0], s[1]), min(s[0], s[1]), s[2])
    ),
    max_size=40,
)


@given(SAMPLES, st.integers(0, 300_000), st.integers(0, 300_000), st.integers(0, 50_000))
def test_never_negative_grows_with_the_prompt_and_falls_with_the_cache(
    samples: list[tuple[int, int, float]], one: int, other: int, more: int
) -> None:
    curve = PrefillCurve()
    for sample in samples:
        curve.learn(*sample)
    prompt, cached = max(one, other), min(one, other)
    own = curve.predict_s(prompt, cached)
    assert own >= 0
    assert curve.predict_s(prompt + more, cached) >= own
    assert curve.predict_s(prompt, min(cached + more, prompt)) <= own
    assert curve.predict_s(prompt, prompt) == 0
    assert curve.overhead_s >= 0


@given(SAMPLES)
def test_kept_and_read_again_it_predicts_the_same(samples: list[tuple[int, int, float]]) -> None:
    curve = PrefillCurve()
    for sample in samples:
        curve.learn(*sample)
    again = PrefillCurve.from_dict(orjson.loads(orjson.dumps(curve.as_dict())))
    assert again.coefficients == pytest.approx(curve.coefficients)
    assert again.as_dict() == curve.as_dict()


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        [],
        {},
        {"samples": None},
        {"samples": [1]},
        {"samples": [[1, 2, 3]]},
        {"samples": [[1, 2, 1.0, 0]]},
        {"samples": [[2, 1, -1.0, 0]]},
        {"samples": [[2, 1, "1", 0]]},
        {"samples": [[2, True, 1.0, 0]]},
        {"samples": [[2, 1, 1.0, -1]]},
        {"samples": [[2, 1, 1.0, 0]] * 1000},
    ],
)
def test_garbage_is_refused(garbage: Any) -> None:
    with pytest.raises(ValueError, match="prefill curve"):
        PrefillCurve.from_dict(garbage)
