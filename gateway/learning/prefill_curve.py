"""Predicts how long the engine reads a prompt, from what it was measured to take. Pure.

`F(p, c) = a (p - c) / 1e3 + b (p^2 - c^2) / 1e6` seconds for a prompt of `p` tokens of which `c` are cached, a and b
never negative. A measurement is `overhead + F`: what a request costs before anything is read is no reading.

Rules:
1. Before the first measurement: the study's curve and overhead.
2. With few measurements, or all of one size: the study's curve times the median of what they took over what it says.
3. With FIT_MIN of them over a range of FIT_RANGE: overhead, a and b by a robust fit of relative errors. The curve of
   rule 2 stands in for sizes that were not measured, at a small weight.
4. A measurement counts half after HALF_LIFE newer ones of at least an eighth of its size. So an engine that became
   slower is followed within ten cold prompts, and many warm turns do not drive out the few cold prompts.
5. Under SMALL_TOKENS of uncached prompt a measurement tells the overhead, not the pace of reading.

Source: facts/admission-and-bench.md section 3 (a = .11397, b = 2.284e-4, .3 s a request).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.learning.robust_fit import Row, fit, weighted_median

A_STUDY = 0.11397
B_STUDY = 2.284e-4
OVERHEAD_STUDY_S = 0.3
SMALL_TOKENS = 256
FIT_MIN = 8
FIT_RANGE = 4.0
"""Longest over shortest reading."""
HALF_LIFE = 5.0
AGE_MAX = 60
"""What is older than this is as old as it gets: where nothing newer is there, it is all that is known."""
CLASS_MAX = 8
"""Measurements kept of each class of sizes; a class is an octave of uncached tokens."""
_CLASSES = 16
_TOKENS_MAX = 1 << 24
_SECONDS_MAX = 86_400.0
_SHAPE_TOKENS = (8_000, 32_000, 128_000, 256_000)
_SHAPE_WEIGHT = 0.2


@dataclass(slots=True)
class _Sample:
    """`age`: newer samples that count against it, see rule 4."""

    prompt_tokens: int
    cached_tokens: int
    seconds: float
    age: int = 0

    @property
    def uncached(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def tells_reading(self) -> bool:
        return self.uncached >= SMALL_TOKENS

    @property
    def weight(self) -> float:
        return float(0.5 ** (self.age / HALF_LIFE))


@dataclass(frozen=True, slots=True)
class _Fit:
    overhead_s: float = OVERHEAD_STUDY_S
    a: float = A_STUDY
    b: float = B_STUDY
    fitted: bool = False

    def seconds(self, prompt_tokens: int, cached_tokens: int) -> float:
        linear, square = _features(prompt_tokens, cached_tokens)
        return self.a * linear + self.b * square


_STUDY = _Fit()


class PrefillCurve:
    """One per engine and model. Feed it with clean measurements only: nothing else was read from the moment the prompt
    was sent until its first token."""

    def __init__(self) -> None:
        self._classes: dict[int, deque[_Sample]] = {}
        self._fit: _Fit | None = _STUDY

    def predict_s(self, prompt_tokens: int, cached_tokens: int) -> float:
        """Seconds of reading, without the overhead of a request. Never negative; grows with the prompt and falls with
        what is cached. Numbers out of range are taken for the nearest that is in it."""
        prompt = min(max(prompt_tokens, 0), _TOKENS_MAX)
        return self._found().seconds(prompt, min(max(cached_tokens, 0), prompt))

    def learn(self, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        """One clean measurement: `seconds` from sending the request to its first token, tokens by the engine's usage.
        What cannot be true is passed over."""
        if not (0 <= cached_tokens <= prompt_tokens <= _TOKENS_MAX and 0 < seconds <= _SECONDS_MAX):
            return
        sample = _Sample(prompt_tokens, cached_tokens, float(seconds))
        for other in self._samples():
            if sample.uncached * 8 >= other.uncached:
                other.age = min(other.age + 1, AGE_MAX)
        self._keep(sample)

    @property
    def fitted(self) -> bool:
        """Whether the box's own measurements give the shape of the curve, and not only its height."""
        return self._found().fitted

    @property
    def measured(self) -> int:
        """Measurements that are kept and tell the pace of reading (rule 5)."""
        return sum(1 for sample in self._samples() if sample.tells_reading)

    @property
    def overhead_s(self) -> float:
        """Seconds that a request takes before anything of it is read."""
        return self._found().overhead_s

    @property
    def coefficients(self) -> tuple[float, float]:
        """a and b, for the simulator and for the page."""
        found = self._found()
        return found.a, found.b

    def as_dict(self) -> dict[str, Any]:
        """The measurements, to be kept."""
        return {"samples": [[s.prompt_tokens, s.cached_tokens, s.seconds, s.age] for s in self._samples()]}

    @classmethod
    def from_dict(cls, kept: Any) -> PrefillCurve:
        """Raises ValueError for what `as_dict` never gives."""
        rows = kept.get("samples") if isinstance(kept, dict) else None
        if not isinstance(rows, list) or len(rows) > _CLASSES * CLASS_MAX:
            raise ValueError("a prefill curve has no list of samples, or too long a one")
        curve = cls()
        for row in rows:
            curve._keep(_sample_of(row))
        return curve

    def _samples(self) -> Iterator[_Sample]:
        for kept in self._classes.values():
            yield from kept

    def _keep(self, sample: _Sample) -> None:
        self._classes.setdefault(_class_of(sample.uncached), deque(maxlen=CLASS_MAX)).append(sample)
        self._fit = None

    def _found(self) -> _Fit:
        if self._fit is None:
            self._fit = _fitted(list(self._samples()))
        return self._fit


