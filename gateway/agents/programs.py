"""The agents, one function each: what was tried with the real program, and why it is set. Pure.

Versions tried, each with a file as it is written here: Claude Code 2.1.332, Codex 0.171.0, opencode 1.18.33, Qwen Code
0.24.4 and 0.15.10, Continue 1.5.47, pi 0.73.1, aider 0.86.2; by its command: Cline 3.0.65.
"""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from shlex import quote
from types import MappingProxyType

from gateway.agents.settings import KEY, VARIABLE, Agent, Format, KeyPath, Place, Settings, SettingsFile, Target

PROVIDER = "moe"
"""What agents that know several providers call the box."""


def claude_code(box: Target) -> Settings:
    """Anthropic's form. Every model name it may ask for is set, so that no helper call goes astray."""
    environment = {
        "ANTHROPIC_BASE_URL": box.url,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": box.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": box.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": box.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": box.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(box.window),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_CONCURRENT_SUBAGENTS": "1",
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
    }
    file = SettingsFile(
        Place("CLAUDE_CONFIG_DIR", ".claude", "settings.json"),
        Format.JSON,
        {"env": environment, "permissions": {"defaultMode": "default"}},
        {("permissions", "defaultMode"): frozenset({"acceptEdits", "plan", "dontAsk", "bypassPermissions"})},
    )
    notes = (
        'Its own default, the "auto" mode, asks a service of the vendor before it runs a command and stops without '
        'it: that is why `permissions.defaultMode` is set. "default" asks you, "acceptEdits" lets it edit files.',
        "It takes an unknown model's window for 1,000,000 tokens; CLAUDE_CODE_MAX_CONTEXT_TOKENS makes it compact in "
        "time. CLAUDE_CODE_ATTRIBUTION_HEADER=0 keeps the beginning of its prompt the same, so that it is read once.",
        "Sub-agents run one after the other: four at once would take all streams of a box from your colleagues.",
    )
    return Settings(file=file, start="claude", notes=notes)


def codex(box: Target) -> Settings:
    """OpenAI's Responses form, the only one it speaks."""
    values = {
        "model": box.model,
        "model_provider": PROVIDER,
        "model_context_window": box.window,
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
        "features": {"plugins": False},
        "model_providers": {
            PROVIDER: {
                "name": "moe-appliance",
                "base_url": box.openai_url,
                "env_key": VARIABLE,
                "wire_api": "responses",
                "stream_idle_timeout_ms": 900_000,
            }
        },
    }
    notes = (
        "`model_context_window` must be the box's: Codex compacts by it beforehand, and ends the session when a "
        "prompt turns out to be too long.",
        'It warns that "model metadata" was not found; that is harmless. Without `plugins = false` it tries to fetch a '
        "list of plugins from the internet at each start.",
    )
    file = SettingsFile(Place("CODEX_HOME", ".codex", "config.toml"), Format.TOML, values)
    return Settings(file=file, start="codex", notes=notes)


def opencode(box: Target) -> Settings:
    """OpenAI's chat form, through the AI SDK."""
    name = f"{PROVIDER}/{box.model}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": box.openai_url, "apiKey": f"{{env:{VARIABLE}}}"},
        "models": {box.model: {"limit": {"context": box.window, "output": box.output_tokens}}},
    }
    values = {
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": [PROVIDER],
        "provider": {PROVIDER: provider},
        "model": name,
        "small_model": name,
    }
    notes = (
        "`enabled_providers` leaves only the providers that it lists: add yours, or remove it, to use others too.",
        "It sends two requests at once for a first message, a title and the answer: a seat with `max_streams = 1` "
        "has one of them wait.",
    )
    file = SettingsFile(Place("XDG_CONFIG_HOME", ".config", "opencode/opencode.json"), Format.JSON, values)
    return Settings(file=file, start="opencode", notes=notes)


def qwen(box: Target) -> Settings:
    """OpenAI's chat form. It reads the key from the variable that the model's entry names."""
    model = {
        "id": box.model,
        "name": box.model,
        "baseUrl": box.openai_url,
        "envKey": VARIABLE,
        "generationConfig": {"contextWindowSize": box.window},
    }
    values = {
        "modelProviders": {"openai": [model]},
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"name": box.model},
        "privacy": {"usageStatisticsEnabled": False},
    }
    notes = (
        "After each answer it sends one or two more requests of its own, to keep a memory of the session; they count "
        "as yours.",
    )
    file = SettingsFile(Place("QWEN_HOME", ".qwen", "settings.json"), Format.JSON, values)
    return Settings(file=file, start="qwen", notes=notes)


def cline(box: Target) -> Settings:
    """OpenAI's chat form. It keeps its settings itself and takes them by command only."""
    setup = f'cline auth -p openai-compatible -k "{KEY}" -m {quote(box.model)} -b {box.openai_url}'
    notes = ("Cline keeps the key in its own folder, `~/.cline`. After a key was rotated, run `cline auth` again.",)
    return Settings(setup=setup, start='cline "your task"', notes=notes)


