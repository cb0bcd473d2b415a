"""What speaks against starting a vLLM engine. Pure."""

from __future__ import annotations

import re
from pathlib import Path

from appliance.engine.environments.sets import SETS
from appliance.engine.reach import Barred
from appliance.engine.vllm import nodes
from appliance.engine.vllm.links import wants_numa
from appliance.engine.vllm.request import Request
from appliance.engine.vllm.settings import VllmSettings
from appliance.printable import printable
from gateway.state import Finding, Severity

_ID = re.compile("-[0-9a-f]{12}")


def of_python(
    settings: VllmSettings,
    name: str,
    python: Path | None,
    outdated: str,
    there: str = "",
    barred: Barred | None = None,
) -> Finding | None:
    """`engine.python`, `engine.environment`: there is nothing to run, or it is an old one. `name`: of the environment;
    `python`: what runs, None = it is not there; `outdated`: the environment's id when it was made of other packages;
    `there`: its id, "" = it is not there or not whole; `barred`: why the Python that is named does not run."""
    why, opens = ("it is not there", "") if barred is None else (barred.why, barred.remedy)
    if python is None and settings.python is not None:
        return Finding(
            id="engine.python",
            severity=Severity.FAIL,
            title="The engine's Python cannot be run",
            observed=f"{printable(str(settings.python))}: {why}",
            required="[engine] python is a Python that has vLLM",
            remedy=opens or f"moe-appliance engine install {name}   and leave python out; or correct it",
        )
    if python is None and there:
        return Finding(
            id="engine.environment",
            severity=Severity.FAIL,
            title="The engine's environment is damaged",
            observed=f"the Python of {printable(there)} cannot be run: {why}",
            required="an environment that is whole",
            remedy=opens or f"moe-appliance engine verify {there}   says what makes it anew",
        )
    if python is None:
        return Finding(
            id="engine.environment",
            severity=Severity.FAIL,
            title="The engine is not installed",
            observed=f"there is no whole environment {printable(name)}",
            required="an environment with vLLM",
            remedy=_install(name),
        )
    if not outdated:
        return None
    return Finding(
        id="engine.environment",
        severity=Severity.WARN,
        title="The engine's environment is not the one that this version knows",
        observed=f"{printable(outdated)} was made of other packages",
        required="the packages that this version of the appliance was tested with",
        remedy=_install(name),
    )


def _install(name: str) -> str:
    """`name`: as `find` takes it. An id is not installed: its set is, and that may be another id by now."""
    of = next((one for one in SETS if name == one or _ID.fullmatch(name.removeprefix(one))), None)
    if of is None:
        return "moe-appliance engine list   shows which there are; correct [engine] environment"
    install = f"moe-appliance engine install {of}"
    return install if name == of else f"{install}, then: moe-appliance engine use {of}"


def of_model(model: str | None, barred: Barred | None) -> Finding | None:
    """`engine.model`: nobody says which, or it cannot be used. vLLM itself would take a missing folder for a name."""
    if model is None:
        title, observed, opens = "Nobody says which model to serve", "neither [engine] model nor [plan] checkpoint", ""
    elif barred is None:
        return None
    else:
        title = "The model cannot be read" if barred.remedy else "The model is not there"
        observed, opens = f"{printable(model)}: {barred.why}", barred.remedy
    return Finding(
        id="engine.model",
        severity=Severity.FAIL,
        title=title,
        observed=observed,
        required="a folder with config.json and the weights, or a name of the hub",
        remedy=opens or 'set [engine] model = "/path/to/the/folder"; to get one: moe-appliance checkpoint fetch',
    )


def of_template(path: Path | None, barred: Barred | None) -> Finding | None:
    """`engine.chat_template`: the file that is named cannot be read."""
    if path is None or barred is None:
        return None
    return Finding(
        id="engine.chat_template",
        severity=Severity.FAIL,
        title="The chat template cannot be read",
        observed=f"{printable(str(path))}: {barred.why}",
        required="[engine] chat_template names a Jinja file",
        remedy=barred.remedy or "correct it, or leave it out for the model's own",
    )


def of_tools(request: Request) -> Finding | None:
    """`engine.tools`: coding agents do nothing without tools."""
    if request.tool_call_parser:
        return None
    return Finding(
        id="engine.tools",
        severity=Severity.WARN,
        title="Requests with tools will be refused",
        observed="no parser for tool calls is set, so that vLLM answers 400 to every request that has tools",
        required="vLLM's parser for this model's tool calls",
        remedy='set [engine] tool_call_parser, for instance "hermes"; given a wrong one, vLLM names them all',
    )


def of_cards(request: Request) -> tuple[Finding, ...]:
    """`engine.parallel`: more ranks than cards; `engine.nodes...`: see nodes.py."""
    settings, cards = request.settings, request.box.cards if request.profile.cuda else None
    tensor, stages, boxes = request.tensor_parallel, settings.pipeline_parallel, settings.nodes
    if boxes.nnodes > 1:
        try:
            boxes.check_ranks(tensor, stages)
        except ValueError as error:
            return (_parallel(str(error), "ranks that divide by the nodes"),)
        return nodes.findings(boxes, tensor_parallel=tensor, pipeline_parallel=stages, cards=cards)
    if cards is None or cards >= request.ranks:
        return ()
    return (_parallel(f"{cards} cards", f"{request.ranks}: tensor_parallel {tensor} x pipeline_parallel {stages}"),)


def _parallel(observed: str, required: str) -> Finding:
    return Finding(
        id="engine.parallel",
        severity=Severity.FAIL,
        title="The engine is told to use cards that are not there",
        observed=observed,
        required=required,
        remedy="set [engine] tensor_parallel and pipeline_parallel; moe-appliance preflight   shows the cards",
        depends_on="gpu.count",
    )


def of_numa(request: Request) -> Finding | None:
    """`engine.numactl`: vLLM binds its ranks with a program that is not there."""
    if not wants_numa(request) or request.box.numactl:
        return None
    return Finding(
        id="engine.numactl",
        severity=Severity.WARN,
        title="The engine's ranks are not bound to their NUMA nodes",
        observed="the program numactl is not there, by which vLLM binds them",
        required="numactl on a host with several nodes: memory on the far one costs pace",
        remedy="apt-get install numactl",
    )


def of_socket(socket: Path, most_bytes: int) -> Finding | None:
    """`engine.socket`: a Unix socket's path has an end."""
    size = len(str(socket).encode(errors="surrogateescape"))
    if size <= most_bytes:
        return None
    return Finding(
        id="engine.socket",
        severity=Severity.FAIL,
        title="The path of the engine's socket is too long",
        observed=f"{printable(str(socket))} has {size} bytes",
        required=f"{most_bytes} at most",
        remedy='set a shorter runtime_dir, for instance runtime_dir = "/run/moe-appliance"',
    )
