"""What the gateway takes out of a body before the engine gets it, by splices of its bytes. Pure.

Rules:
- A body that contains none of it comes back as the very same bytes.
- Only what would act on the engine, or stand in the rendered prompt and change with every request, is taken out.
  `cache_control` marks and item ids stay: engines do not render them (canonical.py leaves them out of a prefix).
- ValueError is raised for a value beyond splice.VALUE_MAX_BYTES or ITEMS_MAX, or nested too deeply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from gateway.splice import drop_members, value_start

ENGINE_CONTROL = (
    # vLLM
    "priority",
    "cache_salt",
    "kv_transfer_params",
    "ec_transfer_params",
    "request_id",
    "vllm_xargs",
    "prompt_logprobs",
    # llama.cpp
    "id_slot",
    "cache_prompt",
    "n_cache_reuse",
    "lora",
    # SGLang
    "rid",
    "extra_key",
    "lora_path",
    "session_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "routed_dp_rank",
    "data_parallel_rank",
    "custom_logit_processor",
)
"""Fields that act on the engine as a whole, on its cache or on its order; they are the box's to set."""
_CONTROL = frozenset(ENGINE_CONTROL)
ITEMS_MAX = 10_000
"""A list of which something is taken out is read item by item."""
BILLING = "x-anthropic-billing-header:"
"""Claude Code's first system block: it changes with each request and would make every prefix a new one.
Source: facts/clients.md section 2."""
_VENDOR_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*+")


def without_control(raw: bytes, body: dict[str, Any], *more: str) -> bytes:
    """`raw` without the fields that act on the engine, and `more`. `body` is what it parses to."""
    found = [*(_CONTROL & body.keys()), *(field for field in more if field in body)]
    return drop_members(raw, tuple(found)) if found else raw


def without_billing(raw: bytes, body: dict[str, Any]) -> bytes:
    """`raw` without Claude Code's billing line in `system`: its block, or the first line of a longer text."""
    system = body.get("system")
    if isinstance(system, str) and system.startswith(BILLING):
        return _replaced(raw, body, "system", lambda text: (json.dumps(rest_of_billing(system)), _end(text)))
    if isinstance(system, list) and any(_is_billed(block) for block in system):
        return _replaced(raw, body, "system", lambda text: _filtered(text, _unbilled))
    return raw


def without_vendor_tools(raw: bytes, body: dict[str, Any]) -> bytes:
    """`raw` without the tools of /v1/messages that only the vendor's own servers run: an engine would offer
    them to the model as if the client could."""
    tools = body.get("tools")
    if isinstance(tools, list) and any(_is_vendors(tool) for tool in tools):
        return _replaced(raw, body, "tools", lambda text: _filtered(text, _unless(_is_vendors)))
    return raw


def without_hosted_tools(raw: bytes, body: dict[str, Any]) -> bytes:
    """`raw` without the tools of /v1/responses that are no functions of the client's: vLLM shows them to the model as
    functions without a name. Source: vLLM 0.26, measured."""
    tools = body.get("tools")
    if isinstance(tools, list) and any(_is_hosted(tool) for tool in tools):
        return _replaced(raw, body, "tools", lambda text: _filtered(text, _unless(_is_hosted)))
    return raw


def without_empty_tools(raw: bytes, body: dict[str, Any]) -> bytes:
    """`raw` without an empty list of tools and the choice among them, which vLLM refuses on chat."""
    if body.get("tools") != []:
        return raw
    return drop_members(raw, ("tools", "tool_choice"))


def rest_of_billing(text: str) -> str:
    """What is behind the billing line that a system text begins with."""
    return text.partition("\n")[2].lstrip("\n")


def is_billing(text: Any) -> bool:
    """True for a system text that begins with the billing line."""
    return isinstance(text, str) and text.startswith(BILLING)


def _is_billed(block: Any) -> bool:
    return isinstance(block, dict) and is_billing(block.get("text"))


def _unbilled(block: Any, own: str) -> str:
    if not _is_billed(block):
        return own
    rest = rest_of_billing(block["text"])
    return json.dumps({**block, "text": rest}) if rest else ""


def _unless(unwanted: Callable[[Any], bool]) -> Callable[[Any, str], str]:
    return lambda item, own: "" if unwanted(item) else own


def _is_vendors(tool: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return isinstance(kind, str) and kind.startswith(_VENDOR_TOOLS)


def _is_hosted(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") not in ("function", "namespace")


def _replaced(raw: bytes, body: dict[str, Any], key: str, replace: Callable[[str], tuple[str, int]]) -> bytes:
    """`raw` with the value of `key` replaced: `replace` gets the text from where it begins and gives the new
    value and where the old one ends."""
    if isinstance(body[key], list) and len(body[key]) > ITEMS_MAX:
        raise ValueError(f"{key!r} has more than {ITEMS_MAX} items")
    start = value_start(raw, key)
    assert start is not None
    text = raw[start:].decode()
    try:
        value, end = replace(text)
    except RecursionError:
        raise ValueError(f"{key!r} is nested too deeply") from None
    return raw[:start] + value.encode() + text[end:].encode()


def _end(text: str) -> int:
    return _DECODER.raw_decode(text)[1]


def _filtered(text: str, keep: Callable[[Any, str], str]) -> tuple[str, int]:
    """The list that `text` begins with, of what `keep` gives for each item and its own text ("" = nothing), and
    where it ends."""
    kept: list[str] = []
    at = _skip(text, 1)
    while text[at] != "]":
        item, end = _DECODER.raw_decode(text, at)
        kept.append(keep(item, text[at:end]))
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return "[" + ",".join(filter(None, kept)) + "]", at + 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
