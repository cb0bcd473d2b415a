"""gateway.agents: what is merged into the settings files of agents, and what stays in them."""

from __future__ import annotations

import difflib
import io
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from appliance.errors import MoeError
from gateway.agents.edit import CODECS, as_text, edit
from gateway.agents.merge import leaves, merge
from gateway.agents.programs import AGENTS
from gateway.agents.settings import Format, Place, Target

BOX = Target("http://box.example:8080", "deep/model-1", 131_072, "ana")
FILES = {name: agent.settings(BOX).file for name, agent in AGENTS.items() if agent.settings(BOX).file is not None}

CODEX = """\
# my codex
model = "gpt-9"   # the big one
approval_policy = "on-request"

# where I work
[projects."/home/ana/x"]
trust_level = "trusted" # yes

# what is on
[features]
web_search = true

# tools
[mcp_servers.files]
command = "files"
args = [
    "# no comment",
    "--all",
]
[model_providers.other]   # another one
base_url = "https://other.example/v1"
# the end
"""
CONTINUE = """\
# Ana's assistant
name: "Ana's"   # quoted
version: 0.0.1
schema: v1

# my models
models:
    - name: local   # first
      provider: ollama
      model: small
      roles: [chat, edit]
      prompt: |
          # no comment
          text

    # the second one
    - {name: other, provider: openai, model: big}

# how to behave
rules:
- be brief
# the end
"""
AIDER = """\
# aider
model: gpt-9  # default
dark-mode: true

# lists
read:
  - CONVENTIONS.md
"""
CLAUDE = """\
{
    "permissions": {"allow": ["Bash(ls:*)"], "defaultMode": "plan"},
    "env": {"FOO": "ü", "DISABLE_TELEMETRY": "0"},
    "model": "opus"
}
"""
OPENCODE = """\
{
\t"$schema": "https://opencode.ai/config.json",
\t"theme": "dark",
\t"enabled_providers": ["mine"],
\t"provider": {"mine": {"options": {"baseURL": "https://mine.example"}}, "moe": {"options": {"timeout": 5}}}
}
"""
QWEN = """\
{"modelProviders": {"openai": [{"id": "a", "envKey": "A"}, {"id": "deep/model-1", "envKey": "OLD", "x": 1}]}, "ui": {}}
"""
PI = '{"providers": {"ollama": {"models": [{"id": "a"}]}}}'
BEFORE = {
    "codex": CODEX,
    "continue": CONTINUE,
    "aider": AIDER,
    "claude-code": CLAUDE,
    "opencode": OPENCODE,
    "qwen": QWEN,
    "pi": PI,
}


def parsed(kind: Format, text: str) -> Any:
    """By another way than the code under test where there is one."""
    match kind:
        case Format.JSON:
            return json.loads(text)
        case Format.TOML:
            return tomllib.loads(text)
        case Format.YAML:
            return YAML(typ="safe", pure=True).load(text)


def write(name: str, before: str) -> str:
    file = FILES[name]
    assert file is not None
    return edit("F", before.encode(), file.format, file.values, file.kept, "by hand").raw.decode()


def missing(before: str, after: str) -> list[str]:
    """The lines of a text that are not in another, in this order."""
    return [line[2:] for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line.startswith("- ")]


def tried(kind: Format, before: str, values: Mapping[str, Any], kept: Any) -> str | None:
    """The text after a merge, None when it was refused in the ordinary way."""
    try:
        return edit("F", before.encode(), kind, values, kept, "by hand").raw.decode()
    except MoeError as error:
        if "nothing was changed" not in error.message:
            raise
        return None


@pytest.mark.parametrize("name", FILES)
def test_a_new_file_holds_the_settings_and_nothing_else(name: str) -> None:
    file = FILES[name]
    assert file is not None
    assert parsed(file.format, write(name, "")) == file.values
    assert write(name, "") == as_text(file.format, file.values)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_second_merge_changes_no_byte(name: str, newline: str) -> None:
    for before in ("", BEFORE[name]):
        once = write(name, before.replace("\n", newline))
        assert write(name, once) == once
        assert newline not in before.replace("\n", newline) or once.count("\n") == once.count(newline)


@pytest.mark.parametrize("name", FILES)
def test_what_else_is_in_a_file_stays(name: str) -> None:
    file = FILES[name]
    assert file is not None
    before = parsed(file.format, BEFORE[name])
    after = parsed(file.format, write(name, BEFORE[name]))
    wanted, changes = merge(before, file.values, file.kept)
    assert after == wanted
    changed = {path for change in changes for path, _ in leaves(change.path, change.new)}
    assert {k: v for k, v in leaves((), before) if k not in changed and not isinstance(v, list)}.items() <= dict(
        leaves((), after)
    ).items()


