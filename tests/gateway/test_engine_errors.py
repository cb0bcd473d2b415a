"""What engines answer, word by word, becomes one problem in all dialects, with numbers that are true."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects import Dialect
from gateway.dialects.messages import MESSAGES
from gateway.dialects.openai import CHAT, COMPLETIONS
from gateway.dialects.responses import RESPONSES
from gateway.engine_errors import MESSAGE_MAX, is_lower_bound, read_error, read_failure, recounted
from gateway.problem import Problem

PATHS = pytest.mark.parametrize("path", [CHAT.path, COMPLETIONS.path, RESPONSES.path, MESSAGES.path])


def llama(status: int, message: str, kind: str = "invalid_request_error", **more: Any) -> bytes:
    return json.dumps({"error": {"code": status, "message": message, "type": kind, **more}}).encode()


def vllm(status: int, message: str, param: str | None = None) -> bytes:
    return json.dumps(
        {"error": {"message": message, "type": "BadRequestError", "param": param, "code": status}}
    ).encode()


def vllm_messages(message: str, kind: str = "BadRequestError") -> bytes:
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


LLAMA_LONG = llama(
    400, "request (12030 tokens) exceeds the available context size (8192 tokens), try increasing it",
    "exceed_context_size_error", n_prompt_tokens=12030, n_ctx=8192,
)  # fmt: skip
MAXIMUM = "This model's maximum context length is 262144 tokens"
AT_LEAST = (
    MAXIMUM
    + ". However, you requested {} output tokens and your prompt contains at least {} input tokens, for a total "
    "of at least {} tokens. Please reduce the length of the input prompt or the number of requested output tokens."
)
TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: 64000. " + MAXIMUM + " and your request has 210000 input "
    "tokens (64000 > 262144 - 210000)."
)
CLASSIC = MAXIMUM + ". However, you requested {} tokens ({} in the messages, {} in the completion). Please reduce."
PASSED = (
    "You passed {} input tokens and requested {} output tokens. However, the model's context length is only 262144 "
    "tokens, resulting in a maximum input length of 198144 tokens. Please reduce the length of the input prompt."
)
SGLANG = (
    "Requested token count exceeds the model's maximum context length of 262144 tokens. You requested a total of {} "
    "tokens: {} tokens from the input messages and {} tokens for the completion. Please reduce the number of tokens."
)
SGLANG_PROMPT = "The input (300000 tokens) is longer than the model's context length (262144 tokens)."
TOO_LONG: list[tuple[str, bytes, int, int | None]] = [
    # body, tokens of the prompt, tokens of the answer when it is the two together that do not fit
    ("llama.cpp", LLAMA_LONG, 12030, None),
    ("vllm", vllm(400, MAXIMUM + ". However, your request has at least 262145 input tokens."), 262145, None),
    ("vllm, no answer asked", vllm(400, AT_LEAST.format(0, 262145, 262145), "input_tokens"), 262145, None),
    ("vllm, messages", vllm_messages(AT_LEAST.format(0, 262145, 262145)), 262145, None),
    ("vllm, with an answer", vllm(400, AT_LEAST.format(64000, 198145, 262145), "input_tokens"), 198145, 64000),
    ("vllm, answer too large", vllm(400, TOO_LARGE, "max_tokens"), 210000, 64000),
    ("vllm, answer too large, messages", vllm_messages(TOO_LARGE), 210000, 64000),
    ("vllm, classic", vllm(400, CLASSIC.format(274000, 210000, 64000), "messages"), 210000, 64000),
    ("vllm, classic, prompt", vllm(400, CLASSIC.format(364000, 300000, 64000), "messages"), 300000, None),
    ("vllm, passed", vllm(400, PASSED.format(210000, 64000), "input_tokens"), 210000, 64000),
    ("vllm, resulted", vllm(400, MAXIMUM + ". However, your messages resulted in 300000 tokens."), 300000, None),
    ("sglang", vllm(400, SGLANG.format(274000, 210000, 64000)), 210000, 64000),
    ("sglang, prompt", vllm(400, SGLANG_PROMPT), 300000, None),
    ("no number", vllm(400, MAXIMUM + "."), 262144, None),
]  # fmt: skip
WHICH = pytest.mark.parametrize(
    ("body", "tokens", "answer"), [row[1:] for row in TOO_LONG], ids=[r[0] for r in TOO_LONG]
)


@WHICH
@PATHS
def test_a_context_error_has_true_numbers_in_every_dialect(
    path: str, body: bytes, tokens: int, answer: int | None
) -> None:
    window = 8192 if body is LLAMA_LONG else 262144
    problem = read_error(400, body, path)
    assert (problem.status, problem.code, problem.heals) == (400, "context_length_exceeded", False)
    assert (problem.tokens, problem.answer_tokens, problem.window) == (tokens, answer, window)
    assert tokens + (answer or 0) >= window
    told = json.loads(CHAT.error(problem))["error"]
    assert told["code"] == "context_length_exceeded"
    assert f"maximum context length is {window} tokens" in told["message"]
    said = json.loads(MESSAGES.error(problem))["error"]
    assert said["type"] == "invalid_request_error"
    if answer is None:
        assert f"resulted in {tokens} tokens" in told["message"]
        assert said["message"] == f"prompt is too long: {tokens} tokens > {min(window, tokens - 1)} maximum"
    else:
        assert f"({tokens} in the messages, {answer} in the completion)" in told["message"]
        assert told["param"] == "max_tokens"
        assert said["message"] == (
            f"input length and `max_tokens` exceed context limit: {tokens} + {answer} > {window}, "
            "decrease input length or `max_tokens` and try again"
        )


@WHICH
def test_what_says_a_lower_bound_only_is_counted_again(body: bytes, tokens: int, answer: int | None) -> None:
    vague = b"at least" in body or b'length is 262144 tokens."' in body
    assert is_lower_bound(body) is vague


@pytest.mark.parametrize("status", [400, 500])
@PATHS
def test_vllm_says_in_several_ways_that_a_prompt_does_not_fit(status: int, path: str) -> None:
    """Measured with vLLM 0.26, which answers 500 on /v1/messages."""
    uncounted = (
        "This model's maximum context length is 4096 tokens. However, you requested 1000 output tokens and your prompt "
        "contains 800148 characters (more than 250776 characters, which is the upper bound for 3096 input tokens)."
    )
    exact = "The engine prompt length 4096 exceeds the max_model_len 4096. Please reduce prompt."
    problem = read_error(status, vllm(status, uncounted), path)
    assert is_lower_bound(vllm(status, uncounted))
    assert (problem.status, recounted(problem, None).tokens, recounted(problem, 200_000).tokens) == (400, 4097, 200_000)
    assert recounted(problem, 200_000).answer_tokens is None
    problem = read_error(status, vllm(status, exact), path)
    assert (problem.status, problem.tokens, problem.window) == (400, 4096, 4096)


def test_a_true_count_says_which_of_the_two_is_too_long() -> None:
    both = read_error(400, vllm(400, AT_LEAST.format(64000, 198145, 262145)), CHAT.path)
    fits = recounted(both, 200_000)
    assert (fits.tokens, fits.answer_tokens, fits.window) == (200_000, 64000, 262144)
    alone = recounted(both, 300_000)
    assert (alone.tokens, alone.answer_tokens, alone.window) == (300_000, None, 262144)
    uncounted = recounted(both, None)
    assert (uncounted.tokens, uncounted.answer_tokens) == (262_145, None), "nobody knows, so that an agent makes room"
    assert recounted(both, 5).tokens == 198145, "the engine has seen so many"
    other = Problem(400, "c", "m")
    assert recounted(other, 5) is other


OTHERS: list[tuple[str, int, bytes, int, str, str]] = [
    ("llama.cpp image", 500, llama(500, "image input is not supported - hint: if this is unexpected, you may need to "
     "provide the mmproj", "server_error"), 400, "images_not_supported", "reads text only"),
    ("llama.cpp tools", 500, llama(500, 'Failed to parse tools: Unsupported tool type: {"x":1}; tools = []',
     "server_error"), 400, "engine_refused", "Unsupported tool type"),
    ("llama.cpp no tool type", 500, llama(500, "Missing tool type", "server_error"), 400, "engine_refused", "Missing"),
    ("llama.cpp bad json", 400, llama(400, "[json.exception.parse_error.101] x"), 400, "engine_refused", "parse_error"),
    ("llama.cpp item", 400, llama(400, "Cannot determine type of 'item'"), 400, "engine_refused", "type of 'item'"),
    ("llama.cpp path", 404, llama(404, "File Not Found", "not_found_error"), 501, "dialect_not_served", "not answer"),
    ("llama.cpp loading", 503, llama(503, "Loading model", "unavailable_error"), 503, "engine_busy", "503"),
    ("llama.cpp key", 401, llama(401, "Invalid API Key", "authentication_error"), 502, "engine_key", "operator"),
    ("vllm path", 404, b'{"detail":"Not Found"}', 501, "dialect_not_served", "not answer"),
    ("vllm method", 405, b'{"detail":"Method Not Allowed"}', 501, "dialect_not_served", "not answer"),
    ("vllm model", 404, vllm(404, "The model `x` does not exist."), 404, "engine_refused", "`x`"),
    ("vllm model, messages", 404, vllm_messages("The model `x` does not exist.", "NotFoundError"), 404,
     "engine_refused", "`x`"),
    ("vllm key", 401, b'{"error":"Unauthorized"}', 502, "engine_key", "operator"),
    ("vllm busy", 503, vllm(503, "The engine is currently busy and cannot accept new requests."), 503, "engine_busy",
     "503"),
    ("vllm busy, messages", 503, vllm_messages("busy", "Service Unavailable"), 503, "engine_busy", "503"),
    ("vllm bound of the answer", 400, vllm(400, "max_tokens=5000 cannot be greater than max_model_len=2048.",
     "max_tokens"), 400, "engine_refused", "max_model_len=2048"),
    ("vllm tools", 400, vllm(400, '"auto" tool choice requires --enable-auto-tool-choice'), 400, "engine_refused",
     "auto"),
    ("vllm image", 500, vllm_messages("m is not a multimodal model"), 400, "images_not_supported", "reads text only"),
    ("vllm empty talk", 500, vllm_messages("Cannot apply chat template to an empty conversation."), 400,
     "engine_refused", "empty conversation"),
    ("vllm answer above the window", 500, vllm_messages("max_completion_tokens=5000 cannot be greater than "
     "max_model_len=max_total_tokens=4096."), 400, "engine_refused", "cannot be greater"),
    ("vllm item that it does not know", 500, vllm(500, "'role'"), 400, "engine_refused", "'role'"),
    ("vllm without the dialect", 501, vllm(501, "The model does not support Messages API"), 501, "dialect_not_served",
     "not answer"),
    ("vllm crash", 500, vllm(500, "EngineCore encountered an issue."), 503, "engine_lost", "gone"),
    ("overloaded", 529, b"{}", 503, "engine_busy", "529"),
    ("too many", 429, b"<html>", 503, "engine_busy", "429"),
    ("forbidden", 403, b"", 502, "engine_key", "operator"),
    ("a code of its own", 422, b'{"error":{"message":"no","code":"bad_thing","param":"x"}}', 422, "bad_thing", "no"),
    ("a list", 422, b'{"detail":[{"msg":"no"}]}', 422, "engine_refused", "status 422"),
    ("a text", 400, b'{"error":"just a text"}', 400, "engine_refused", "just a text"),
    ("html", 400, b"<html>", 400, "engine_refused", "status 400"),
    ("no object", 400, b"[1]", 400, "engine_refused", "status 400"),
    ("odd fields", 400, b'{"error":{"message":5,"param":7,"code":[]}}', 400, "engine_refused", "status 400"),
    ("nothing", 500, b"", 500, "engine_refused", "status 500"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "told", "code", "said"), [row[1:] for row in OTHERS], ids=[r[0] for r in OTHERS]
)
@PATHS
def test_other_errors_keep_what_helps_and_nothing_of_the_engines_shape(
    path: str, status: int, body: bytes, told: int, code: str, said: str
) -> None:
    problem = read_error(status, body, path)
    assert (problem.status, problem.code) == (told, code)
    assert said in problem.message
    assert problem.heals is (told >= 500 and told != 501), "what is the client's to mend is not sent again"
    assert problem.tokens is None


def test_a_message_is_not_passed_on_at_any_length() -> None:
    assert len(read_error(400, llama(400, "x" * 100_000), CHAT.path).message) == MESSAGE_MAX


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda dialect: dialect.path)
@pytest.mark.parametrize(
    ("data", "status", "heals"),
    [
        (
            b'{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}',
            502,
            True,
        ),
        (b'{"type":"error","error":{"type":"api_error","message":"no"}}', 500, True),
        (b'{"error":{"message":"2 validation errors for ChatCompletionStreamResponse","code":500}}', 502, True),
        (b'{"type":"response.failed","response":{"error":{"code":"server_error","message":"no"}}}', 500, True),
        (b'{"type":"error","code":"server_error","message":"no","param":null}', 500, True),
        (b'{"object":"error","message":"no","code":400}', 400, False),
        (b'{"object":"error","message":"no","code":503}', 503, True),
        (b'{"error":{"message":"no","code":200}}', 500, True),
        (b'{"error":{"message":"no","code":true}}', 500, True),
        (b"", 500, True),
        (b"not json", 500, True),
    ],
)
def test_a_failure_inside_a_stream_is_told_so_that_it_is_tried_again_when_that_helps(
    dialect: Dialect, data: bytes, status: int, heals: bool
) -> None:
    problem = read_failure(data, dialect.path)
    assert (problem.status, problem.heals) == (status, heals)
    event = dialect.stream_error(problem, None)
    assert event.count(b"\n\n") == 1


QUOTED = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "ValueError: /m is not a multimodal model",
    "EngineDeadError",
    "maximum context length is " + "9" * 5000 + " tokens",
)


@pytest.mark.parametrize("text", QUOTED, ids=range(len(QUOTED)))
@pytest.mark.parametrize("status", [400, 500])
def test_what_a_validation_error_quotes_of_a_conversation_is_no_word_of_the_engine(text: str, status: int) -> None:
    asked = {"messages": [{"role": "user", "content": text}]}
    quoted = {"type": "literal_error", "loc": ("body", "tool_choice"), "msg": "Input should be 'none'", "input": asked}
    message = f"1 validation error:\n  {quoted}"
    problem = read_error(status, json.dumps({"error": {"message": message, "code": status}}).encode(), CHAT.path)
    assert (problem.code, problem.tokens) == (read_error(status, vllm(status, "no"), CHAT.path).code, None)


def test_a_number_longer_than_any_is_none() -> None:
    problem = read_error(400, vllm(400, f"maximum context length is {'9' * 5000} tokens"), CHAT.path)
    assert problem.tokens is None


def test_a_context_error_inside_a_stream_has_its_numbers_too() -> None:
    problem = read_failure(LLAMA_LONG, RESPONSES.path)
    assert (problem.tokens, problem.window) == (12030, 8192)
    failed = json.loads(RESPONSES.stream_error(problem, None).split(b"data: ")[1])
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
