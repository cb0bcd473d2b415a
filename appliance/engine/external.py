"""The adapter of an engine that somebody else runs: nothing is spawned or stopped.

Touches the file system to see whether the key file can be read, nothing else.
"""

from __future__ import annotations

from pathlib import Path

from appliance.box.checks import kept
from appliance.box.facts import Facts
from appliance.engine.adapter import Launch, Progress, Step
from appliance.engine.launching import key_in
from appliance.engine.settings import ExternalSettings
from gateway.state import EngineProfile, Finding, Severity


class ExternalEngine:
    """An engine as `[engine] kind = "external"` describes it."""

    kind = "external"
    supervised = False
    environment = ""
    host_tier = None

    def __init__(self, settings: ExternalSettings) -> None:
        self._settings = settings
        self.served_model = settings.served_model
        self.context_tokens = settings.context_tokens
        self.profile = EngineProfile(
            name=settings.name or settings.served_model or settings.url,
            floor_tok_per_s=settings.floor_tok_per_s,
            cold_tokens=settings.cold_tokens,
            streams=settings.streams,
            kv_tokens=settings.kv_tokens,
        )

    def findings(self, facts: Facts) -> tuple[Finding, ...]:
        """`engine.key_file`: the key cannot be read."""
        return kept(self._key_file())

    def _key_file(self) -> Finding | None:
        path = self._settings.key_file
        if path is None:
            return None
        try:
            key_in(path)
        except ValueError as error:
            observed = f"{path}: {error}"
        else:
            return None
        return Finding(
            id="engine.key_file",
            severity=Severity.FAIL,
            title="The engine's key cannot be read",
            observed=observed,
            required="a file with the engine's API key alone in it",
            remedy=f"write the key into {path}, mode 0600, readable by the user that runs the daemon",
        )

    async def prepare(self, progress: Progress) -> None:
        """Nothing to prepare."""

    def launch(self, port: int, key_file: Path) -> Launch:
        """Where the engine is; `port` and `key_file` are for engines of our own and are not used."""
        return Launch(
            argv=(),
            env={},
            url=self._settings.url,
            key_file=self._settings.key_file,
            health_path=self._settings.health_path,
            start_timeout_s=self._settings.start_timeout_s,
            grace_s=0.0,
        )

    def phase_of(self, line: str) -> Step | None:
        """There is no log."""
        return None