def test_toml_keeps_every_line_but_those_that_change_and_comments_stay_where_they_are() -> None:
    after = write("codex", CODEX)
    assert missing(CODEX, after) == ['model = "gpt-9"   # the big one']
    assert 'model = "deep/model-1"   # the big one\n' in after
    assert "web_search = true\nplugins = false\n\n# tools\n" in after
    assert 'approval_policy = "on-request"\nmodel_provider = "moe"\n' in after
    assert "check_for_update_on_startup = false\n\n# where I work\n" in after
    assert "[model_providers.moe]\n" in after


@pytest.mark.parametrize(
    "before",
    [
        "# comments alone\n# two",
        "# of the first table\n[features]\nx = 1\n",
        'features = {x = 1}\nmodel_providers = {other = {name = "a"}}\n',
        'features.x = 1\nmodel_providers.other.name = "a"\n',
        'model_providers.moe.name = "a"\n[analytics]\n',
        '[model_providers]\n[model_providers.moe]\nname = "a"\n',
        "[model_providers.a]\nx=1\n[other]\ny=1\n[model_providers.b]\nz=1",
        '[model_providers]\nmoe = {name = "a"} # c\n',
        "[[hooks]]\na = 1\n[[hooks]]\na = 2\n",
        'notes = """\n# no comment\n[no.table]\n"""\n',
    ],
)
def test_toml_in_other_forms_is_edited_or_refused_but_never_broken(before: str) -> None:
    file = FILES["codex"]
    assert file is not None
    after = tried(file.format, before, file.values, file.kept)
    if after is None:
        return
    assert tomllib.loads(after) == merge(tomllib.loads(before), file.values, {})[0]
    assert [line for line in before.splitlines() if line.startswith("#") and line not in after] == []


def test_yaml_changes_the_lines_that_differ_alone() -> None:
    after = write("continue", CONTINUE)
    assert missing(CONTINUE, after) == []
    added = "    - name: moe\n      provider: openai\n      model: deep/model-1\n"
    assert "    - {name: other, provider: openai, model: big}\n" + added in after
    assert "\n\n# how to behave\n" in after
    changed = write("aider", AIDER)
    assert missing(AIDER, changed) == ["model: gpt-9  # default"]
    assert "model: openai/deep/model-1  # default\n" in changed


@pytest.mark.parametrize(
    "before",
    [
        "# nothing but a comment",
        "---\nname: x\n",
        "models:\nname: x\n",
        "models: []\n",
        "models:   # none yet\n",
        "models:\n- name: moe\n  roles: [edit]   # c\n- name: z\n",
        "models:\n- name: moe\n  roles:\n  - edit\n  # after\n",
        "models:\n  - name: moe\n    model: >\n      folded\n      text\n\nrules: []\n",
        "{models: [], name: x}\n",
        "base: &b {provider: x}\nmodels:\n  - <<: *b\n    name: moe\n",
        "models:\n  - name: moe\n    apiBase: 'quoted'\n    apiKey:\n",
        "rules:\n  - a\n...\n",
    ],
)
def test_yaml_in_other_forms_is_edited_or_refused_but_never_broken(before: str) -> None:
    file = FILES["continue"]
    assert file is not None
    after = tried(file.format, before, file.values, file.kept)
    if after is None:
        return
    old = parsed(Format.YAML, before) or {}
    assert parsed(Format.YAML, after) == merge(old, file.values, file.kept)[0]
    assert [comment for comment in re.findall("#.*", before) if comment not in after] == []
    assert write("continue", after) == after


def test_yaml_fills_a_key_without_a_value() -> None:
    after = write("continue", "models:\n  - name: moe\n    apiKey:  # mine\n# end\n")
    assert "    apiKey: ${{ secrets.MOE_API_KEY }}  # mine\n" in after
    assert after.count("# end\n") == 1


@pytest.mark.parametrize(
    "empty", ["models: []   # none", "models:   # none", "models: null  # none", "models: ~ # none", "models:\n# none"]
)
def test_yaml_takes_the_model_where_there_was_none(empty: str) -> None:
    before = f"name: Local Assistant\nversion: 1.0.0\nschema: v1\n{empty}\nrules: []\n"
    after = write("continue", before)
    assert "models:" in after
    assert "# none" in after
    assert "\n  - name: moe\n    provider: openai\n" in after
    assert missing("rules: []", after) == []


def test_json_keeps_order_and_indentation_and_merges_lists() -> None:
    after = write("opencode", OPENCODE)
    assert list(json.loads(after)) == [*json.loads(OPENCODE), "autoupdate", "share", "model", "small_model"]
    assert after.startswith('{\n\t"$schema"')
    assert json.loads(after)["enabled_providers"] == ["mine", "moe"]
    assert json.loads(after)["provider"]["moe"]["options"]["timeout"] == 5
    models = json.loads(write("qwen", QWEN))["modelProviders"]["openai"]
    assert [model["id"] for model in models] == ["a", "deep/model-1"]
    assert (models[1]["envKey"], models[1]["x"]) == ("MOE_API_KEY", 1)
    assert "ü" in write("claude-code", CLAUDE)


