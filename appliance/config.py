"""appliance.toml and its MOE_APPLIANCE_* overrides. Parsing is pure; `load` reads the file and the environment.

Rules:
- Unknown keys are refused, in the file and in the environment, each with file, line and key.
- Relative paths are relative to the folder of the file.
- An override is spelled MOE_APPLIANCE_ + the key in capitals, tables joined by two underscores:
  MOE_APPLIANCE_LISTEN, MOE_APPLIANCE_ADMISSION__STREAMS. Values other than strings are JSON.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from appliance.engine.settings import EmbeddedSettings, EngineSettings
from appliance.errors import ConfigError
from gateway.settings import AdmissionSettings, LimitSettings
from gateway.toml_lines import parse_toml, validation_error

PREFIX = "MOE_APPLIANCE_"
NOT_KEYS = frozenset({"MOE_APPLIANCE_CONFIG"})
"""Environment variables with our prefix that are no settings."""
SYSTEM_CONFIG = Path("/etc/moe-appliance/appliance.toml")


def _address(text: str) -> str:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or not 0 <= int(port) <= 65535 or not host:
        raise ValueError("must be HOST:PORT, for instance 127.0.0.1:8000 or [::1]:8000")
    bare = host.strip("[]")
    if bare != "localhost":
        try:
            ipaddress.ip_address(bare)
        except ValueError:
            raise ValueError("must name an IP address or localhost, for instance 127.0.0.1:8000") from None
    return text


class Config(BaseSettings):
    """Everything an operator may set. Tables: [engine], [admission], [gateway]."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        use_attribute_docstrings=True,
        nested_model_default_partial_update=False,
    )

    listen: Annotated[str, AfterValidator(_address)] = "127.0.0.1:8000"
    """Public address, HOST:PORT. Off loopback, plain HTTP is a finding: put TLS in front. Default 127.0.0.1:8000."""
    public_url: str = ""
    """Address that developers type, when a proxy is in front. Default: http:// and `listen`."""
    trusted_proxies: tuple[str, ...] = ()
    """IP addresses of proxies whose X-Forwarded-* headers are believed. Default none."""
    state_dir: Path = Path("state")
    """Folder for what must outlive a restart: seats, admins, models, logs. Default `state`."""
    runtime_dir: Path | None = None
    """Folder for sockets and key files, at most 90 bytes long. Default: $RUNTIME_DIRECTORY, else `state_dir`/run."""
    seats_file: Path | None = None
    """Seat file. Default `state_dir`/seats.toml."""
    admins_file: Path | None = None
    """Admin file. Default `state_dir`/admins.toml."""
    engine: EngineSettings = EmbeddedSettings()
    """What serves the model: kind = "embedded", "command" or "external"."""
    admission: AdmissionSettings = AdmissionSettings()
    """Who streams, who waits."""
    gateway: LimitSettings = LimitSettings()
    """Bodies, slow clients, heartbeats, drain."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment over the file (which arrives as init arguments)."""
        return (env_settings, init_settings)


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

    @property
    def engine_key(self) -> Path:
        """The engine's API key, 0600."""
        return self.runtime_dir / "engine.key"


def find_config(explicit: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: the one named, $MOE_APPLIANCE_CONFIG, ./appliance.toml, /etc/moe-appliance/...; None
    when there is none. Raises ConfigError when a file that was named does not exist."""
    named = explicit or (Path(environ["MOE_APPLIANCE_CONFIG"]) if environ.get("MOE_APPLIANCE_CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"there is no configuration file {named}", "name an existing file with --config FILE")
        return named
    return next((path for path in (Path("appliance.toml"), SYSTEM_CONFIG) if path.is_file()), None)


def load(path: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[Config, Paths]:
    """The configuration and its absolute paths. Raises ConfigError naming every fault with its line.

    `path` None = defaults and environment only, relative to the current folder.
    """
    text = ""
    data: dict[str, Any] = {}
    if path is not None:
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be read: {error.strerror}", f"check its owner and mode: {path}"
            ) from error
        text, data = parse_toml(path, raw)
    _refuse_unknown_variables(environ)
    try:
        config = Config(**data)
    except SettingsError as error:
        raise ConfigError(
            f"{PREFIX}*: {error}", 'values other than strings are JSON, for instance ["10.0.0.1"]'
        ) from error
    except ValidationError as error:
        _refuse_bad_variables(error, environ)
        raise validation_error(path or Path("appliance.toml"), text, error, Config) from error
    base = path.resolve().parent if path is not None else Path.cwd()
    return _anchored(config, base), _paths(config, base, environ)


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
    """`config` with the engine's own paths made absolute."""
    moved = {
        field: base / value for field in ("model_file", "key_file") if (value := getattr(config.engine, field, None))
    }
    return config.model_copy(update={"engine": config.engine.model_copy(update=moved)}) if moved else config


def _variables() -> dict[str, str]:
    """Every variable that is a setting -> its dotted key."""
    known: dict[str, str] = {}
    tables: dict[str, tuple[type[BaseModel], ...]] = {
        "engine": get_args(get_args(EngineSettings)[0]),
        "admission": (AdmissionSettings,),
        "gateway": (LimitSettings,),
    }
    for name in Config.model_fields:
        known[PREFIX + name.upper()] = name
        for model in tables.get(name, ()):
            known |= {f"{PREFIX}{name}__{field}".upper(): f"{name}.{field}" for field in model.model_fields}
    return known


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
        parts = [str(part) for part in fault["loc"] if part not in ("embedded", "command", "external")]
        for key in (".".join(parts[:2]), parts[0] if parts else ""):
            if key in names:
                message = f"the environment variable {names[key]} ({key}): {fault['msg']}"
                raise ConfigError(message, f"correct or unset {names[key]}") from error
