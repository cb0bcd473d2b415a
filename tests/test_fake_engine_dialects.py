"""The fake engine speaks four dialects: what each reply, count and refusal looks like, and what a prompt is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_engine.asking import CHAT, COMPLETIONS, MESSAGES, RESPONSES, ask, chat, events, served, texts
from tests.fake_engine.asks import parse
from tests.fake_engine.knobs import COUNT_PATHS, INFERENCE_PATHS, KnobError, Knobs, merged
from tests.fake_engine.render import render
from tests.fake_engine.tools import due_call

COUNTED = {CHAT: f"{CHAT}/input_tokens", MESSAGES: f"{MESSAGES}/count_tokens", RESPONSES: f"{RESPONSES}/input_tokens"}
TALKS = (CHAT, MESSAGES, RESPONSES)
TOOL = '{"name": "Bash", "arguments": {"command": "echo a longer command than one piece"}}'
ARGUMENTS = {"command": "echo a longer command than one piece"}


def counts_of(path: str, used: Mapping[str, Any]) -> tuple[int, int, int]:
    """(prompt, cached, output) tokens of a usage object."""
    if path == MESSAGES:
        cached = used["cache_read_input_tokens"]
        return used["input_tokens"] + cached, cached, used["output_tokens"]
    if path == RESPONSES:
        assert used["total_tokens"] == used["input_tokens"] + used["output_tokens"]
        return used["input_tokens"], used["input_tokens_details"]["cached_tokens"], used["output_tokens"]
    return used["prompt_tokens"], used["prompt_tokens_details"]["cached_tokens"], used["completion_tokens"]


def prompt_of(path: str, **fields: Any) -> bytes:
    rendered = render(fields, path)
    assert rendered is not None
    return rendered.prompt


# Replies


@pytest.mark.anyio
@pytest.mark.parametrize("path", INFERENCE_PATHS)
async def test_streamed_and_whole_replies_say_the_same(path: str) -> None:
    async with served(tokens_per_chunk=2, reply_text="One two  three\nfour five ") as (engine, client):
        for query in ("", "?beta=true"):
            stream = events((await client.post(path + query, json=ask(path, stream=True))).content)
            assert texts(path, stream) == ["One two", "  three\nfour", " five "]
        whole = (await client.post(path, json=ask(path, "x" * 4000))).json()
        again = (await client.post(path, json=ask(path, "x" * 4000))).json()
        assert counts_of(path, again["usage"]) == (counts_of(path, whole["usage"])[0], 960, 5)
        assert "One two  three\\nfour five " in json.dumps(whole)
        assert whole["id"] != again["id"]
        assert engine.engine.stats.paths[path] == 4
        assert engine.engine.stats.completed == 4


@pytest.mark.anyio
async def test_messages_stream_has_the_events_of_anthropic() -> None:
    async with served(tokens_per_chunk=3) as (_, client):
        body = ask(MESSAGES, "x" * 800, stream=True, max_tokens=5)
        await client.post(MESSAGES, json=body)
        stream = events((await client.post(MESSAGES, json=body)).content)
        assert [value["type"] for value in stream] == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        message = stream[0]["message"]
        assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
        assert message["stop_reason"] is None
        assert counts_of(MESSAGES, message["usage"])[1:] == (192, 0)
        assert stream[-2]["delta"]["stop_reason"] == "max_tokens"
        assert stream[-2]["usage"] == {"output_tokens": 5}


@pytest.mark.anyio
async def test_responses_stream_has_the_events_of_openai() -> None:
    async with served() as (engine, client):
        stream = events((await client.post(RESPONSES, json=ask(RESPONSES, stream=True, max_tokens=1))).content)
        assert [value["type"].removeprefix("response.") for value in stream] == [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "incomplete",
        ]
        assert [value["sequence_number"] for value in stream] == list(range(9))
        assert stream[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        assert stream[-1]["response"]["output"] == [stream[-2]["item"]]
        engine.engine.apply(merged(engine.engine.knobs, {"bare_events": True}))
        bare = events((await client.post(RESPONSES, json=ask(RESPONSES, stream=True, max_tokens=1))).content)
        assert not any({"sequence_number", "output_index", "content_index"} & value.keys() for value in bare)


@pytest.mark.anyio
async def test_the_openai_client_reads_responses_in_all_its_ways() -> None:
    async with served(tool_rules=[TOOL], reply_tokens=3) as (engine, _):
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="k", http_client=http) as client:
            whole = await client.responses.create(model="m", input="hi")
            async for event in await client.responses.create(model="m", input="hi", stream=True):
                last = event
            assert last.type == "response.completed"
            assert last.response.output_text == whole.output_text
            async with client.responses.stream(model="m", input="hi", max_output_tokens=2) as stream:
                pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
            assert whole.output_text.startswith("".join(pieces))
            tool: Any = {"type": "function", "name": "Bash", "parameters": {}, "strict": False}
            async with client.responses.stream(model="m", input="hi", tools=[tool]) as stream:
                (call,) = (await stream.get_final_response()).output
            assert call.type == "function_call"
            assert json.loads(call.arguments) == ARGUMENTS


# Tool calls


def tools_of(path: str, name: str = "Bash") -> list[dict[str, Any]]:
    function = {"name": name, "description": "runs it", "parameters": {}}
    if path == CHAT:
        return [{"type": "function", "function": function}]
    if path == MESSAGES:
        return [{"name": name, "input_schema": {}}]
    return [{"type": "web_search"}, {"type": "namespace", "name": "space", "tools": [{"type": "function"} | function]}]


def call_in(path: str, reply: Mapping[str, Any]) -> tuple[str, str, Any]:
    """(id, name, arguments) of the only call of a whole reply."""
    if path == CHAT:
        (choice,) = reply["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        return call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])
    if path == MESSAGES:
        (block,) = reply["content"]
        assert (block["type"], reply["stop_reason"]) == ("tool_use", "tool_use")
        return block["id"], block["name"], block["input"]
    (item,) = reply["output"]
    assert (item["type"], item["namespace"], reply["status"]) == ("function_call", "space", "completed")
    return item["call_id"], item["name"], json.loads(item["arguments"])


def streamed_call(path: str, stream: list[Any]) -> tuple[str, int]:
    """The arguments of the call in a stream, and in how many pieces they came."""
    if path == CHAT:
        deltas = [value["choices"][0]["delta"] for value in stream[:-1]]
        pieces = [delta["tool_calls"][0]["function"]["arguments"] for delta in deltas if "tool_calls" in delta]
        assert deltas[1]["tool_calls"][0]["function"]["name"] == "Bash"
        assert stream[-2]["choices"][0]["finish_reason"] == "tool_calls"
        return "".join(pieces), len(pieces) - 1
    if path == MESSAGES:
        block = next(value for value in stream if value["type"] == "content_block_start")["content_block"]
        assert (block["type"], block["name"], block["input"]) == ("tool_use", "Bash", {})
        pieces = [value["delta"]["partial_json"] for value in stream if value["type"] == "content_block_delta"]
        assert stream[-2]["delta"]["stop_reason"] == "tool_use"
        return "".join(pieces), len(pieces)
    kind = "response.function_call_arguments"
    pieces = [value["delta"] for value in stream if value["type"] == f"{kind}.delta"]
    done = next(value for value in stream if value["type"] == f"{kind}.done")
    assert done["arguments"] == "".join(pieces)
    return done["arguments"], len(pieces)


def second_turn(path: str, text: str, reply: Mapping[str, Any]) -> dict[str, Any]:
    """The next request of an agent that got `reply`, a call, and ran it."""
    number = call_in(path, reply)[0]
    fields: dict[str, Any] = {"tools": tools_of(path)}
    if path == RESPONSES:
        result = {"type": "function_call_output", "call_id": number, "output": "done"}
        return fields | {"input": [{"role": "user", "content": text}, *reply["output"], result]}
    if path == CHAT:
        turn = {"role": "tool", "tool_call_id": number, "content": "done"}
        return chat(text) | fields | {"messages": [*chat(text)["messages"], reply["choices"][0]["message"], turn]}
    blocks = [
        {"type": "tool_result", "tool_use_id": number, "content": [{"type": "text", "text": "done"}]},
        {"type": "text", "text": "<system-reminder>be nice</system-reminder>"},
    ]
    said = {"role": "assistant", "content": reply["content"]}
    note = {"role": "system", "content": "environment"}
    return fields | {"messages": [*chat(text)["messages"], said, {"role": "user", "content": blocks}, note]}


@pytest.mark.anyio
@pytest.mark.parametrize("path", TALKS)
async def test_a_tool_is_called_once_and_the_result_is_answered_with_text(path: str) -> None:
    text = "x" * 4000
    async with served(tool_rules=['{"name": "shell"}', TOOL], reply_text="It is done.") as (_, client):
        first = ask(path, text, tools=tools_of(path))
        whole = (await client.post(path, json=first)).json()
        stream = events((await client.post(path, json=first | {"stream": True})).content)
        assert call_in(path, whole)[1:] == ("Bash", ARGUMENTS)
        arguments, pieces = streamed_call(path, stream)
        assert json.loads(arguments) == ARGUMENTS
        assert pieces > 2
        assert call_in(path, (await client.post(path, json=first)).json())[0] != call_in(path, whole)[0]
        second = second_turn(path, text, whole)
        answer = (await client.post(path, json=second | {"stream": True})).content
        assert texts(path, events(answer)) == ["It", " is", " done."]
        # The call came back in the prompt as it had left: nothing before the result is read again.
        called, cached, _ = counts_of(path, (await client.post(path, json=first)).json()["usage"])
        assert cached >= called - 64
        again = json.loads(json.dumps(second))
        (again.get("messages") or again["input"]).append({"role": "user", "content": "once more"})
        assert call_in(path, (await client.post(path, json=again)).json())[1] == "Bash"


@pytest.mark.parametrize(
    ("fields", "rules", "called"),
    [
        ({"tools": []}, ['{"name": "Bash", "any": true}'], None),
        ({"tools": tools_of(MESSAGES, "other")}, [TOOL], None),
        ({"tools": tools_of(MESSAGES, "other")}, ['{"name": "Bash", "any": true}'], "Bash"),
        ({"tools": tools_of(MESSAGES, "other")}, [TOOL, '{"name": "x", "when_tool": "other"}'], "x"),
        ({"tools": tools_of(CHAT)}, [TOOL], "Bash"),
        ({"tools": tools_of(RESPONSES)}, [TOOL], "Bash"),
        ({"tools": tools_of(CHAT), "tool_choice": "none"}, [TOOL], None),
    ],
)
def test_the_first_rule_whose_tool_is_there_wins(fields: Any, rules: list[str], called: str | None) -> None:
    call = due_call(fields | chat(), rules)
    assert (call.name if call else None) == called


# Counts


@pytest.mark.anyio
@pytest.mark.parametrize("style", ["llama", "vllm"])
@pytest.mark.parametrize("path", TALKS)
async def test_counts_say_what_usage_says(path: str, style: str) -> None:
    async with served(style=style, images=True) as (engine, client):
        image = {"type": "image", "source": {"data": "aa"}}
        for text in ("hi", [{"type": "text", "text": "what is this?"}, image]):
            body = ask(path, tools=tools_of(path))
            body |= {"input" if path == RESPONSES else "messages": [{"role": "user", "content": text}]}
            prompt = counts_of(path, (await client.post(path, json=body)).json()["usage"])[0]
            answer = (await client.post(COUNTED[path], json=body)).json()
            assert answer == {"input_tokens": prompt} | (
                {} if path == MESSAGES else {"object": "response.input_tokens"}
            )
            if path == CHAT:
                answer = (await client.post("/tokenize", json=body)).json()
                assert (answer["count"], len(answer["tokens"])) == (prompt, prompt)
        assert prompt > 256
        assert engine.engine.stats.requests == 2


@pytest.mark.anyio
async def test_paths_that_are_not_served_are_not_found() -> None:
    said: dict[str, object] = {
        "llama": {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}},
        "vllm": {"detail": "Not Found"},
    }
    for style, body in said.items():
        async with served(style=style, dialects=[CHAT], counts=[]) as (_, client):
            for path in (*INFERENCE_PATHS[1:], *COUNT_PATHS, "/nothing"):
                response = await client.post(path, json=ask(path))
                assert (response.status_code, response.json()) == (404, body)
            assert (await client.post(CHAT, json=chat())).status_code == 200


# Prompts


def test_what_engines_do_not_render_changes_nothing() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    plain = prompt_of(MESSAGES, system="be good", messages=[{"role": "user", "content": "hi"}])
    blocks = [{"type": "text", "text": "hi"} | mark]
    marked = prompt_of(
        MESSAGES, system=[{"type": "text", "text": "be good"} | mark], messages=[{"role": "user", "content": blocks}]
    )
    assert plain == marked
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert prompt_of(RESPONSES, input="hi") == prompt_of(RESPONSES, input=[item | {"id": "msg_1"}])
    call = {"type": "function_call", "name": "f", "arguments": '{"a": 1}'}
    assert prompt_of(RESPONSES, input=[item, call | {"call_id": "1", "id": "x"}]) == prompt_of(
        RESPONSES, input=[item, call | {"call_id": "2", "id": "y"}]
    )


@pytest.mark.parametrize("path", TALKS)
def test_all_else_is_in_the_prompt(path: str) -> None:
    messages = "input" if path == RESPONSES else "messages"
    system = {CHAT: "x", MESSAGES: "system", RESPONSES: "instructions"}[path]
    one = {messages: [{"role": "user", "content": "hi"}]}
    others: list[dict[str, Any]] = [
        {messages: [{"role": "user", "content": "ho"}]},
        {messages: [{"role": "system", "content": "hi"}]},
        one | {"tools": tools_of(path)},
    ]
    if path != CHAT:
        others.append(one | {system: [{"type": "text", "text": "x-anthropic-billing-header: 58d"}]})
        others.append(one | {system: [{"type": "text", "text": "x-anthropic-billing-header: a4e"}]})
    prompts = [prompt_of(path, **fields) for fields in (one, *others)]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize(
    ("path", "style", "fields", "continued"),
    [
        (CHAT, "llama", {}, True),
        (MESSAGES, "llama", {}, True),
        (RESPONSES, "llama", {}, True),
        (CHAT, "vllm", {}, False),
        (CHAT, "vllm", {"continue_final_message": True, "add_generation_prompt": False}, True),
        (MESSAGES, "vllm", {}, True),
        (RESPONSES, "vllm", {}, False),
    ],
)
def test_a_final_assistant_message_is_continued_or_closed(
    path: str, style: str, fields: dict[str, Any], continued: bool
) -> None:
    said = [{"role": "user", "content": "say"}, {"role": "assistant", "content": "I say"}]
    body = json.dumps({"input" if path == RESPONSES else "messages": said, **fields}).encode()
    for continues in (True, False):
        got = parse(body, path, merged(Knobs(), {"style": style, "continues": continues}))
        assert not hasattr(got, "status")
        left_open = continued and continues
        assert got.prompt.endswith(b"I say" if left_open else b"I say\n<|assistant|>\n")


def test_vllm_refuses_to_continue_and_to_begin_a_reply_at_once() -> None:
    body = json.dumps(chat(continue_final_message=True)).encode()
    assert getattr(parse(body, CHAT, Knobs(style="vllm")), "status", None) == 400
    assert getattr(parse(body, CHAT, Knobs()), "status", None) is None


@pytest.mark.anyio
@pytest.mark.parametrize("path", TALKS)
@pytest.mark.parametrize("kind", ["image_url", "image", "input_image"])
async def test_images_are_refused_by_a_model_without_eyes(path: str, kind: str) -> None:
    nested: list[dict[str, Any]] = [{"type": "tool_result", "content": [{"type": kind}]}, {"type": kind}]
    for style, status in (("llama", 500), ("vllm", 400)):
        async with served(style=style) as (_, client):
            for part in nested:
                turn = {"role": "user", "content": [{"type": "text", "text": "see"}, part]}
                body = ask(path) | {"input" if path == RESPONSES else "messages": [turn]}
                for url in (path, COUNTED[path]):
                    assert (await client.post(url, json=body)).status_code == status


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "role", "content"]), inner),
    max_leaves=8,
)
_names = ("messages", "input", "prompt", "system", "instructions", "tools", "max_tokens", "n", "stream_options")


@settings(max_examples=200)
@given(st.sampled_from(INFERENCE_PATHS), st.dictionaries(st.sampled_from(_names), _json))
def test_no_body_breaks_the_parser(path: str, fields: dict[str, Any]) -> None:
    parse(json.dumps(fields).encode(), path, Knobs(tool_rules=(TOOL,), images=True))


@pytest.mark.parametrize(
    "patch",
    [
        {"style": "tgi"},
        {"dialects": ["/v2/chat"]},
        {"counts": [CHAT]},
        {"tool_rules": ["{"]},
        {"tool_rules": ["[]"]},
        {"tool_rules": ['{"name": "a", "argumets": {}}']},
        {"tool_rules": [{"name": "a"}]},
    ],
)
def test_wrong_knobs_of_dialects_are_refused(patch: dict[str, Any]) -> None:
    with pytest.raises(KnobError):
        merged(Knobs(), patch)


@pytest.mark.anyio
async def test_completions_have_no_tools() -> None:
    async with served(tool_rules=[TOOL], reply_text="ok") as (_, client):
        reply = (await client.post(COMPLETIONS, json=ask(COMPLETIONS, tools=tools_of(CHAT)))).json()
        assert reply["choices"][0]["text"] == "ok"
