"""Samples for Prometheus from figures: what is not known is left out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.status.figures import Figure

Value = float | Figure | None
Row = tuple[tuple[str, ...], Value]
"""Label values and what they are worth."""


def gauge(name: str, help: str, value: Value) -> Iterator[Metric]:
    """One number that goes up and down."""
    number = _number(value)
    if number is not None:
        yield GaugeMetricFamily(name, help, value=number)


def counter(name: str, help: str, value: Value) -> Iterator[Metric]:
    """One number that only grows."""
    number = _number(value)
    if number is not None:
        yield CounterMetricFamily(name, help, value=number)


def one_of(name: str, help: str, label: str, words: Iterable[str], now: str) -> Metric:
    """1 for the word that holds now, 0 for the others."""
    family = GaugeMetricFamily(name, help, labels=[label])
    for word in words:
        family.add_metric([word], float(word == now))
    return family


def gauges(name: str, help: str, labels: Iterable[str], rows: Iterable[Row]) -> Metric:
    """A number for each set of labels."""
    return _filled(GaugeMetricFamily(name, help, labels=list(labels)), rows)


def counters(name: str, help: str, labels: Iterable[str], rows: Iterable[Row]) -> Metric:
    """A growing number for each set of labels."""
    return _filled(CounterMetricFamily(name, help, labels=list(labels)), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Iterable[Row]) -> Metric:
    for labels, value in rows:
        number = _number(value)
        if number is not None:
            family.add_metric(list(labels), number)
    return family


def _number(value: Value) -> float | None:
    return value.value if isinstance(value, Figure) else value
