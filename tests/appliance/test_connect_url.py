"""`moe-appliance connect --url`: on a developer's own machine, where there is no box."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from tests.appliance.connecting import Here, made_here


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return made_here(tmp_path)


class Answer(BaseHTTPRequestHandler):
    """GET /v1/models of a box."""

    code = 200
    body: ClassVar[Any] = {"data": [{"id": "far", "max_model_len": 65_536}, {"id": "x", "max_model_len": 5}]}
    keys: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.keys.append(self.headers.get("authorization"))
        raw = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        self.send_response(self.code if self.path == "/v1/models" else 404)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Answer, "keys", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_with_a_url_the_box_is_asked_over_the_network_and_no_seat_is_needed(here: Here, far: str) -> None:
    here.box.status = None
    here.box.seats_file.unlink()
    for url in (far, f"{far}/", f"{far}/v1"):
        said = here(f"codex --url {url} --write", MOE_API_KEY="moe-k")
        assert said.exit_code == 0
    assert Answer.keys == ["Bearer moe-k"] * 3
    text = here.file("codex").read_text()
    assert ('model = "far"' in text, "model_context_window = 65536" in text) == (True, True)
    assert f'base_url = "{far}/v1"' in text
    assert "your key" in here(f"codex --url {far}").stdout
    assert "model_context_window = 5\n" in here(f"codex --url {far} --model x").stdout
    assert "the box serves far, x, not y" in here.refused(f"codex --url {far} --model y").message
    here(f"claude-code --url {far} --write")
    assert "moe-k" in here.file("claude-code").read_text()


def test_with_a_url_and_all_values_nothing_is_asked(here: Here) -> None:
    said = here("codex --url http://nowhere.invalid --model m --context 5").stdout
    assert 'base_url = "http://nowhere.invalid/v1"' in said


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (401, {"error": {"message": "unknown key"}}, "refuses the key with 401: unknown key"),
        (403, {"error": {"message": "seat is disabled"}}, "refuses the key with 403: seat is disabled"),
        (401, b"", "no reason given"),
        (200, b"<html>", "no list of models"),
        (200, {"data": []}, "no model loaded"),
        (404, {}, "answers 404"),
        (503, {"error": {"message": "starting"}}, "answers 503"),
        (200, {"data": [{"id": "far"}]}, "does not say how long a context far has"),
        (200, {"data": [{"id": "far", "max_model_len": "x"}]}, "does not say how long a context far has"),
    ],
)
def test_a_url_that_is_no_help_is_an_error_with_a_remedy(
    here: Here, far: str, monkeypatch: pytest.MonkeyPatch, code: int, body: Any, said: str
) -> None:
    monkeypatch.setattr(Answer, "code", code)
    monkeypatch.setattr(Answer, "body", body)
    assert said in here.refused(f"codex --url {far}", MOE_API_KEY="moe-k").message


def test_a_url_that_does_not_answer(here: Here) -> None:
    error = here.refused("codex --url http://127.0.0.1:1", MOE_API_KEY="moe-k")
    assert (error.exit_code, "does not answer" in error.message) == (3, True)
    assert "MOE_API_KEY is not set" in here.refused("codex --url http://127.0.0.1:1", MOE_API_KEY="").message


@pytest.mark.parametrize(
    "url",
    [
        "box:8000",
        "ftp://x",
        "http://",
        "http://x/path",
        "http://u@x",
        "http://x:0",
        "http://[x",
        "http://x/v1?a",
        'http://x"',
    ],
)
def test_what_is_no_url_is_a_wrong_use(here: Here, url: str) -> None:
    assert here(f"codex --url {shlex.quote(url)}").exit_code == 2
