"""appliance.toml and its MOE_APPLIANCE_* overrides. Parsing is pure; `load` reads the file and the environment.

Rules:
- Unknown keys are refused, in the file and in the environment, each with file, line and key.
- Relative paths are relative to the folder of the file.
- An override is spelled MOE_APPLIANCE_ + the key in capitals, tables joined by two underscores:
  MOE_APPLIANCE_LISTEN, MOE_APPLIANCE_ADMISSION__STREAMS. Values other than strings are JSON.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from appliance import addresses
from appliance.box.settings import PreflightSettings
from appliance.engine.settings import CommandSettings, EmbeddedSettings, EngineSettings, ExternalSettings
from appliance.engine.tables import PathSetting
from appliance.engine.vllm.settings import VllmSettings, is_folder
from appliance.errors import ConfigError
from appliance.plan.settings import PlanSettings
from gateway.prewarm.settings import Prefixes, PrewarmSettings
from gateway.settings import AdmissionSettings, LedgerSettings, LimitSettings
from gateway.toml_lines import parse_toml, validation_error
from gateway.unixserver import PATH_MAX_BYTES

PREFIX = "MOE_APPLIANCE_"
NOT_KEYS = frozenset({"MOE_APPLIANCE_CONFIG"})
"""Environment variables with our prefix that are no settings."""
SYSTEM_CONFIG = Path("/etc/moe-appliance/appliance.toml")


ENGINES: dict[str, type[BaseModel]] = {
    "embedded": EmbeddedSettings,
    "vllm": VllmSettings,
    "command": CommandSettings,
    "external": ExternalSettings,
}
"""The tables that `[engine]` may be, by `kind`."""
_TABLES: dict[str, tuple[type[BaseModel], ...]] = {
    "engine": tuple(ENGINES.values()),
    "admission": (AdmissionSettings,),
    "gateway": (LimitSettings,),
    "ledger": (LedgerSettings,),
    "prewarm": (PrewarmSettings,),
    "plan": (PlanSettings,),
    "preflight": (PreflightSettings,),
}


def _kind_or_embedded(table: Any) -> Any:
    return {"kind": "embedded", **table} if isinstance(table, dict) else table


class Config(BaseSettings):
    """Everything an operator may set. Tables: [engine], [admission], [gateway], [ledger], [prewarm], [[prefix]],
    [plan], [preflight]."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
        nested_model_default_partial_update=False,
    )

    listen: Annotated[str, AfterValidator(addresses.listening)] = "127.0.0.1:8000"
    """Public address, HOST:PORT, port 1 to 65535. Off loopback, plain HTTP is a finding: put TLS in front. Default
    127.0.0.1:8000."""
    public_url: Annotated[str, AfterValidator(addresses.origin)] = ""
    """Address that developers type, when a proxy is in front: http:// or https:// and a host, no path. Default:
    http:// and `listen`."""
    trusted_proxies: tuple[Annotated[str, AfterValidator(addresses.proxy)], ...] = ()
    """IP addresses, not networks, of proxies whose X-Forwarded-* headers are believed. Default none."""
    state_dir: PathSetting = Path("state")
    """Folder for what must outlive a restart: seats, admins, models, logs. Default `state`."""
    runtime_dir: PathSetting | None = None
    """Folder for sockets and key files, at most 90 bytes long. Default: $RUNTIME_DIRECTORY, else `state_dir`/run."""
    seats_file: PathSetting | None = None
    """Seat file. Default `state_dir`/seats.toml."""
    admins_file: PathSetting | None = None
    """Admin file. Default `state_dir`/admins.toml."""
    model_aliases: tuple[Annotated[str, Field(min_length=1)], ...] = ("claude-*",)
    """Model names, `*` for any letters, that mean the box's own model: Claude Code asks for its vendor's when it was
    told nothing but an address. Default ["claude-*"]."""
    engine: Annotated[EngineSettings, BeforeValidator(_kind_or_embedded)] = EmbeddedSettings()
    """What serves the model: kind = "embedded", "vllm", "command" or "external"."""
    admission: AdmissionSettings = AdmissionSettings()
    """Who streams, who waits."""
    gateway: LimitSettings = LimitSettings()
    """Bodies, slow clients, heartbeats, drain."""
    ledger: LedgerSettings = LedgerSettings()
    """Who used what, and how long that is kept."""
    prewarm: PrewarmSettings = PrewarmSettings()
    """What is read into the engine while nobody uses it."""
    prefix: Prefixes = ()
    """Beginnings that many requests share, read into the engine before they come. Default none."""
    plan: PlanSettings = PlanSettings()
    """Which weights sit in host RAM."""
    preflight: PreflightSettings = PreflightSettings()
    """What the box is checked for before the engine starts."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments only: `load` reads the environment that it is given, not that of the process."""
        return (init_settings,)


class _Environment(EnvSettingsSource):
    """The variables of a mapping, read as pydantic-settings reads those of the process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(Config)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items()}


class Paths(BaseModel):
    """Where things are, all absolute."""

    model_config = ConfigDict(frozen=True)

    state_dir: Path
    runtime_dir: Path
    seats_file: Path
    admins_file: Path

    @property
    def control_socket(self) -> Path:
        """The daemon's Unix socket."""
        return self.runtime_dir / "control.sock"

    @property
    def gateway_socket(self) -> Path:
        """The gateway's Unix socket."""
        return self.runtime_dir / "gateway.sock"