def continue_cli(box: Target) -> Settings:
    """OpenAI's chat form. Its `secrets` come from the environment as well."""
    model = {
        "name": PROVIDER,
        "provider": "openai",
        "model": box.model,
        "apiBase": box.openai_url,
        "apiKey": f"${{{{ secrets.{VARIABLE} }}}}",
        "roles": ["chat"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": box.window, "maxTokens": box.output_tokens},
    }
    values = {"name": "Local", "version": "1.0.0", "schema": "v1", "models": [model]}
    kept: dict[KeyPath, frozenset[str]] = {(key,): frozenset() for key in ("name", "version", "schema")}
    notes = (
        "`cn` begins with the model that it used last, or the first one: choose this one with `/model` if you have "
        "others. `cn --auto` does not ask before it runs a tool.",
        f"Instead of the shell's, `{VARIABLE}` may also stand in `~/.continue/.env`.",
    )
    file = SettingsFile(Place("CONTINUE_GLOBAL_DIR", ".continue", "config.yaml"), Format.YAML, values, kept)
    return Settings(file=file, start="cn", notes=notes)


def pi(box: Target) -> Settings:
    """OpenAI's chat form. `apiKey` is the name of a variable."""
    model = {"id": box.model, "contextWindow": box.window, "maxTokens": box.output_tokens}
    provider = {
        "baseUrl": box.openai_url,
        "api": "openai-completions",
        "apiKey": VARIABLE,
        "models": [model],
    }
    notes = (
        f"`apiKey` is the name of the variable. While it is not set, pi sends the name itself, and the box answers "
        f"401: export {VARIABLE} first.",
        "PI_OFFLINE=1 keeps it from looking for updates.",
    )
    file = SettingsFile(
        Place("PI_CODING_AGENT_DIR", ".pi/agent", "models.json"), Format.JSON, {"providers": {PROVIDER: provider}}
    )
    start = f"PI_OFFLINE=1 pi --provider {PROVIDER} --model {quote(box.model)}"
    return Settings(file=file, start=start, notes=notes)


def aider(box: Target) -> Settings:
    """OpenAI's chat form, through litellm, which takes the part before the slash for the form."""
    values = {
        "model": f"openai/{box.model}",
        "openai-api-base": box.openai_url,
        "check-update": False,
        "analytics-disable": True,
        "show-model-warnings": False,
    }
    notes = (
        "A `.aider.conf.yml` in the folder or at the root of the repository wins over this one.",
        "aider exits 0 also when the box refused it; a script must look at what it says.",
    )
    file = SettingsFile(Place(None, "", ".aider.conf.yml"), Format.YAML, values)
    return Settings(file=file, start=f'OPENAI_API_KEY="{KEY}" aider', notes=notes)


def openai_sdk(box: Target) -> Settings:
    """Python and JavaScript read the same two variables."""
    code = f"""\
from openai import OpenAI

client = OpenAI(max_retries=8)
reply = client.chat.completions.create(model={dumps(box.model)}, messages=[{{"role": "user", "content": "Hello"}}])
print(reply.choices[0].message.content)"""
    notes = (
        "By itself the SDK tries three times when the box says 429, which is over after two waits; `max_retries` "
        "gives it more. `client.responses.create` works as well, streamed or not.",
        "A stream that ends in an error raises; `finish_reason` says whether an answer is whole.",
    )
    return Settings({"OPENAI_BASE_URL": box.openai_url, "OPENAI_API_KEY": KEY}, code=code, notes=notes)


def anthropic_sdk(box: Target) -> Settings:
    """The URL has no /v1: the SDK adds it."""
    code = f"""\
from anthropic import Anthropic

client = Anthropic(max_retries=8)
reply = client.messages.create(
    model={dumps(box.model)}, max_tokens=1024, messages=[{{"role": "user", "content": "Hello"}}]
)
print(reply.content[0].text)"""
    notes = (
        "By itself the SDK tries three times when the box says 429, which is over after two waits; `max_retries` "
        "gives it more. The URL has no `/v1`: the SDK adds it.",
    )
    return Settings({"ANTHROPIC_BASE_URL": box.url, "ANTHROPIC_AUTH_TOKEN": KEY}, code=code, notes=notes)


AGENTS: Mapping[str, Agent] = MappingProxyType(
    {
        agent.name: agent
        for agent in (
            Agent("claude-code", "Claude Code", claude_code, 14_000, needs_context=True),
            Agent("codex", "Codex", codex, 10_000, needs_context=True),
            Agent("opencode", "opencode", opencode, 7_700, needs_context=True),
            Agent("qwen", "Qwen Code", qwen, 19_000, needs_context=True),
            Agent("cline", "Cline", cline, 5_400),
            Agent("continue", "Continue", continue_cli, 1_900, needs_context=True),
            Agent("pi", "pi", pi, 1_400, needs_context=True),
            Agent("aider", "aider", aider, 700),
            Agent("openai", "openai SDK", openai_sdk, 0),
            Agent("anthropic", "anthropic SDK", anthropic_sdk, 0),
        )
    }
)
"""All agents by the name that `connect` knows them by."""
