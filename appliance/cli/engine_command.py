"""`moe-appliance engine command`: what would be run for the engine, and why. Touches the box, by looking, and the
terminal.

Rules:
- The command goes to standard output, findings to standard error: the command is shown also when it could not start.
- A value that may be a secret is shown as a mask, whoever put it there.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console

from appliance.cli.box import Box
from appliance.cli.context import JsonOption, say
from appliance.cli.terminal import finding, plain
from appliance.errors import MoeError
from gateway.state import Finding, Severity

MASK = "[removed]"
KEY_FILE = "engine-START.key"
"""START is another word at each start."""
_WORDS = r"\w*key|\w*token|\w*secret|passw(?:or)?d|passphrase|pwd|pat|\w*auth|credentials?|authorization|signature"
_SECRET = re.compile(rf"(?i)(^|[._-])({_WORDS})$")
_IN_URL = re.compile(r"(?<=://)[^\s@\"']+@")
_IN_TEXT = re.compile(rf"(?i)(\b(?:[\w.]*[._-])?(?:{_WORDS})[\"']?\s*[:=]\s*[\"']?)[^\s\"'&,;}}]+")
"""As in JSON, and in the query of a URL."""


def register(app: typer.Typer) -> None:
    """Add the verb to `engine`."""
    app.command("command")(command)


def command(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """Print what would be run for the engine, with what `plan use` and `engine use` chose: each flag and variable with
    its reason and where that is from; start nothing. Exit 1: it could not start, and the findings say why."""
    from appliance.daemon import adapter_of
    from appliance.engine.vllm.adapter import VllmEngine
    from appliance.examine import Examiner
    from appliance.using import as_used

    box: Box = ctx.obj
    config = as_used(box.config, box.paths)
    adapter = adapter_of(config, box.paths)
    if not isinstance(adapter, VllmEngine):
        raise MoeError(
            f'[engine] kind is "{adapter.kind}": the appliance makes a command only for "vllm"',
            'set [engine] kind = "vllm", or read [engine] command in appliance.toml',
        )
    examined = Examiner(config, box.paths, adapter, box.environ).examine()
    looked = adapter.look()
    argv = adapter.argv(looked, box.paths.runtime_dir / KEY_FILE)
    first = len(argv) - len(looked.command.argv)
    flags = [asdict(one) | {"values": _shown(one.name, one.values)} for one in looked.command.flags]
    tier = [asdict(one) for one in looked.command.tier]
    env = [asdict(one) | {"value": _shown(one.name, [one.value])[0]} for one in looked.command.env]
    if as_json:
        words = [word for flag in flags + tier for word in (flag["name"], *flag["values"])]
        shown: dict[str, Any] = {
            "argv": [*argv[:first], *words],
            "env": {one["name"]: one["value"] for one in env},
            "flags": flags,
            "variables": env,
            "tier": tier,
            "withheld": looked.command.withheld,
            "replaced": [asdict(one) for one in looked.command.replaced],
            "findings": [one.model_dump(mode="json") for one in examined.findings],
        }
        print(json.dumps(shown, indent=2))
    else:
        _print(argv[:first], env, flags, tier)
        for old in looked.command.replaced:
            say(f"[engine] args takes the place of {plain(shlex.join(old.words))} ({old.why}).")
        if looked.command.withheld:
            names = ", ".join(looked.command.withheld)
            say(f"Set here, and not passed on: {plain(names)}. For the engine they are said in [engine] env.")
        _findings(examined.findings)
    if any(one.severity is Severity.FAIL for one in examined.findings):
        raise typer.Exit(1)


def _shown(name: str, values: Sequence[str]) -> list[str]:
    if _SECRET.search(name):
        return [MASK for _ in values]
    return [_IN_TEXT.sub(rf"\1{MASK}", _IN_URL.sub(f"{MASK}@", value)) for value in values]


def _print(
    first: Sequence[str], env: Iterable[dict[str, Any]], flags: list[dict[str, Any]], tier: list[dict[str, Any]]
) -> None:
    print("# variables, added to the daemon's own")
    for one in env:
        print(plain(f"{one['name']}={shlex.quote(one['value'])}"))
        print(plain(f"    {one['why']} ({one['source']})"))
    print("# command")
    print(plain(shlex.join(first)))
    for flag in flags:
        _flag(flag)
    if tier:
        print("# only while the KV tier in host RAM is on")
    for flag in tier:
        _flag(flag)


def _flag(flag: dict[str, Any]) -> None:
    build = (
        ", only a build of the operator's" if flag["build"] == "operator" and flag["source"] != "[engine] args" else ""
    )
    print(plain(f"  {shlex.join([flag['name'], *flag['values']])}"))
    print(plain(f"      {flag['why']} ({flag['source']}{build})"))


def _findings(findings: Iterable[Finding]) -> None:
    console = Console(stderr=True, highlight=False)
    for one in findings:
        finding(console, one)
