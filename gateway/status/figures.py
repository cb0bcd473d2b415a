"""How figures are written: one way for page, JSON, terminal and Prometheus. Pure.

Rules:
- A figure that was not measured has `estimated` set and `~` in its text; one that is not known is `–`.
- `value` is for programs (units in the field's name or docstring), `text` for people. Both say the same.
"""

from __future__ import annotations

import math
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

UNKNOWN = "–"


class View(BaseModel):
    """Part of what is shown. Readers ignore unknown keys: an older command line reads a newer gateway."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Tone(StrEnum):
    """How good that is: BAD = nobody is served and somebody must act, WARN = look at it."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


class Figure(View):
    """A number as it is shown. `value` None = not known."""

    value: float | None = None
    text: str = UNKNOWN
    estimated: bool = False

    def __str__(self) -> str:
        return self.text


def _figure(value: float | None, text: str, estimated: bool) -> Figure:
    if value is None or not math.isfinite(value):
        return Figure()
    return Figure(value=value, text=f"~{text}" if estimated else text, estimated=estimated)


def count(value: int | None, *, estimated: bool = False) -> Figure:
    """A number of things, in groups of three: 128 000."""
    return _figure(value, f"{value or 0:,}".replace(",", " "), estimated)


def pace(value: float | None, *, estimated: bool = False) -> Figure:
    """Output tokens per second; what was declared (40) is not given a decimal that it never had."""
    rate = value or 0.0
    digits = 0 if rate >= 100 or (rate.is_integer() and not estimated) else 1
    return _figure(value, f"{rate:.{digits}f} tok/s", estimated)


def seconds(value: float | None, *, estimated: bool = False) -> Figure:
    """A time, seconds; never negative (clocks of two processes differ)."""
    value = None if value is None or not math.isfinite(value) else max(0.0, value)
    return _figure(value, _duration(value or 0.0, exact=not estimated), estimated)


def hours(value: float | None) -> Figure:
    """A long time that is counted in hours; a decimal below ten."""
    return _figure(value, f"{value or 0:.0f} h" if (value or 0) >= 9.95 else f"{value or 0:.1f} h", False)


def seconds_a_minute(share: float | None, *, estimated: bool = False) -> Figure:
    """A share of time, 0..1, as seconds of each minute; `value` is the share."""
    return _figure(share, f"{(share or 0) * 60:.0f} s / min", estimated)


def per_minute(value: float | None, *, estimated: bool = False) -> Figure:
    """How many a minute."""
    return _figure(value, f"{value or 0:.1f} / min", estimated)


def size(value: float | None, *, estimated: bool = False) -> Figure:
    """Bytes, in MiB."""
    return _figure(value, f"{(value or 0) / (1024 * 1024):.1f} MiB", estimated)


def gib(value: int | None, *, estimated: bool = False) -> Figure:
    """Bytes, in GiB; what is there but small keeps a second decimal."""
    held = (value or 0) / 1024**3
    return _figure(value, f"{held:.2f} GiB" if 0 < abs(held) < 0.95 else f"{held:.1f} GiB", estimated)


def percent(share: float | None, *, estimated: bool = False) -> Figure:
    """0..1 as per cent."""
    held = None if share is None or not math.isfinite(share) else min(1.0, max(0.0, share))
    return _figure(held, f"{int((held or 0.0) * 100)} %", estimated)


def fine_percent(share: float | None, *, estimated: bool = False) -> Figure:
    """0..1 as per cent, for small shares: a decimal below ten, and never a zero for what did happen."""
    held = None if share is None or not math.isfinite(share) else min(1.0, max(0.0, share))
    hundredths = (held or 0.0) * 100
    if 0 < hundredths < 0.1:
        return _figure(held, "<0.1 %", estimated)
    return _figure(held, f"{hundredths:.1f} %" if 0 < hundredths < 9.95 else f"{hundredths:.0f} %", estimated)


def compact(value: int | None, *, estimated: bool = False) -> Figure:
    """A large number of things in three digits: 980, 12.4 k, 3.07 M."""
    number = float(value or 0)
    unit = ""
    for unit in ("", " k", " M", " G"):
        if abs(number) < 999.5 or unit == " G":
            break
        number /= 1000
    digits = 0 if not unit else 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return _figure(value, f"{number:.{digits}f}{unit}", estimated)


def byte_rate(value: float | None, *, estimated: bool = False) -> Figure:
    """Bytes a second, in the decimal units in which links are sold."""
    rate = value or 0.0
    text = f"{rate / 1e9:.1f} GB/s" if rate >= 0.95e9 else f"{rate / 1e6:.0f} MB/s"
    return _figure(value, text, estimated)


def watts(value: float | None) -> Figure:
    """Power, W."""
    return _figure(value, f"{value or 0:.0f} W", False)


def celsius(value: float | None) -> Figure:
    """A temperature, degrees Celsius."""
    return _figure(value, f"{value or 0:.0f} °C", False)


def _duration(value: float, exact: bool) -> str:
    """Seconds with a decimal below ten when they were measured, then minutes, hours, days."""
    if exact and value < 9.95:
        return f"{value:.1f} s" if value % 1 >= 0.05 else f"{value:.0f} s"
    whole = round(value) if exact else max(1, round(value))
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    if hours < 48:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"