@pytest.mark.parametrize(
    ("mode", "after"), [("auto", "default"), ("plan", "plan"), ("acceptEdits", "acceptEdits"), (None, "default")]
)
def test_a_permission_mode_that_works_stays(mode: str | None, after: str) -> None:
    before = {} if mode is None else {"permissions": {"defaultMode": mode}}
    assert json.loads(write("claude-code", json.dumps(before)))["permissions"]["defaultMode"] == after


@pytest.mark.parametrize(
    ("name", "before", "said"),
    [
        ("opencode", '{\n  "a": 1, // why\n  "b": 2\n}\n', "F:2: has comments, which would be lost"),
        ("opencode", "/* mine */ {}", "F:1: has comments"),
        ("opencode", '{"a": 1,\n}', "F:2: not valid JSON"),
        ("opencode", '{"a": 1, "a": 2}', "the key 'a' is there twice"),
        ("opencode", '{"a": NaN}', "not valid JSON: NaN"),
        ("opencode", "[]", "F: is not a table of settings"),
        ("opencode", '{"provider": []}', "F: provider is not a table"),
        ("opencode", '{"enabled_providers": "x"}', "F: enabled_providers is not a list"),
        ("opencode", '{"model": {}}', "F: model is not a single value"),
        ("opencode", "[" * 100_000, "nests"),
        ("codex", 'model = "a"\nmodel = "b"\n', "F:2: not valid TOML"),
        ("codex", "a = 1\nb = ", "F:2: not valid TOML"),
        ("codex", "features = 3\n", "F: features is not a table"),
        ("continue", "a: 1\nb: [\n", "F:3: not valid YAML"),
        ("continue", "a: 1\na: 2\n", "F:2: not valid YAML"),
        ("continue", "a: 1\n---\nb: 2\n", "not valid YAML"),
        ("continue", "a: !!python/object:os.system x\n", "not valid YAML"),
        ("aider", "- a\n", "F: is not a table of settings"),
    ],
)
def test_a_file_that_cannot_be_merged_into_is_refused_with_its_line(name: str, before: str, said: str) -> None:
    with pytest.raises(MoeError) as caught:
        write(name, before)
    assert said in caught.value.message
    assert "nothing was changed" in caught.value.message
    assert "by hand" in caught.value.remedy


def test_a_file_that_is_no_text_is_refused() -> None:
    file = FILES["codex"]
    assert file is not None
    with pytest.raises(MoeError, match="F:2: is not UTF-8"):
        edit("F", b"a = 1\nb = '\xff'\n", file.format, file.values, {}, "by hand")


def test_a_byte_order_mark_stays() -> None:
    assert write("pi", "\ufeff" + PI).startswith("\ufeff{")


def test_an_error_never_repeats_a_value() -> None:
    for name, before in (
        ("codex", 'key = "sk-secret" x'),
        ("continue", 'k: "sk-secret" x'),
        ("pi", '{"k": "sk-secret" x}'),
    ):
        with pytest.raises(MoeError) as caught:
            write(name, before)
        assert "sk-secret" not in str(caught.value)


def test_where_the_files_are() -> None:
    home = Place("CODEX_HOME", ".codex", "config.toml")
    assert str(home.path({}, "/home/ana")) == "/home/ana/.codex/config.toml"
    assert str(home.path({"CODEX_HOME": "/x"}, "/home/ana")) == "/x/config.toml"
    assert str(home.path({"CODEX_HOME": "~/x"}, "/home/ana")) == "/home/ana/x/config.toml"
    assert home.shown == "~/.codex/config.toml"
    assert Place(None, "", ".aider.conf.yml").shown == "~/.aider.conf.yml"


NAMES = st.sampled_from(["model", "models", "features", "a", "b c", "é", "id", "name"])
SCALARS = st.one_of(st.booleans(), st.integers(-9, 9), st.sampled_from(["", "x", "# y", "true", "1", "a: b", "ü'\""]))
TABLES = st.recursive(
    st.dictionaries(NAMES, SCALARS, max_size=3),
    lambda inner: st.dictionaries(NAMES, st.one_of(SCALARS, inner, st.lists(SCALARS, max_size=2)), max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", Format)
@given(old=TABLES, wanted=TABLES)
def test_what_is_written_reads_as_the_merge_and_the_second_time_nothing_changes(
    kind: Format, old: dict[str, Any], wanted: dict[str, Any]
) -> None:
    before = dumped(kind, old)
    text = tried(kind, before, wanted, {})
    if text is None:
        return
    after = parsed(kind, text) or {}
    assert after == merge(old, wanted, {})[0]
    assert merge(after, wanted, {})[1] == ()
    assert tried(kind, text, wanted, {}) == text


def dumped(kind: Format, values: dict[str, Any]) -> str:
    match kind:
        case Format.JSON:
            return json.dumps(values)
        case Format.TOML:
            import tomlkit

            return tomlkit.dumps(values)
        case Format.YAML:
            out = io.StringIO()
            YAML().dump(values, out)
            return out.getvalue()


def test_every_format_has_a_codec() -> None:
    assert set(CODECS) == set(Format)
