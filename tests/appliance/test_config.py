"""appliance.toml and the environment: every key works in both, and every mistake is named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from appliance.config import ENGINES, PREFIX, Config, Paths, listen_address, load, public_url
from appliance.engine.settings import ExternalSettings
from appliance.errors import ConfigError
from tests.appliance.every_key import ENGINE, TABLES, TOP

WITH = {
    "body_budget_bytes": {"body_max_bytes": 1024},
    "checkpoint": {"file": "/p.json"},
    "make": {"file": "/p.json", "checkpoint": "/c"},
}
NEEDED = {
    "embedded": (),
    "vllm": ("kind",),
    "command": ("kind", "command"),
    "external": ("kind", "url"),
}
TOGETHER = {"revision": ("model",), "placement": ("plan_args",), "plan_args": ("placement",)}


def toml(values: Mapping[str, Any]) -> str:
    """Values as lines of TOML."""
    lines = []
    for key, value in values.items():
        lines.append(f"{key} = {_value(value)}\n")
    return "".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_value(v)}" for k, v in value.items() if v is not None) + "}"
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, list) else json.dumps(value)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "appliance.toml"
    path.write_text(text)
    return path


def variables(table: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Values as environment variables."""
    start = PREFIX + (f"{table}__".upper() if table else "")
    return {start + k.upper(): v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}


