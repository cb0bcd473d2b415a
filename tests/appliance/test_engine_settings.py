"""appliance/engine/settings.py and the two adapters that only pass settings on."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from appliance.box.facts import Facts
from appliance.engine.adapter import LOAD_S, Adapter, Step
from appliance.engine.command import CommandEngine
from appliance.engine.embedded import EmbeddedEngine
from appliance.engine.external import ExternalEngine
from appliance.engine.settings import (
    CommandSettings,
    EmbeddedSettings,
    EngineSettings,
    ExternalSettings,
)
from gateway.state import Severity

ENGINE: TypeAdapter[Any] = TypeAdapter(EngineSettings)
FACTS = Facts("x86_64", frozenset(), 2, None, None, (3, 11, 0), 0, "127.0.0.1")


def external(**more: Any) -> ExternalSettings:
    return ExternalSettings(kind="external", url="http://x", **more)


def command(*argv: str, **more: Any) -> CommandSettings:
    return CommandSettings(kind="command", command=argv, **more)


def test_kind_chooses_the_table() -> None:
    assert ENGINE.validate_python({"kind": "embedded"}) == EmbeddedSettings()
    assert isinstance(ENGINE.validate_python({"kind": "external", "url": "http://x:1"}), ExternalSettings)
    made = ENGINE.validate_python({"kind": "command", "command": ["x", "{port}"]})
    assert made.command == ("x", "{port}")


@pytest.mark.parametrize("table", [{"kind": "sglang"}, {"kind": "embedded", "thread": 2}, {"url": "http://x"}])
def test_unknown_kinds_and_keys_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ENGINE.validate_python(table)


def test_every_field_is_documented() -> None:
    for model in typing.get_args(typing.get_args(EngineSettings)[0]):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000"),
        ("https://engine.example/v1", "https://engine.example"),
        ("https://engine.example/v1/", "https://engine.example"),
        ("https://engine.example/team/v1", "https://engine.example/team"),
        (" http://[::1]:8000 ", "http://[::1]:8000"),
        ("http://bücher.example:1/ä", "http://xn--bcher-kva.example:1/%C3%A4"),
    ],
)
def test_an_external_url_is_kept_without_tail(given: str, kept: str) -> None:
    assert ExternalSettings(kind="external", url=given).url == kept


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("10.0.0.1:8000", "must look like"),
        ("ftp://x", "must look like"),
        ("http://", "must look like"),
        ("http://me:secret@x", "key_file"),
        ("http://x?key=1", "must not have"),
        ("http://x:99999", "not a number up to 65535"),
        ("http://me:secret", "not a number up to 65535"),
        ("http://bücher_x.example:1", "a request can carry"),
        ("http://xn--zzzzzz99:1", "a request can carry"),
        ("http://a..example", "a request can carry"),
        (f"http://{'a' * 64}.example", "a request can carry"),
        ("http://x/\x01", "a request can carry"),
    ],
)
def test_a_bad_external_url_says_what_is_wrong(url: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says) as caught:
        ExternalSettings(kind="external", url=url)
    assert all("secret" not in fault["msg"] for fault in caught.value.errors())


@pytest.mark.parametrize(
    ("argv", "env", "says"),
    [
        ((), {}, "at least 1"),
        (("", "{port}"), {}, "empty"),
        (("x", "--port", "8000"), {}, "occurs neither"),
        (("x", "{port}", "{keyfile}"), {}, "unknown placeholder {keyfile}"),
        (("x", "{port}"), {"A-B": "1"}, "not a variable"),
    ],
)
def test_a_bad_command_says_what_is_wrong(argv: tuple[str, ...], env: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        command(*argv, env=env)


def test_placeholders_are_filled_in_and_other_braces_stay(tmp_path: Path) -> None:
    settings = command(
        "serve", "--port={port}", "--keys", "{key_file}", '{"a": 1}', env={"CACHE": "{state_dir}/c"}, grace_s=7
    )
    launch = CommandEngine(settings, state_dir=tmp_path).launch(4711, Path("/k/file"))
    assert launch.argv == ("serve", "--port=4711", "--keys", "/k/file", '{"a": 1}')
    assert launch.env == {"CACHE": f"{tmp_path}/c"}
    assert (launch.url, launch.key_file, launch.grace_s) == ("http://127.0.0.1:4711", Path("/k/file"), 7)


def test_without_the_placeholder_the_engine_has_no_key(tmp_path: Path) -> None:
    engine = CommandEngine(command("serve", "{port}"), state_dir=tmp_path)
    assert engine.launch(1, Path("/k")).key_file is None


def test_a_program_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    settings = command("no-such-server", "{port}", "{key_file}")
    engine = CommandEngine(settings, state_dir=tmp_path, which=lambda name: None)
    (found,) = engine.findings(FACTS)
    assert found.id == "engine.program"
    assert "no-such-server" in found.observed
    assert CommandEngine(command("sh", "{port}", "{key_file}"), state_dir=tmp_path).findings(FACTS) == ()


def test_an_engine_that_is_told_no_key_is_said_to_be_open_to_who_can_log_in(tmp_path: Path) -> None:
    (found,) = CommandEngine(command("sh", "{port}"), state_dir=tmp_path).findings(FACTS)
    assert (found.id, found.severity) == ("engine.no_key", Severity.WARN)
    assert "{key_file}" in found.observed
    in_env = CommandSettings(kind="command", command=("sh", "{port}"), env={"KEY_FILE": "{key_file}"})
    assert CommandEngine(in_env, state_dir=tmp_path).findings(FACTS) == ()


def test_paths_of_vllm_that_want_no_key_are_told_of(tmp_path: Path) -> None:
    words = ("sh", "{port}", "{key_file}")
    (found,) = CommandEngine(command(*words, env={"VLLM_SERVER_DEV_MODE": "1"}), state_dir=tmp_path).findings(FACTS)
    assert (found.id, found.severity) == ("engine.dev_mode", Severity.INFO)
    off = command(*words, env={"VLLM_SERVER_DEV_MODE": "0"})
    assert CommandEngine(off, state_dir=tmp_path).findings(FACTS) == ()


def test_profiles_come_from_the_settings(tmp_path: Path) -> None:
    made = CommandEngine(
        command("/opt/vllm", "{port}", served_model="m", floor_tok_per_s=30, streams=2), state_dir=tmp_path
    )
    assert (made.profile.name, made.profile.floor_tok_per_s, made.profile.streams) == ("m", 30, 2)
    assert made.profile.demo is False
    assert CommandEngine(command("/opt/vllm", "{port}"), state_dir=tmp_path).profile.name == "vllm"


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Loading safetensors checkpoint shards:  45% Completed | 9/20", Step("loading the weights", 0.45, LOAD_S)),
        (
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  50%|#####     | 1/2 [00:01",
            Step("capturing CUDA graphs", 0.5, LOAD_S),
        ),
        ("0.00.004.064 I srv    load_model: loading model '/m.gguf'", Step("loading the model", 0.25)),
        ("INFO: Application startup complete.", Step("listening")),
        ("GET /health 200", None),
    ],
)
def test_steps_are_read_from_the_log(tmp_path: Path, line: str, step: Step | None) -> None:
    assert CommandEngine(command("x", "{port}"), state_dir=tmp_path).phase_of(line) == step


def test_an_external_engine_is_not_spawned(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    engine = ExternalEngine(ExternalSettings(kind="external", url="http://x:1/", key_file=key))
    launch = engine.launch(1, Path("/other"))
    assert (launch.argv, launch.url, launch.key_file) == ((), "http://x:1", key)
    assert engine.supervised is False
    assert engine.findings(FACTS) == ()


def test_a_path_that_no_system_call_takes_is_refused() -> None:
    with pytest.raises(ValidationError, match="holds a NUL"):
        EmbeddedSettings(model_file=Path("a\0b"))
    with pytest.raises(ValidationError, match="holds a NUL"):
        external(key_file="a\0b")


@pytest.mark.parametrize("path", ["x", "//host:port", "/a\x01", "/a\n"])
def test_a_health_path_that_no_request_can_carry_is_refused(path: str) -> None:
    for made in (lambda: command("x", "{port}", health_path=path), lambda: external(health_path=path)):
        with pytest.raises(ValidationError, match="begins with one /"):
            made()
    assert external(health_path="/gesund/é?x=1").health_path == "/gesund/é?x=1"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b" \n", "empty"),
        (b"\xff", "not text"),
        (b"\xef\xbb\xbfkey\n", "byte order mark"),
        ("schlüssel".encode(), "plain ASCII"),
        (b"key\x00", "plain ASCII"),
        (b"one\ntwo", "plain ASCII"),
        (b"k" * 70_000, "longer than"),
    ],
)
def test_an_unreadable_key_is_a_finding(tmp_path: Path, content: bytes | None, says: str) -> None:
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content)
    (found,) = ExternalEngine(ExternalSettings(kind="external", url="http://x", key_file=key)).findings(FACTS)
    assert found.id == "engine.key_file"
    assert says in found.observed


def test_all_three_are_adapters(tmp_path: Path) -> None:
    engines: list[Adapter] = [
        EmbeddedEngine(EmbeddedSettings(), state_dir=tmp_path),
        CommandEngine(command("x", "{port}"), state_dir=tmp_path),
        ExternalEngine(ExternalSettings(kind="external", url="http://x")),
    ]
    assert [engine.kind for engine in engines] == ["embedded", "command", "external"]
