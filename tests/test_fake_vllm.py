"""The stand-in for vLLM does what vLLM 0.26.0 was measured to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.engine.vllm.adapter import LAUNCHER, SERVER
from tests.fake_vllm import KNOBS, install, model_in
from tests.fake_vllm.knobs import VllmKnobs, read

KEY = {"authorization": "Bearer k"}
LIMIT_S = 20.0
BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


class Server:
    """One process, and its socket."""

    def __init__(self, folder: Path, words: tuple[str, ...], told: dict[str, Any]) -> None:
        (folder / "key").write_text("k")
        model = model_in(folder / "tiny")
        argv = [str(install(folder / "env")), "-P", str(LAUNCHER), str(folder / "key"), *SERVER, "--uds", f"{folder}/s"]
        argv += ["--model", str(model), "--served-model-name", "m", *words]
        self.log = folder / "log"
        with self.log.open("wb") as log:
            environ = os.environ | {KNOBS: json.dumps({"boot_s": 0.05} | told)}
            self.process = subprocess.Popen(argv, env=environ, stderr=log, start_new_session=True)
        self.http = httpx.Client(transport=httpx.HTTPTransport(uds=f"{folder}/s"), base_url="http://x", headers=KEY)

    def until(self, words: str) -> None:
        """Its log says that."""
        give_up_s = time.monotonic() + LIMIT_S
        while words not in self.log.read_text():
            assert time.monotonic() < give_up_s, self.log.read_text()
            time.sleep(0.01)

    def end(self) -> None:
        """With all children."""
        self.http.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


MakeServer = Callable[..., Server]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MakeServer]:
    made: list[Server] = []

    def make(*words: str, **told: Any) -> Server:
        made.append(Server(tmp_path, words, told))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_it_serves_on_its_socket_to_who_has_the_key(server: MakeServer) -> None:
    one = server()
    one.until("Application startup complete")
    assert one.http.get("/v1/models").json()["data"][0]["id"] == "m"
    assert one.http.get("/v1/models", headers={"authorization": "Bearer other"}).status_code == 401
    one.process.terminate()
    assert one.process.wait(LIMIT_S) == 0


def test_a_core_that_is_stopped_leaves_the_health_good_and_answers_nothing(server: MakeServer) -> None:
    one = server()
    one.until("Application startup complete")
    children = one.http.get("/_fake/stats").json()["children"]
    # when
    os.kill(children[0], signal.SIGSTOP)
    # then: within a few looks of the server at its core
    give_up_s = time.monotonic() + LIMIT_S
    with pytest.raises(httpx.ReadTimeout):  # noqa: PT012 - until it has seen it
        while time.monotonic() < give_up_s:
            one.http.post("/v1/chat/completions", json=BODY, timeout=0.5)
    assert one.http.get("/health").status_code == 200
    os.kill(children[0], signal.SIGCONT)


def test_a_core_that_dies_ends_it_with_nought_while_it_serves_and_with_one_before(server: MakeServer) -> None:
    one = server(kill_core_at="Starting to load model")
    assert one.process.wait(LIMIT_S) == 1
    assert "Engine core initialization failed" in one.log.read_text()


def test_usage_is_in_every_chunk_when_it_is_forced(server: MakeServer) -> None:
    one = server("--enable-force-include-usage")
    one.until("Application startup complete")
    said = one.http.post("/v1/chat/completions", json=BODY | {"stream": True}).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in said.split("\n\n") if line.startswith("data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk["choices"]]
    assert counts == sorted(counts)
    assert counts[-1] == 2


def test_a_flag_that_vllm_does_not_have_is_refused_as_vllm_does(server: MakeServer) -> None:
    one = server("--nope-flag")
    assert one.process.wait(LIMIT_S) == 2
    assert "api_server.py: error: unrecognized arguments: --nope-flag" in one.log.read_text()


def test_it_fails_where_it_is_told_to(server: MakeServer) -> None:
    one = server(fail_at="Starting to load model", fail_log=["last words"], exit_code=3)
    assert one.process.wait(LIMIT_S) == 3
    assert one.log.read_text().endswith("last words\n")


def test_several_ranks_have_workers(server: MakeServer) -> None:
    one = server("--tensor-parallel-size", "2")
    one.until("Application startup complete")
    children = one.http.get("/_fake/stats").json()["children"]
    names = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode() for pid in children]
    assert names == ["VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"]


def test_a_knob_that_there_is_not_is_a_mistake() -> None:
    assert read("") == VllmKnobs()
    with pytest.raises(ValueError, match="no knob of the fake vLLM is called 'x'"):
        read('{"x": 1}')
