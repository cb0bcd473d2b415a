"""docs/plans.md and docs/plan.schema.json, written from the model of a plan file and the table of exports. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from appliance.plan.export.targets import TARGETS
from appliance.plan.schema import SCHEMA, Plan
from appliance.plan.stats import SCHEMA as STATS

_TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
_HUGE = 2**53
"""A bound beyond it is there for programs, not for readers."""

STATS_EXAMPLE = f"""\
{{
  "schema": "{STATS}",
  "model": "lab/small",
  "tokens": 1000,
  "counts": {{
    "0": [700, 650, 400, 250],
    "1": [990, 10, 500, 500]
  }}
}}"""

_HEAD = f"""\
# Plan files

<!-- Written by scripts/docs from the model of a plan file. Change its docstrings, then run scripts/docs. -->

A plan says which weights of a mixture-of-experts model sit in host RAM so that the cards hold the rest: single routed
experts by layer, Engram tables, the token embedding, other tensors by name. It is one JSON file, schema
`{SCHEMA}`. It says for which checkpoint and which cards it was made, how the experts were chosen and
what it was validated for, so that whoever gets it can check it before anything is loaded.

    moe-appliance plan make --checkpoint DIR --out plan.json     the least that must move, for this box
    moe-appliance plan check plan.json --checkpoint DIR          does it fit, counted anew from the headers
    moe-appliance plan show plan.json                            where the experts of each layer are
    moe-appliance plan diff old.json new.json                    exit 0: same decision, 1: another one
    moe-appliance plan export plan.json --to llamacpp            for another tool; says how true that is
    moe-appliance plan learned --out new.json                    the plan that serves, with what is cold by now

- A file with a mistake is refused, with file, line and key. An unknown key is one.
- Bytes are never believed: `plan check` and the daemon compute them from the checkpoint's headers. What a file says of
  bytes is for people who read it.
- `docs/plan.schema.json` is the same model as a JSON schema, for editors. It cannot say all: experts are also checked
  against the geometry.

## plan_id

`sha256:` and 64 digits: over the JSON of what the plan decides (`model`, `geometry`, `topology`, `host`, `selection`,
`targets`, `limits`, `profile`), keys sorted, no spaces, UTF-8, keys that have their default left out. So it does not
depend on the order of keys, on how ranges are spelled, or on layers that are named and have no cold expert. What is
derived or told is not part of it: `created`, `tool_version`, `note`, `budget`, `exports`,
`selection.expected_cold_hits_per_token`, `profile.validated`.

A file that was edited by hand keeps its old plan_id. It still loads; `plan show` and `plan check` say so. A check that
was forced, and what a gateway remembers of a plan, hold for one plan_id.

## How experts are chosen

- `routing-stats`: by counts of which experts real traffic visited, the coldest of all layers first.
- `uniform`: as many in each layer, one more in some where it does not come out even.
- `layers`: whole layers.
- `manual`: a list that somebody made.

Unless `limits.whole_layers` is true, a layer keeps at least as many experts on the cards as a token visits.

### Routing statistics

`plan make --stats FILE` reads one JSON file, schema `{STATS}`. Here of a model with two
layers of four experts, top-2, after 1,000 tokens:

```json
{STATS_EXAMPLE}
```

- `model`: what whoever counted calls it; for people. `tokens`: how many were counted, at least 1.
- `counts`: layer -> visits of expert 0, of expert 1 and so on. Every layer with routed experts is there and no other,
  numbered as in the checkpoint, and each has a number for every expert.
- A token visits top-k experts of a layer, each once: no number is more than `tokens`, and those of a layer sum to at
  most `tokens` times top-k. A file that says more, or has other keys, is refused with the key.

The plan keeps the file's sha256 and its tokens. `selection.expected_cold_hits_per_token` is the visits to cold experts
over all layers, divided by `tokens`. An engine with `placement = "residency"` counts visits while it serves and writes
such a file: `residency/now/counts.json` in the state folder. Of others the numbers come from an engine that was made to
log its router.

### Learned plans

With `placement = "residency"` the experts in host RAM follow the traffic, as many of each layer as the plan says.
`plan learned --out FILE` makes a plan of those that are cold by now, `manual` and otherwise the same, and its note says
from which plan: the next start with it begins where this one is.

## Keys

Experts are ranges, `"0-11,40"`, counted from 0. Layers are texts, since JSON has no other keys: `{{"3": "0-11,40"}}`.
"""

_EXPORTS = """\

## Exports

`plan export PLAN --to TOOL` says whether the tool can carry the plan out exactly, only approximately, or not at all,
and why. Approximate ones are written with `--approximate` only. With `--checkpoint` the difference is in bytes, and
vllm-uva has its budget; without, it is in experts. `plan show` lists all verdicts.

| tool | what comes out | exact | approximate | impossible |
|---|---|---|---|---|
"""

_REST = """\

llama.cpp and ktransformers compute cold experts on the CPU; vLLM's offload, the plugin and EXL3 engines let the cards
read them over PCIe. The same placement has another pace in each.

## What `plan check --json` says

