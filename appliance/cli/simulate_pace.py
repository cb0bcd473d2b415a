"""How fast the simulated pod is, where it is not the study's: by a file, or by what this box has measured. Touches the
files that are named.
"""

from __future__ import annotations

from pathlib import Path

from appliance.errors import ConfigError, MoeError
from appliance.files import NotRegularError, read_regular
from appliance.printable import printable
from gateway.learning import learned
from gateway.simulation.measured import measured_pace
from gateway.simulation.pace import Pace, from_values
from gateway.sizing.profile import json_values

_PACE_MAX_BYTES = 1 << 20


def pace_of_file(file: Path) -> Pace:
    """Of a .json file with `ms_per_token` and `prefill`. Raises ConfigError."""
    shown = printable(str(file))
    try:
        raw = read_regular(file, _PACE_MAX_BYTES)
    except FileNotFoundError as error:
        raise ConfigError(f"{shown}: there is no such file", "name an existing file with --pace") from error
    except NotRegularError as error:
        raise ConfigError(f"{shown}: is not a regular file", "name a file with --pace") from error
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{shown}: cannot be read: {why}", f"ls -l {shown}") from error
    if len(raw) > _PACE_MAX_BYTES:
        raise ConfigError(f"{shown}: is too large to be a pace", "name a file of ms_per_token and prefill with --pace")
    return from_values(Path(shown), json_values(Path(shown), raw))


def pace_of_box(state_dir: Path) -> Pace:
    """As the box's gateway measured it, of the engine that was used last. Raises MoeError when nothing is there."""
    file = state_dir / learned.NAME
    shown = printable(str(file))
    try:
        engines = learned.read(file)
    except FileNotFoundError as error:
        raise _unmeasured(f"there is no {shown}") from error
    except OSError as error:
        raise MoeError(
            f"{shown}: cannot be read: {error.strerror}", f"ls -l {shown}; or leave out --measured"
        ) from error
    except ValueError as error:
        remedy = f"rm {shown} (the gateway measures anew); or leave out --measured"
        raise MoeError(f"{shown}: cannot be used: {error}", remedy) from error
    if not engines:
        raise _unmeasured(f"nothing is in {shown} yet")
    (profile, model), known = max(engines.items(), key=lambda engine: engine[1].at_s)
    named = f"{model} on {profile}" if model and model != profile else profile or model or "its engine"
    return measured_pace(known.curve, known.paces, printable(named))


def _unmeasured(why: str) -> MoeError:
    remedy = "let it serve for a minute or more, then again; or leave out --measured for the study's pace"
    return MoeError(f"this box has measured nothing: {why}", remedy)