def shown(config: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `keys` as JSON has them."""
    dumped = json.loads(config.model_dump_json())
    return {key: dumped[key] for key in keys}


def refusal(path: Path | None, environ: Mapping[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {})
    assert caught.value.remedy
    return caught.value


# Every key, both ways


def test_the_tables_above_leave_no_key_out() -> None:
    assert {*TOP, "engine", *TABLES} == set(Config.model_fields)
    for table, values in TABLES.items():
        assert values.keys() == Config.model_fields[table].annotation.model_fields.keys()  # type: ignore[union-attr]
    assert {kind: set(values) for kind, values in ENGINE.items()} == {
        k: set(m.model_fields) for k, m in ENGINES.items()
    }


def test_the_defaults_need_no_file() -> None:
    config, paths = load(None, {})
    assert config == Config()
    assert paths.seats_file == Path.cwd() / "state" / "seats.toml"
    assert all(path.is_absolute() for path in (paths.control_socket, paths.gateway_socket))


@pytest.mark.parametrize("key", TOP)
def test_keys_at_the_top(tmp_path: Path, key: str) -> None:
    one = {key: TOP[key]}
    from_file, _ = load(written(tmp_path, toml(one)), {})
    from_environment, _ = load(None, variables("", one))
    assert shown(from_file, one) == shown(from_environment, one) == one
    assert from_file != Config()


@pytest.mark.parametrize(("table", "key"), [(table, key) for table, keys in TABLES.items() for key in keys])
def test_keys_in_tables(tmp_path: Path, table: str, key: str) -> None:
    one = {key: TABLES[table][key]} | WITH.get(key, {})
    from_file, _ = load(written(tmp_path, f"[{table}]\n{toml(one)}"), {})
    from_environment, _ = load(None, variables(table, one))
    assert shown(getattr(from_file, table), one) == shown(getattr(from_environment, table), one) == one
    assert from_file == from_environment != Config()


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind, keys in ENGINE.items() for key in keys])
def test_keys_of_each_engine(tmp_path: Path, kind: str, key: str) -> None:
    some = {name: ENGINE[kind][name] for name in (*NEEDED[kind], *TOGETHER.get(key, ()), key)}
    from_file, _ = load(written(tmp_path, f"[engine]\n{toml(some)}"), {})
    from_environment, _ = load(None, variables("engine", some))
    assert type(from_file.engine) is ENGINES[kind]
    assert shown(from_file.engine, some) == shown(from_environment.engine, some) == some


def test_a_whole_table_in_one_variable() -> None:
    config, _ = load(None, {"MOE_APPLIANCE_ENGINE": '{"kind": "external", "url": "http://h:1"}'})
    assert isinstance(config.engine, ExternalSettings)


def test_the_environment_wins_key_by_key(tmp_path: Path) -> None:
    path = written(tmp_path, '[engine]\nkind = "external"\nurl = "http://a"\n[admission]\nstreams = 2\nqueue_max = 3\n')
    environ = {"MOE_APPLIANCE_ENGINE__URL": "http://b", "MOE_APPLIANCE_ADMISSION__STREAMS": "5"}
    config, _ = load(path, environ)
    assert isinstance(config.engine, ExternalSettings)
    assert (config.engine.url, config.admission.streams, config.admission.queue_max) == ("http://b", 5, 3)


def test_only_the_environment_that_was_given_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOE_APPLIANCE_LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("MOE_APPLIANCE_ADMISSION__STREAMS", "9")
    config, _ = load(written(tmp_path, ""), {})
    assert config == Config() == load(None, {"PATH": "/bin", "MOE_APPLIANCE_CONFIG": "x"})[0]


# Paths and addresses


def test_relative_paths_start_at_the_file(tmp_path: Path) -> None:
    text = 'state_dir = "st"\nseats_file = "my/seats.toml"\n[engine]\nmodel_file = "m.gguf"\n'
    config, paths = load(written(tmp_path, text), {})
    assert paths == Paths(
        state_dir=tmp_path / "st",
        runtime_dir=tmp_path / "st" / "run",
        seats_file=tmp_path / "my/seats.toml",
        admins_file=tmp_path / "st" / "admins.toml",
    )
    assert shown(config.engine, {"model_file": 0}) == {"model_file": str(tmp_path / "m.gguf")}


def test_an_engine_key_file_starts_at_the_file_too(tmp_path: Path) -> None:
    config, _ = load(written(tmp_path, '[engine]\nkind = "external"\nurl = "http://h"\nkey_file = "k"\n'), {})
    assert isinstance(config.engine, ExternalSettings)
    assert config.engine.key_file == tmp_path / "k"


@pytest.mark.parametrize(
    ("text", "environ", "runtime"),
    [
        ("", {}, "state/run"),
        ("", {"RUNTIME_DIRECTORY": "/run/moe-appliance"}, "/run/moe-appliance"),
        ("", {"RUNTIME_DIRECTORY": "/run/one:/run/two"}, "/run/one"),
        ("", {"RUNTIME_DIRECTORY": ""}, "state/run"),
        ('runtime_dir = "mine"', {"RUNTIME_DIRECTORY": "/run/moe-appliance"}, "mine"),
        ('runtime_dir = "mine"', {"MOE_APPLIANCE_RUNTIME_DIR": "/over"}, "/over"),
    ],
)
def test_where_sockets_are(tmp_path: Path, text: str, environ: dict[str, str], runtime: str) -> None:
    _, paths = load(written(tmp_path, text), environ)
    assert paths.runtime_dir == tmp_path / runtime
    assert paths.control_socket == tmp_path / runtime / "control.sock"


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:8000", ("::1", 8000)),
        ("[::]:65535", ("::", 65535)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_listen(listen: str, address: tuple[str, int]) -> None:
    config, _ = load(None, {"MOE_APPLIANCE_LISTEN": listen})
    assert listen_address(config) == address
    assert public_url(config) == f"http://{listen}"


@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("8000", "HOST:PORT"),
        (":8000", "HOST:PORT"),
        ("127.0.0.1", "HOST:PORT"),
        ("127.0.0.1:", "HOST:PORT"),
        ("127.0.0.1:http", "HOST:PORT"),
        ("127.0.0.1:65536", "HOST:PORT"),
        ("127.0.0.1:-1", "HOST:PORT"),
        ("127.0.0.1:0", "a port from 1 to 65535"),
        ("127.0.0.1:²", "HOST:PORT"),
        ("127.0.0.1:" + "9" * 5000, "HOST:PORT"),
        ("box.example:8000", "IP address or localhost"),
        ("::1:8000", "brackets"),
        ("[127.0.0.1]:8000", "brackets"),
        ("[localhost]:8000", "IP address or localhost"),
    ],
)
def test_a_bad_listen_says_the_form(tmp_path: Path, listen: str, said: str) -> None:
    path = written(tmp_path, f'\nlisten = "{listen}"\n')
    message = refusal(path).message
    assert message.startswith(f"{path}:2: listen must ")
    assert said in message
    assert said in refusal(None, {"MOE_APPLIANCE_LISTEN": listen}).message


def test_the_public_url_is_what_the_operator_says() -> None:
    assert public_url(load(None, {"MOE_APPLIANCE_PUBLIC_URL": "https://box.example/"})[0]) == "https://box.example"


def test_the_addresses_of_proxies_are_compared_as_connections_show_them() -> None:
    environ = {"MOE_APPLIANCE_TRUSTED_PROXIES": '["FE80:0::1", "10.0.0.1"]'}
    assert load(None, environ)[0].trusted_proxies == ("fe80::1", "10.0.0.1")


@pytest.mark.parametrize(
    ("text", "environ", "key"),
    [
        ('runtime_dir = "{long}"', {}, "runtime_dir:"),
        ('state_dir = "{long}"', {}, "runtime_dir (by default inside state_dir):"),
        ("", {"RUNTIME_DIRECTORY": "/run/{long}"}, "RUNTIME_DIRECTORY:"),
    ],
)
def test_a_folder_too_long_for_a_socket_is_refused(
    tmp_path: Path, text: str, environ: dict[str, str], key: str
) -> None:
    long = "r" * 95
    path = written(tmp_path, text.format(long=long))
    error = refusal(path, {name: value.format(long=long) for name, value in environ.items()})
    assert error.message.startswith(key)
    assert "at most 107" in error.message
    assert "runtime_dir = " in error.remedy


# Refusals

FILES: list[tuple[str, list[str]]] = [
    ("lisen = 'x'", ["1: lisen is not a known key; did you mean listen?"]),
    ("\n[gatway]\n", ["2: gatway is not a known key; did you mean gateway?"]),
    ("[admission]\nstreems = 1", ["2: admission.streems is not a known key; did you mean streams?"]),
    ("listen = 3", ["1: listen must be text in quotes, is 3"]),
    ("state_dir = 3", ["1: state_dir must be a path in quotes, is 3"]),
    ("trusted_proxies = 'x'", ["1: trusted_proxies must be a list in [ ], is text"]),
    ("admission = 3", ["1: admission must be a table, is 3"]),
    ("[admission]\nstreams = 'two'", ["2: admission.streams must be a whole number, is text"]),
    ("[admission]\nstreams = 2.5", ["2: admission.streams must be a whole number, is 2.5"]),
    ("[admission]\nstreams = 257", ["2: admission.streams must be at most 256, is 257"]),
    ("[gateway]\ndrain_s = nan", ["2: gateway.drain_s must be"]),
    ("[gateway]\ndrain_s = []", ["2: gateway.drain_s must be a number, is a list"]),
    ("[gateway]\nbody_max_bytes = 4096\nbody_budget_bytes = 2048", ["1: gateway body_max_bytes (4096) is above"]),
    ("[admission]\nstreams = '4'", ["2: admission.streams must be a whole number, is text"]),
    ("[admission]\nqueue_max = true", ["2: admission.queue_max must be a whole number, is true"]),
    ("[admission]\nqueue_max = 4.0", ["2: admission.queue_max must be a whole number, is 4.0"]),
    ("[gateway]\ndrain_s = '3'", ["2: gateway.drain_s must be a number, is text"]),
    ("[gateway]\ndrain_s = false", ["2: gateway.drain_s must be a number, is false"]),
    ("[engine]\nthreads = '2'", ["2: engine.threads must be a whole number, is text"]),
    ("[engine]\nkind='external'\nurl='http://x'\ncontext_tokens='9'", ["4: engine.context_tokens must be a whole"]),
    ("state_dir = ''", ["1: state_dir is empty"]),
    ("runtime_dir = ' '", ["1: runtime_dir is empty"]),
    ("[engine]\nmodel_file = ''", ["2: engine.model_file is empty"]),
    ("trusted_proxies = ['10.0.0.1', 'proxy.lan']", ["1: trusted_proxies[1] must be an IP address"]),
    ("trusted_proxies = ['10.0.0.0/8']", ["1: trusted_proxies[0] is a network; list the address of each"]),
    ("public_url = 'box.example'", ["1: public_url must be http:// or https://"]),
    ("public_url = 'https://box.example/moe'", ["1: public_url must be http:// or https://"]),
    ("public_url = 'https://box.example:99999'", ["1: public_url must be http:// or https://"]),
    ("public_url = 'https://me:pw@box.example'", ["1: public_url must be http:// or https://"]),
    ("[ledger]\nkeep_days = 13", ["2: ledger.keep_days 0, which is for ever, or at least 14"]),
    ("a = 1\nlisten = 2", ["1: a is not a known key", "2: listen must be"]),
    ("[engine", ["1: not valid TOML"]),
    ("[engine]\nkind = 'sglang'", ["2: engine.kind must be one of embedded, vllm, command, external"]),
    ("[engine]\nkind = 3", ["2: engine.kind must be one of"]),
    ("[engine]\nthread = 3", ['2: engine.thread is not a key of kind = "embedded"; did you mean threads?']),
    ("[engine]\nurl = 'x'", ['2: engine.url is a key of kind = "external", and kind is "embedded"']),
    ("[engine]\nkind='external'", ["1: engine.url is missing"]),
    (
        "[engine]\nkind='external'\nurl='http://x'\nthreads=1",
        ['4: engine.threads is a key of kind = "embedded", and kind is "external"'],
    ),
    (
        "[engine]\nkind = 'command'\ncommand = 'x'\nenv = 3",
        ["3: engine.command must be a list", "4: engine.env must be a table"],
    ),
    ("[engine]\nkind = 'command'\ncommand = ['x']", ["1: engine {port} occurs neither"]),
    ("engine = 3", ["1: engine "]),
]


@pytest.mark.parametrize(("text", "lines"), FILES)
def test_a_mistake_in_the_file_is_named_with_line_and_key(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = written(tmp_path, text)
    said = refusal(path).message.splitlines()
    assert len(said) == len(lines)
    for one, wanted in zip(said, lines, strict=True):
        assert one.startswith(f"{path}:{wanted}"), one


VARIABLES: list[tuple[dict[str, str], str]] = [
    ({"MOE_APPLIANCE_LISEN": "x"}, "MOE_APPLIANCE_LISEN is no setting; did you mean MOE_APPLIANCE_LISTEN?"),
    ({"MOE_APPLIANCE_ADMISSION__STREEMS": "1"}, "did you mean MOE_APPLIANCE_ADMISSION__STREAMS?"),
    ({"MOE_APPLIANCE_ADMISSION_STREAMS": "1"}, "did you mean MOE_APPLIANCE_ADMISSION__STREAMS?"),
    ({"MOE_APPLIANCE_ADMISSION__STREAMS": "two"}, "MOE_APPLIANCE_ADMISSION__STREAMS (admission.streams): "),
    ({"MOE_APPLIANCE_ADMISSION__STREAMS": "true"}, "MOE_APPLIANCE_ADMISSION__STREAMS (admission.streams): "),
    ({"MOE_APPLIANCE_STATE_DIR": ""}, "MOE_APPLIANCE_STATE_DIR (state_dir): is empty"),
    (
        {"MOE_APPLIANCE_TRUSTED_PROXIES": '["10.0.0.0/8"]'},
        "MOE_APPLIANCE_TRUSTED_PROXIES (trusted_proxies): is a network",
    ),
    ({"MOE_APPLIANCE_ADMISSION": '{"streems":1}'}, "MOE_APPLIANCE_ADMISSION (admission): "),
    ({"MOE_APPLIANCE_ADMISSION": "3"}, "MOE_APPLIANCE_ADMISSION (admission): "),
    ({"MOE_APPLIANCE_TRUSTED_PROXIES": "10.0.0.1"}, "MOE_APPLIANCE_TRUSTED_PROXIES cannot be read"),
    ({"MOE_APPLIANCE_ENGINE__KIND": "sglang"}, "MOE_APPLIANCE_ENGINE__KIND (engine.kind): must be one of"),
    ({"MOE_APPLIANCE_ENGINE__URL": "http://x"}, "MOE_APPLIANCE_ENGINE__URL (engine.url): is a key of kind"),
    ({"MOE_APPLIANCE_ENGINE__KIND": "external"}, "of that table, MOE_APPLIANCE_ENGINE__KIND came from the environment"),
    (
        {"MOE_APPLIANCE_ENGINE__KIND": "command", "MOE_APPLIANCE_ENGINE__COMMAND": '["x"]'},
        "MOE_APPLIANCE_ENGINE__KIND, MOE_APPLIANCE_ENGINE__COMMAND came from the environment",
    ),
    ({"MOE_APPLIANCE_GATEWAY__BODY_BUDGET_BYTES": "2048"}, "MOE_APPLIANCE_GATEWAY__BODY_BUDGET_BYTES came from"),
]


@pytest.mark.parametrize(("environ", "said"), VARIABLES)
def test_a_mistake_in_the_environment_names_the_variable(environ: dict[str, str], said: str) -> None:
    assert said in refusal(None, environ).message


@pytest.mark.parametrize(
    "values",
    [
        {"url": "http://me:hunter2@h"},
        {"url": "http://h?key=hunter2"},
        {"url": "hunter2"},
        {"url": "http://h", "key": "hunter2"},
        {"url": "http://h", "key_file": ["hunter2"]},
        {"url": "http://h", "streams": "hunter2"},
    ],
)
def test_no_value_is_repeated_that_may_be_a_secret(tmp_path: Path, values: dict[str, Any]) -> None:
    error = refusal(written(tmp_path, "[engine]\nkind = 'external'\n" + toml(values)))
    assert "hunter2" not in error.message + error.remedy
    if "key" not in values and not isinstance(values.get("key_file"), list):
        whole = {"MOE_APPLIANCE_ENGINE": json.dumps({"kind": "external", **values})}
        for environ in (whole, variables("engine", {"kind": "external", **values})):
            error = refusal(None, environ)
            assert "hunter2" not in error.message + error.remedy


def test_a_command_keeps_its_arguments() -> None:
    assert load(None, variables("engine", ENGINE["command"]))[0].engine.model_dump()["command"] == ("x", "{port}")