`per_gpu_gib`: weights on the fullest card. `over_gib`: by how much the weights alone exceed a card, 0 if they do not.
`short_gib`: by how much weights, reserves and the wanted KV cache exceed it. `kv_left_gib`: what weights and reserves
leave. `host_gib`: pinned host RAM, exact; `host_peak_gib`: host RAM at the peak of the load; `host_rounded_gib`: pinned
RAM where each piece is rounded up to a power of two. `per_gpu`, `per_node`: every line, with formula and source.
`findings`: what is wrong. `fits`: whether nothing is.

## Ready plans

In `plans/`. None is bound to a checkpoint's hashes: `plan check` says so, and counts with the headers of yours. Bytes
in them (`budget`) come from header-only stand-ins of the checkpoints, made by `tests/checkpoint/packs`;
`scripts/plans` makes the files anew.

| file | measured | reconstructed |
|---|---|---|
| `deepseek-v4.1-flash-2x-rtx-pro-6000.json` | By a published study, not by us: 4,608 of 15,360 experts, both Engram \
tables and the token embedding in host RAM boot and serve on two cards of 95.6 GiB, 72.4 GiB a card; at four streams \
the median stayed above 40 tok/s. | Which 4,608 experts is not public: here 115 or 116 of each layer, the lowest \
numbers, so the pace of this file is not the study's. The layout of the 309.3 GiB checkpoint is not public: the \
stand-in gives 72.9 GiB a card. |
| `qwen3-30b-a3b-2x-32gb.json` | Nothing. | Example: the bf16 checkpoint on two cards of 32 GB with room for four \
contexts of 32,768 tokens. Tensor shapes from the public configuration. |
| `gpt-oss-120b-1x-48gb.json` | Nothing. | Example: the MXFP4 checkpoint on one card of 48 GB with room for four \
contexts of 32,768 tokens. Tensor shapes from the public configuration. Experts as vLLM's Marlin backend pads \
them, up to 14 % more bytes than in the file. |
"""


def schema_json() -> str:
    """The JSON schema of a plan file."""
    schema = Plan.model_json_schema(by_alias=True, mode="validation")
    return json.dumps(schema | {"title": SCHEMA}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def page() -> str:
    """The whole page."""
    schema = Plan.model_json_schema(by_alias=True, mode="validation")
    exports = (
        f"| `{name}` | {target.what} | {target.exact} | {target.approximate} | {target.impossible} |\n"
        for name, target in TARGETS.items()
    )
    return "".join((_HEAD, *_section(schema, schema, ""), _EXPORTS, *exports, _REST))


def _section(schema: Mapping[str, Any], model: Mapping[str, Any], path: str) -> Iterator[str]:
    """The keys of one object, then those of the objects inside it."""
    yield f"\n### {path}\n\n{_line(model['description'])}\n\n" if path else "\n### Top of the file\n\n"
    inside = []
    for name, entry in model["properties"].items():
        key = f"{path}.{name}" if path else name
        part = _model(schema, entry)
        required = ", required" if name in model.get("required", ()) else _default(entry)
        yield f"- `{name}` ({_type(schema, entry)}{required}): {_line(entry.get('description', '') or _about(part))}\n"
        if part is not None:
            inside.append((part, f"{key}.*" if "additionalProperties" in entry else key))
    for part, key in inside:
        yield from _section(schema, part, key)


def _default(entry: Mapping[str, Any]) -> str:
    """What a key that is left out means, unless that is nothing."""
    value = entry.get("default")
    return (
        ""
        if value in (None, "", []) or isinstance(value, dict) or "const" in entry
        else f", default {json.dumps(value)}"
    )


def _line(text: str) -> str:
    return " ".join(text.split())


def _about(part: Mapping[str, Any] | None) -> str:
    return part["description"] if part is not None else ""


def _model(schema: Mapping[str, Any], entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The object that a key holds, when its keys are known."""
    for one in (entry, *entry.get("anyOf", ()), entry.get("additionalProperties")):
        if isinstance(one, dict) and "$ref" in one:
            found: Mapping[str, Any] = schema["$defs"][one["$ref"].rpartition("/")[2]]
            return found
    return None


def _type(schema: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    if "anyOf" in entry:
        kinds = [one for one in entry["anyOf"] if one.get("type") != "null"]
        return " or ".join(_type(schema, one) for one in kinds) + ", or left out"
    if "$ref" in entry:
        return "object"
    if "const" in entry:
        return f"`{entry['const']}`"
    if "enum" in entry:
        return " or ".join(f"`{value}`" for value in entry["enum"])
    if entry.get("type") == "array":
        return f"list of {_items(schema, entry)}"
    if entry.get("type") == "object":
        return "object"
    bounds = "".join(
        f", {words} {entry[bound]:,}" for bound, words in _BOUNDS.items() if bound in entry and _told(bound, entry)
    )
    return _TYPES.get(entry.get("type", ""), "anything") + bounds


def _items(schema: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    kinds = entry["items"].get("anyOf", [entry["items"]])
    return " or ".join(_TYPES.get(one.get("type", ""), "anything") for one in kinds)


def _told(bound: str, entry: Mapping[str, Any]) -> bool:
    return entry[bound] < _HUGE and not (bound == "minimum" and entry[bound] == 0)
