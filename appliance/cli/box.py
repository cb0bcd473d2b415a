"""What the verbs know of the box they act on: its configuration, its files, its two sockets.

Touches the configuration file, and the sockets when asked to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from appliance.errors import MoeError, NotRunning, start_command

if TYPE_CHECKING:
    import httpx

    from appliance.config import Config, Paths

ANSWER_S = 15.0


def still_off(names: Iterable[str]) -> tuple[str, ...]:
    """The sentence about seats that are off by hand, whatever seats.toml says; none when there are none."""
    off = ", ".join(f"{name} (moe-appliance seats on {name})" for name in names)
    return (f"Switched off by hand all the same: {off}.",) if off else ()


@dataclass
class Box:
    """The root's `ctx.obj`; satisfies `KeyFiles`. Everything is read when it is first needed. `answer_s`: how long the
    sockets have to answer."""

    config_file: Path | None = None
    environ: dict[str, str] = field(default_factory=dict)
    answer_s: float = ANSWER_S

    @cached_property
    def _loaded(self) -> tuple[Config, Paths]:
        from appliance.config import find_config, load

        return load(find_config(self.config_file, self.environ), self.environ)

    @property
    def config(self) -> Config:
        """The configuration. Raises ConfigError."""
        return self._loaded[0]

    @property
    def paths(self) -> Paths:
        """Where the box's files are. Raises ConfigError."""
        return self._loaded[1]

    @property
    def seats_file(self) -> Path:
        """seats.toml of this box."""
        return self.paths.seats_file

    @property
    def admins_file(self) -> Path:
        """admins.toml of this box."""
        return self.paths.admins_file

    def notify_reload(self, seat: str = "") -> str:
        """Have the running gateway read seats and admins again after an edit, and say what came of it. `seat`: the one
        that was edited, which may be off by hand."""
        try:
            said = self.gateway("POST", f"/reload{self.asker(edited='1')}")
        except NotRunning:
            return "No appliance runs here; it will read the file when it starts."
        if said.status_code == 200:
            off = {seat}.intersection(said.json().get("off", ()))
            return " ".join(("The running gateway has taken it.", *still_off(off)))
        errors = "; ".join(map(str, said.json().get("errors", ["no reason given"])))
        raise MoeError(f"the gateway kept the old file: {errors}", "correct the file, then: moe-appliance reload")

    def asker(self, **fields: str) -> str:
        """The query that tells who is behind this shell, if it is sudo's, and `fields` that are not empty."""
        given = {"who": self.environ.get("SUDO_USER", "")} | fields
        query = urlencode({key: value for key, value in given.items() if value})
        return f"?{query}" if query else ""

    def daemon(self, method: str, path: str) -> httpx.Response:
        """Ask the daemon. Raises NotRunning when none answers."""
        return self._ask(self.paths.control_socket, method, path)

    def gateway(self, method: str, path: str) -> httpx.Response:
        """Ask the gateway. Raises NotRunning when none answers."""
        return self._ask(self.paths.gateway_socket, method, path)

    def switched_off(self) -> dict[str, str]:
        """The seats that are off by hand, and by whom, as it is kept; none when that cannot be read."""
        from gateway.overlayfile import kept_in

        kept = kept_in(self.paths.state_dir)
        return kept.off if kept is not None else {}

    def _ask(self, socket_path: Path, method: str, path: str) -> httpx.Response:
        import httpx

        try:
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket_path)), timeout=self.answer_s) as client:
                return client.request(method, f"http://box{path}")
        except httpx.ConnectError as error:
            if "Permission" in str(error):
                raise MoeError(f"no permission for {socket_path}", "use sudo, or join the socket's group") from error
            raise NotRunning(f"no appliance answers at {socket_path}", start_command(self.paths.state_dir)) from error
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            if method != "GET":
                why += "; what was asked of it may yet be done"
            raise NotRunning(
                f"the appliance at {socket_path} does not answer: {why}", "moe-appliance status"
            ) from error
