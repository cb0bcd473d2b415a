"""For tests: requests of every route as agents send them, and broken in every way. Hypothesis strategies; pure.

Rules: a case is bytes and what the client does with them. Most bodies have one or two things wrong, so that they get
far; a share is whole, and a share is no JSON at all.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.fake_engine.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.gateway.running import ADMIN_TOKEN, SEATS, key_of

COUNTS = {MESSAGES: "/v1/messages/count_tokens", RESPONSES: "/v1/responses/input_tokens"}
SLOW = "zz-slow-zz"
"""In a body: the faults that take time hit it (knob only_marker)."""
OTHERS = ("/", "/api/hello", "/v1/models", "/v1/models/fake-model", "/v1/models/%ff", "/health", "/ready", "/v1/x")
BILLING = "x-anthropic-billing-header: cc_version=2.1.332.58d; cch=1"
PICTURES = (
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    {"type": "input_image", "image_url": "data:,"},
)
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
MARK = {"cache_control": {"type": "ephemeral"}}
TEXTS = ("hi", "", "zwölf \u2028 \U0001f600", "a\x00b", SLOW, "cut \ud83d", "\udc00", "word " * 900, "x" * 14_000)
PARTS: tuple[Any, ...] = (
    *({"type": "text", "text": text, **MARK} for text in TEXTS[:5]),
    *PICTURES,
    {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": [1]}},
    {"type": "tool_result", "tool_use_id": "t1", "content": [PICTURES[1], {"type": "text", "text": "r"}]},
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "output_text", "text": "o", "annotations": []},
    {"type": "document", "source": {}},
)
ITEMS: tuple[Any, ...] = (
    *({"role": "user", "content": text} for text in TEXTS),
    *({"role": "user", "content": [part]} for part in PARTS),
    {"role": "system", "content": [{"type": "text", "text": "mid"}]},
    {"role": "developer", "content": "d"},
    {"role": "assistant", "content": "partial"},
    {"role": "assistant", "content": [{"type": "text", "text": "partial"}, PARTS[8]]},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": ""},
    {"role": "tool", "tool_call_id": "c1", "content": "out"},
    {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "i"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_1", "status": "completed"},
    {"type": "function_call_output", "call_id": "c1", "output": [PICTURES[2]]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e"},
    {"type": "from_the_future", "x": 1},
)
TOOLS: tuple[Any, ...] = (
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"id": {}}}}},
    {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True, **MARK},
    {"type": "function", "name": "f", "parameters": {}},
    {"type": "web_search_20250305", "name": "web_search"},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
    {"type": "custom", "name": "c"},
    {"type": 5},
    None,
)
FIELDS: tuple[tuple[str, Any], ...] = (
    *[("stream", value) for value in (True, True, True, False, None)],
    *[(name, value) for name in ("max_tokens", "max_output_tokens", "max_completion_tokens") for value in (1, 9, 0)],
    *[("max_tokens", value) for value in (32_000, 2**63, -1, 1.0)],
    *[("tools", list(TOOLS[at : at + 2])) for at in range(len(TOOLS))],
    ("tools", []),
    ("tool_choice", "auto"),
    ("tool_choice", {"type": "tool", "name": "f"}),
    ("stream_options", {"include_usage": True}),
    ("stream_options", {"include_usage": False, "x": [1, {"y": '}"'}]}),
    ("stream_options", {}),
    ("system", [{"type": "text", "text": BILLING}, {"type": "text", "text": "be good", **MARK}]),
    ("system", f"{BILLING}\n\nbe good"),
    ("system", [{"type": "text", "text": f"{BILLING}\nrest"}, None, 5, {"text": 5}]),
    ("instructions", "be good"),
    *[(name, 1) for name in ("n", "best_of", "priority", "id_slot")],
    ("n", 3),
    ("cache_salt", "s"),
    ("kv_transfer_params", {"a": [1, {"b": "}\\"}]}),
    ("background", True),
    ("use_beam_search", False),
    ("previous_response_id", "resp_1"),
    ("store", False),
    ("include", ["reasoning.encrypted_content"]),
    ("prompt_cache_key", "k"),
    ("metadata", {"user_id": '{"session_id":"s"}'}),
    ("thinking", {"type": "adaptive"}),
    ("output_config", {"format": {"type": "json_schema", "schema": {}}}),
    ("response_format", {"type": "json_schema"}),
    ("text", {"format": {"type": "json_schema"}, "verbosity": "low"}),
    ("continue_final_message", True),
    ("add_generation_prompt", False),
    ("logprobs", True),
    ("temperature", 1e-300),
    ("model", "claude-opus-4"),
    ("model", "gpt-9"),
    ("model", None),
    ("unknown", {"messages": [{"priority": 1}]}),
)
RAW = "\x01raw%d\x01"
RAWS = (
    "1e999", "-0", "1" * 400, "1" * 5000, "NaN", "-Infinity", "1.5e3", "0.1", '"\\ud83d"', '"\\u0000"', "tru", "'x'",
    "[" * 300 + "]" * 300, '{"a":' * 300 + "1" + "}" * 300, "[" * 1200 + "]" * 1200, '{"type":' * 80 + "1" + "}" * 80,
    '{"content":' * 600 + '"x"' + "}" * 600, '{"role":"user","role":5,"content":"x","content":[]}', '"\\u12"', "",
    '"' + "y" * 70_000 + '"',
)  # fmt: skip
"""Values that no serialiser writes; as text they stand in for themselves."""
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**64, 10**30, 0.5, 1e300, "", "x", "\ud800", [], {}, [None], [[]], {"": None},
    {"type": "text"}, {"role": "user", "content": "x"}, [1, "a", None, {"b": []}],
    *(RAW % at for at in range(len(RAWS))),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """`request` are the bytes sent. `leaves_s`: when the client goes away, None = it reads to the end;
    `half`: by closing its side only. `odd_head`: what is not HTTP may be answered in plain text."""

    method: str
    path: str
    request: bytes
    leaves_s: float | None
    half: bool
    odd_head: bool


def _nodes(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        at = pending.pop()
        keys: Any = at.keys() if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        found += [(at, key) for key in keys]
        pending += [at[key] for key in keys]
    return found


def _break(body: Any, kind: str, where: int, odd: Any) -> None:
    """Spoil one place of `body`."""
    nodes = _nodes(body)
    if not nodes:
        return
    holder, key = nodes[where % len(nodes)]
    old = holder[key]
    if kind == "replace":
        holder[key] = odd
    elif kind == "delete":
        del holder[key]
    elif kind == "wrap":
        holder[key] = [old]
    elif kind == "unwrap":
        holder[key] = old[0] if isinstance(old, list) and old else {"x": old}
    elif isinstance(holder, list):
        holder.insert(key, odd)
    elif isinstance(key, str):
        holder[f"{key}\x02"] = odd  # written as `key` a second time


def _written(body: Any, *, ascii_only: bool, spaced: bool, disguised: bool) -> bytes:
    text = json.dumps(body, ensure_ascii=ascii_only, separators=(" ,\n", " :\t") if spaced else (",", ":"))
    text = text.replace("\\u0002", "").replace("\x02", "")
    for at, raw in enumerate(RAWS):
        text = text.replace(json.dumps(RAW % at), raw)
    if disguised:
        text = text.replace('"stream"', '"\\u0073tream"').replace('"priority"', '"\\u0070riority"')
    return text.encode("utf-8", "surrogatepass")


BREAKS = st.tuples(
    st.sampled_from(["replace", "replace", "delete", "wrap", "unwrap", "add"]),
    st.integers(0, 400),
    st.sampled_from(ODD),
)
ITEM_LISTS = st.lists(st.sampled_from(ITEMS), min_size=0, max_size=4)
FIELD_LISTS = st.lists(st.sampled_from(FIELDS), max_size=6)
PROMPTS = st.one_of(
    st.sampled_from(TEXTS), st.sampled_from(ODD), st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.sampled_from(TEXTS[:3]), max_size=2),
)  # fmt: skip
TRUNCATED = b"\x00truncated"
NOT_JSON = st.sampled_from(
    [b"", b"null", b"[]", b"{}", b"\xff\xfe{", b"{" * 5000, b'"' + b"x" * 70_000 + b'"', b"\x00"]
)


@st.composite
def bodies(draw: DrawFn, path: str) -> bytes:
    """The body of a request on a route, more or less."""
    shape = draw(st.integers(0, 99))
    if shape < 4:
        return draw(NOT_JSON)
    body: dict[str, Any] = {"model": "fake-model"}
    if path in (CHAT, MESSAGES):
        body["messages"] = draw(ITEM_LISTS) or [ITEMS[0]]
    else:
        name = "prompt" if path == COMPLETIONS else "input"
        body[name] = draw(PROMPTS if path == COMPLETIONS or shape % 4 == 0 else ITEM_LISTS) or "hi"
    body |= dict(draw(FIELD_LISTS))
    body = copy.deepcopy(body)
    for kind, where, odd in draw(st.lists(BREAKS, max_size=2)) if shape < 70 else ():
        _break(body, kind, where, copy.deepcopy(odd))
    raw = _written(body, ascii_only=shape % 3 > 0, spaced=shape % 5 == 0, disguised=shape % 7 == 0)
    return raw[: draw(st.integers(0, len(raw)))] if shape in (4, 5, 6, 7) else raw


Header = tuple[str, str]
HEADERS: tuple[Header, ...] = (
    ("Content-Type", "text/plain"),
    ("Content-Encoding", "gzip"),
    ("Content-Encoding", "identity"),
    ("X-Request-Id", "mine-1"),
    ("X-Request-Id", "\u00ff" * 10),
    ("anthropic-version", "2023-06-01"),
    ("anthropic-beta", "a,b,c"),
    ("x-claude-code-session-id", "s-1"),
    ("session-id", ""),
    ("x-session-id", "\u00e9" * 300),
    ("Connection", "close"),
    ("Connection", "keep-alive, Upgrade"),
    ("Upgrade", "websocket"),
    ("Expect", "100-continue"),
    ("Accept", "text/event-stream"),
    ("Host", "["),
    ("X-Forwarded-For", "1.2.3.4, x"),
    ("Cookie", "x" * 3000),
)
WRONG_KEYS: tuple[Header | None, ...] = (
    None,
    ("Authorization", "Bearer nobody"),
    ("Authorization", "Basic YTpi"),
    ("Authorization", f"Bearer {ADMIN_TOKEN}"),
    ("x-api-key", "\u00ff"),
)
QUERIES = ("", "", "", "", "?beta=true", "?", "?%00=%ff&a=b", "#x")


@st.composite
def cases(draw: DrawFn) -> Case:
    """One request on a socket."""
    path, dice = draw(st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES])), draw(st.integers(0, 999))
    body = draw(bodies(path))
    url, method = path, "POST"
    if dice % 11 == 0:
        url = COUNTS.get(path, path)
    if dice % 37 == 0:
        url, method = draw(st.sampled_from(OTHERS)), draw(st.sampled_from(["GET", "POST", "HEAD", "OPTIONS"]))
    elif dice % 41 == 0:
        method = draw(st.sampled_from(["GET", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"]))
    key: Header | None = ("Authorization", f"Bearer {key_of(SEATS[dice % 5])}")
    if dice % 23 == 0:
        key = draw(st.sampled_from(WRONG_KEYS))
    elif dice % 2:
        key = ("x-api-key", key_of(SEATS[dice % 5]))
    headers = [key] if key else []
    headers += draw(st.lists(st.sampled_from(HEADERS), max_size=2, unique=True)) if dice % 3 == 0 else []
    size, sent = len(body), body
    if dice % 29 == 0:
        size = max(0, size + draw(st.sampled_from([-7, -1, 1, 9])))
    if dice % 19 == 0:
        headers.append(("Transfer-Encoding", "chunked"))
        sent = _chunked(body, draw(st.integers(1, 500)))
    else:
        headers.append(("Content-Length", str(size)))
    lines = [f"{method} {url}{QUERIES[dice % len(QUERIES)]} HTTP/1.{int(dice % 31 != 0)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines += [] if any(name == "Host" for name, _ in headers) else ["Host: box"]
    request = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + sent
    leaves = draw(st.sampled_from([0.0, 0.001, 0.005, 0.02, 0.08])) if dice % 13 == 0 else None
    if leaves is not None and dice % 5 == 0:
        request = request[: draw(st.integers(1, len(request)))]
    return Case(method, url, request, leaves, dice % 2 == 0, size != len(body) or dice % 31 == 0)


def _chunked(body: bytes, piece: int) -> bytes:
    step = max(piece, len(body) // 20, 1)
    pieces = [body[at : at + step] for at in range(0, len(body), step)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in pieces) + b"0\r\n\r\n"


def fuzz(count: int, number: int) -> list[Case]:
    """`count` cases, no two alike, the same ones for the same `number`."""
    found: dict[Case, None] = {}

    @seed(number)
    @settings(
        max_examples=count * 5 // 4,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def keep(case: Case) -> None:
        found[case] = None

    run: Callable[[], None] = keep
    run()
    return list(found)[:count]
