"""Reads a developer's profile from the file that was named. Touches that file.

By its name: .toml is a profile; .csv is a table of daily tokens; .json is either.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from appliance.errors import ConfigError
from appliance.files import NotRegularError, read_regular
from appliance.printable import printable
from appliance.sizing import daily
from appliance.sizing.week import average_week
from gateway.sizing.profile import Profile, from_toml, from_values, json_values

FILE_MAX_BYTES = 16 * 2**20


def profile_of(file: Path, hours_a_day: float | None = None) -> Profile:
    """The profile of a file; `hours_a_day` wins over the file's. Raises ConfigError naming file, line or row, key."""
    suffix = file.suffix.lower()
    if suffix not in (".toml", ".json", ".csv") and not file.exists():
        raise _missing(file)
    if suffix not in (".toml", ".json", ".csv"):
        raise ConfigError(
            f"{printable(str(file))}: a profile is a .toml or .json file, daily tokens a .csv or .json file",
            "name such a file with --profile",
        )
    raw = _content(file)
    if suffix == ".toml":
        found = from_toml(file, raw)
    elif suffix == ".csv":
        found = _averaged(file, daily.from_csv(file, raw))
    else:
        value = json_values(file, raw)
        found = _averaged(file, daily.from_json(file, value)) if daily.is_daily(value) else from_values(file, value)
    shown = replace(found, source=printable(str(file)))
    return shown if hours_a_day is None else replace(shown, hours_a_day=hours_a_day)


def _averaged(file: Path, days: daily.Days) -> Profile:
    week = average_week(days, str(file))
    if week is None:
        raise ConfigError(f"{printable(str(file))}: no day has output tokens", "name a file of days with work on them")
    return week


def _content(file: Path) -> bytes:
    shown = printable(str(file))
    try:
        raw = read_regular(file, FILE_MAX_BYTES)
    except FileNotFoundError as error:
        raise _missing(file) from error
    except NotRegularError as error:
        raise ConfigError(f"{shown}: is not a regular file", "name a file with --profile") from error
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{shown}: cannot be read: {why}", f"ls -l {shown}") from error
    if len(raw) > FILE_MAX_BYTES:
        raise ConfigError(f"{shown}: has more than {FILE_MAX_BYTES >> 20} MiB", "name a file of days, not of requests")
    return raw


def _missing(file: Path) -> ConfigError:
    return ConfigError(f"{printable(str(file))}: there is no such file", "name an existing file with --profile")