def find_config(explicit: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: the one named, $MOE_APPLIANCE_CONFIG, ./appliance.toml, /etc/moe-appliance/...; None
    when there is none. Raises ConfigError when a file that was named does not exist, or one may not be looked at."""
    named = explicit or (Path(environ["MOE_APPLIANCE_CONFIG"]) if environ.get("MOE_APPLIANCE_CONFIG") else None)
    if named is not None:
        if not _there(named):
            raise ConfigError(f"there is no configuration file {named}", "name an existing file with --config FILE")
        return named
    return next((path for path in (Path("appliance.toml"), SYSTEM_CONFIG) if _there(path)), None)


def _there(path: Path) -> bool:
    try:
        return path.is_file()
    except PermissionError as error:  # the package's folder is for the service's group alone
        raise ConfigError(
            f"you may not look into {path.parent}", "run it with sudo, or name another --config FILE"
        ) from error


def load(path: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[Config, Paths]:
    """The configuration and its absolute paths. Raises ConfigError naming every fault with its line.

    `path` None = defaults and environment only, relative to the current folder.
    """
    raw = b""
    if path is not None:
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be read: {error.strerror}", f"check its owner and mode: {path}"
            ) from error
    return parsed(path, raw, environ)


def parsed(path: Path | None, raw: bytes, environ: Mapping[str, str]) -> tuple[Config, Paths]:
    """The same of a file's bytes, whether it has them yet or not."""
    text, data = parse_toml(path, raw) if path is not None else ("", {})
    _refuse_unknown_variables(environ)
    try:
        config = Config(**_over(data, _numbers(_Environment(environ)())))
    except SettingsError as error:
        names = " or ".join(_named_in(str(error), environ))
        message = f"the environment variable {names} cannot be read"
        raise ConfigError(message, f'correct {names}: lists and tables are JSON, for instance ["::1"]') from error
    except ValidationError as error:
        shown = _without_kinds(error)
        _refuse_bad_variables(shown, environ)
        raise validation_error(path or Path("appliance.toml"), text, shown, Config) from error
    base = path.resolve().parent if path is not None else Path.cwd()
    paths = _paths(config, base, environ)
    _refuse_long(config, paths, environ)
    return _anchored(config, base), paths


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """What came from the environment, numbers, true and false made of texts that say one: a variable is always text."""
    known = {key: field for model in _TABLES["engine"] for key, field in model.model_fields.items()}
    made = dict(values)
    for table in _TABLES.keys() & values.keys():
        fields = known if table == "engine" else _TABLES[table][0].model_fields
        if isinstance(values[table], dict):
            made[table] = {
                key: _number(value, fields[key].annotation) if key in fields else value
                for key, value in values[table].items()
            }
    return made


def _number(value: Any, kind: Any) -> Any:
    if isinstance(value, str) and _may_be(kind, bool):
        return {"true": True, "false": False}.get(value.lower(), value)
    for number in (int, float):
        if isinstance(value, str) and _may_be(kind, number):
            with contextlib.suppress(ValueError):
                return number(value)
    return value


def _may_be(kind: Any, number: type) -> bool:
    return kind is number or any(_may_be(part, number) for part in get_args(kind))


def _refuse_long(config: Config, paths: Paths, environ: Mapping[str, str]) -> None:
    """A Unix socket's path has an end: say so before anything else is tried."""
    longest = max(len(os.fsencode(path)) for path in (paths.control_socket, paths.gateway_socket))
    if longest <= PATH_MAX_BYTES:
        return
    key = "runtime_dir"
    if config.runtime_dir is None:
        key = "RUNTIME_DIRECTORY" if environ.get("RUNTIME_DIRECTORY") else "runtime_dir (by default inside state_dir)"
    raise ConfigError(
        f"{key}: the sockets in {paths.runtime_dir} would have paths of {longest} bytes, "
        f"and a Unix socket's path has at most {PATH_MAX_BYTES}",
        'set a shorter runtime_dir, for instance runtime_dir = "/run/moe-appliance"',
    )


def _over(lower: dict[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`lower` with the values of `upper` in their place, table by table."""
    merged = dict(lower)
    for key, value in upper.items():
        old = merged.get(key)
        merged[key] = _over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def public_url(config: Config) -> str:
    """What developers type: `public_url`, or http:// and the listening address."""
    return config.public_url.rstrip("/") or f"http://{config.listen}"


def listen_address(config: Config) -> tuple[str, int]:
    """(host without brackets, port) of `listen`."""
    host, _, port = config.listen.rpartition(":")
    return host.strip("[]"), int(port)


def _paths(config: Config, base: Path, environ: Mapping[str, str]) -> Paths:
    state_dir = base / config.state_dir
    runtime = config.runtime_dir
    if runtime is None and environ.get("RUNTIME_DIRECTORY"):
        runtime = Path(environ["RUNTIME_DIRECTORY"].split(":")[0])
    return Paths(
        state_dir=state_dir,
        runtime_dir=base / runtime if runtime is not None else state_dir / "run",
        seats_file=base / config.seats_file if config.seats_file else state_dir / "seats.toml",
        admins_file=base / config.admins_file if config.admins_file else state_dir / "admins.toml",
    )


def _anchored(config: Config, base: Path) -> Config:
    """`config` with the paths inside its tables made absolute."""
    fields = ("model_file", "key_file", "file", "checkpoint", "engine_python", "python", "chat_template")
    moved: dict[str, Any] = {}
    for name in ("engine", "plan", "preflight"):
        table = getattr(config, name)
        paths: dict[str, Any] = {field: base / value for field in fields if (value := getattr(table, field, None))}
        if isinstance(table, VllmSettings) and table.model is not None and is_folder(table.model):
            paths["model"] = str(base / table.model)
        if paths:
            moved[name] = table.model_copy(update=paths)
    if config.prefix:
        moved["prefix"] = tuple(
            prefix.model_copy(update={"file": base / prefix.file}) if prefix.file else prefix
            for prefix in config.prefix
        )
    return config.model_copy(update=moved) if moved else config


def _without_kinds(error: ValidationError) -> ValidationError:
    """`error` as an operator sees the file: pydantic puts the kind between `engine` and the key."""
    faults: list[InitErrorDetails] = []
    for fault in error.errors(include_url=False):
        type_, said, loc = fault["type"], fault["msg"], fault["loc"]
        kind = str(loc[1]) if loc[:1] == ("engine",) and len(loc) > 1 else ""
        if type_ == "union_tag_invalid":
            type_, said, loc = "value_error", f"must be one of {', '.join(ENGINES)}", ("engine", "kind")
        elif kind in ENGINES:
            loc = ("engine", *loc[2:])
            if type_ == "extra_forbidden":
                type_, said = "value_error", _not_of_this_kind(str(loc[-1]), kind)
            elif type_ == "value_error":
                loc, said = _of_its_key(loc, said, fault["input"])
        custom = PydanticCustomError(type_, said, fault.get("ctx"))
        faults.append(InitErrorDetails(type=custom, loc=loc, input=fault["input"]))
    return ValidationError.from_exception_data(error.title, faults)


def _of_its_key(loc: tuple[int | str, ...], said: str, table: Any) -> tuple[tuple[int | str, ...], str]:
    """A fault of a whole table whose sentence begins with one of its keys is told of that key, in its line."""
    key, _, rest = said.removeprefix("Value error, ").partition(" ")
    key = key.rstrip(":")
    return ((*loc, key), rest) if isinstance(table, dict) and key in table else (loc, said)


def _not_of_this_kind(key: str, kind: str) -> str:
    owners = [f'"{other}"' for other, model in ENGINES.items() if key in model.model_fields]
    if owners:
        return f'is a key of kind = {" and ".join(owners)}, and kind is "{kind}"'
    close = get_close_matches(key, ENGINES[kind].model_fields, 1)
    return f'is not a key of kind = "{kind}"' + (f"; did you mean {close[0]}?" if close else "")


def _variables() -> dict[str, str]:
    """Every variable that is a setting -> its dotted key."""
    known: dict[str, str] = {}
    for name in Config.model_fields:
        known[PREFIX + name.upper()] = name
        for model in _TABLES.get(name, ()):
            known |= {f"{PREFIX}{name}__{field}".upper(): f"{name}.{field}" for field in model.model_fields}
    return known


def _named_in(said: str, environ: Mapping[str, str]) -> list[str]:
    """The variables that pydantic-settings may mean: it names the field at the top only."""
    field = re.search(r'field "(\w+)"', said)
    top = field.group(1) if field else ""
    return [name for name, key in _variables().items() if key.partition(".")[0] == top and name in environ]


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    known = _variables()
    for name in sorted(environ):
        if name.startswith(PREFIX) and name.upper() not in known and name not in NOT_KEYS:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"the environment variable {name} is no setting{hint}", f"unset {name}")


def _refuse_bad_variables(error: ValidationError, environ: Mapping[str, str]) -> None:
    """Raise for the first fault that came from the environment, if one did."""
    names = {key: name for name, key in _variables().items() if name in environ}
    for fault in error.errors():
        parts = [str(part) for part in fault["loc"]]
        said = fault["msg"].removeprefix("Value error, ")
        for key in (".".join(parts[:2]), parts[0] if parts else ""):
            if key in names:
                message = f"the environment variable {names[key]} ({key}): {said}"
                raise ConfigError(message, f"correct or unset {names[key]}") from error
        table = parts[:-1] if fault["type"] == "missing" else parts
        within = [name for key, name in names.items() if len(table) == 1 and key.startswith(f"{table[0]}.")]
        if within:  # keys of a table that do not go together, at least one of them from here
            said = f"{parts[-1]} is missing" if fault["type"] == "missing" else said
            message = f"[{table[0]}] {said}; of that table, {', '.join(within)} came from the environment"
            raise ConfigError(message, f"correct or unset {' or '.join(within)}") from error