def _fitted(samples: list[_Sample]) -> _Fit:
    """Rules 2 and 3."""
    scaled = _scaled(samples)
    reading = [sample for sample in samples if sample.tells_reading]
    lengths = [_STUDY.seconds(sample.prompt_tokens, sample.cached_tokens) for sample in reading]
    if len(reading) < FIT_MIN or max(lengths) < FIT_RANGE * min(lengths):
        return scaled
    rows: list[Row] = [
        ((1.0, *_features(sample.prompt_tokens, sample.cached_tokens)), sample.seconds, sample.weight)
        for sample in samples
    ]
    for tokens in _SHAPE_TOKENS:
        seconds = scaled.overhead_s + scaled.seconds(tokens, 0)
        rows.append(((1.0, *_features(tokens, 0)), seconds, _SHAPE_WEIGHT))
    overhead_s, a, b = fit(rows, (scaled.overhead_s, scaled.a, scaled.b))
    return _Fit(overhead_s, a, b, fitted=True)


def _scaled(samples: list[_Sample]) -> _Fit:
    """The study's curve, as high as the measurements say."""
    scale, overhead_s = 1.0, OVERHEAD_STUDY_S
    for _ in range(2):
        ratios = [(_ratio(sample, overhead_s), sample.weight) for sample in samples if sample.tells_reading]
        scale = weighted_median(ratios) or scale
        left = [
            (
                max(0.0, sample.seconds - scale * _STUDY.seconds(sample.prompt_tokens, sample.cached_tokens)),
                sample.weight,
            )
            for sample in samples
            if not sample.tells_reading
        ]
        told = weighted_median(left)
        overhead_s = overhead_s if told is None else told
    return _Fit(overhead_s, scale * A_STUDY, scale * B_STUDY)


def _ratio(sample: _Sample, overhead_s: float) -> float:
    """Reading that took no longer than the overhead may be half of it; nobody can tell."""
    reading_s = max(sample.seconds - overhead_s, sample.seconds / 2)
    return reading_s / _STUDY.seconds(sample.prompt_tokens, sample.cached_tokens)


def _features(prompt_tokens: int, cached_tokens: int) -> tuple[float, float]:
    uncached = prompt_tokens - cached_tokens
    return uncached / 1e3, uncached * (prompt_tokens + cached_tokens) / 1e6


def _class_of(uncached: int) -> int:
    return min((uncached // SMALL_TOKENS).bit_length(), _CLASSES - 1)


def _sample_of(row: Any) -> _Sample:
    match row:
        case [int(prompt), int(cached), int() | float() as seconds, int(age)] if bool not in map(type, row):
            if 0 <= cached <= prompt <= _TOKENS_MAX and 0 < seconds <= _SECONDS_MAX and 0 <= age <= AGE_MAX:
                return _Sample(prompt, cached, float(seconds), age)
    raise ValueError("a sample of a prefill curve is not [prompt tokens, cached tokens, seconds, age]")
