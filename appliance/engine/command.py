"""The adapter of any OpenAI-compatible server that a command starts.

Touches the file system to look the program up, nothing else.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from appliance.box.checks import kept
from appliance.box.facts import Facts
from appliance.engine.adapter import LLAMA_STEPS, VLLM_STEPS, HostTier, Launch, Progress, Step, read_step
from appliance.engine.host_kv import EXACT
from appliance.engine.settings import CommandSettings
from appliance.units import GIB
from gateway.state import EngineProfile, Finding, Severity

_STEPS = (*VLLM_STEPS, *LLAMA_STEPS)
_KEY = "{key_file}"
_DEV_MODE = "VLLM_SERVER_DEV_MODE"
_VLLM_TIER = "--kv-offloading-size"


class CommandEngine:
    """An engine as `[engine] kind = "command"` describes it."""

    kind = "command"
    supervised = True
    environment = ""

    def __init__(
        self,
        settings: CommandSettings,
        *,
        state_dir: Path,
        which: Callable[[str], str | None] = shutil.which,
    ) -> None:
        self._settings = settings
        self._state_dir = state_dir.absolute()
        self._which = which
        self.served_model = settings.served_model
        self.context_tokens = settings.context_tokens
        self.host_tier = self._tier()
        self.profile = EngineProfile(
            name=settings.name or settings.served_model or Path(settings.command[0]).name,
            floor_tok_per_s=settings.floor_tok_per_s,
            cold_tokens=settings.cold_tokens,
            streams=settings.streams,
            kv_tokens=settings.kv_tokens,
        )

    def _tier(self) -> HostTier | None:
        settings = self._settings
        if not settings.host_kv_gib:
            return None
        values = {"{host_kv_gib}": f"{settings.host_kv_gib:.12g}", "{state_dir}": str(self._state_dir)}
        size = int(settings.host_kv_gib * GIB)
        rounds = _VLLM_TIER in settings.host_kv_args and settings.env.get(EXACT, "0") == "0"
        told = settings.model_dump_json(include={"command", "env", "host_kv_gib", "host_kv_args"})
        return HostTier(
            bytes=size,
            most_bytes=2 * size if rounds else size,
            args=tuple(_filled(word, values) for word in settings.host_kv_args),
            mark=hashlib.sha256(told.encode()).hexdigest()[:16],
        )

    def findings(self, facts: Facts) -> tuple[Finding, ...]:
        """`engine.program`: its first word is not a program here. `engine.no_key`: it listens without a key.
        `engine.dev_mode`: some of its paths want none."""
        return kept(self._program(), self._no_key(), self._dev_mode())

    def _program(self) -> Finding | None:
        program = self._settings.command[0].replace("{state_dir}", str(self._state_dir))
        if self._which(program) is not None:
            return None
        return Finding(
            id="engine.program",
            severity=Severity.FAIL,
            title="The engine's program is not there",
            observed=f"{program} is not an executable file on this machine's PATH",
            required="[engine] command starts with a program that can be run",
            remedy="install it, or write its full path: command -v shows it where it works",
        )

    def _no_key(self) -> Finding | None:
        if self._keyed:
            return None
        return Finding(
            id="engine.no_key",
            severity=Severity.WARN,
            title="Who can log in to this machine can use the engine past the gateway",
            observed=f"neither [engine] command nor its env names {_KEY}, so the engine's port wants no key",
            required="an engine that is told a key, new at each start",
            remedy=f"--api-key-file {_KEY}   or as your engine calls it; one that reads no key from a file: let nobody "
            "else log in here",
        )

    def _dev_mode(self) -> Finding | None:
        if self._settings.env.get(_DEV_MODE, "0") == "0":
            return None
        return Finding(
            id="engine.dev_mode",
            severity=Severity.INFO,
            title="Who can log in to this machine can empty, pause and change the engine",
            observed=f"[engine] env sets {_DEV_MODE}: paths on 127.0.0.1 that want no key (the gateway passes none)",
            required="a machine where nobody else logs in",
            remedy=f"nothing, if that is so; else take {_DEV_MODE} out, and a KV tier in host RAM is not used then",
        )

    @property
    def _keyed(self) -> bool:
        return any(_KEY in text for text in (*self._settings.command, *self._settings.env.values()))

    async def prepare(self, progress: Progress) -> None:
        """Nothing: the command brings its own model."""

    def launch(self, port: int, key_file: Path) -> Launch:
        """The command with its placeholders filled in; anything else in braces stays as it is."""
        values = {"{port}": str(port), _KEY: str(key_file), "{state_dir}": str(self._state_dir)}
        return Launch(
            argv=tuple(_filled(word, values) for word in self._settings.command),
            env={name: _filled(value, values) for name, value in self._settings.env.items()},
            url=f"http://127.0.0.1:{port}",
            key_file=key_file if self._keyed else None,
            health_path=self._settings.health_path,
            start_timeout_s=self._settings.start_timeout_s,
            grace_s=self._settings.grace_s,
        )

    def phase_of(self, line: str) -> Step | None:
        """Steps of vLLM's and llama.cpp's logs; other servers' starts show no steps."""
        return read_step(_STEPS, line)


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
