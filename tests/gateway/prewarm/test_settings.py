"""gateway/prewarm/settings.py by way of appliance.toml: every mistake is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config import load
from appliance.errors import ConfigError
from gateway.prewarm.settings import PrefixSettings
from gateway.settings import GatewaySettings


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "appliance.toml"
    path.write_text(text)
    return path


def said(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text), {})
    return caught.value.message.replace(str(tmp_path), "")


def test_prefixes_come_in_the_order_of_the_file_and_their_files_start_at_it(tmp_path: Path) -> None:
    text = (
        '[[prefix]]\nname = "docs"\nfile = "p/docs.json"\npath = "/v1/messages"\n[[prefix]]\nname = "b"\nseat = "ana"\n'
    )
    config, _ = load(written(tmp_path, text), {})
    assert config.prefix == (
        PrefixSettings(name="docs", file=tmp_path / "p/docs.json", path="/v1/messages"),
        PrefixSettings(name="b", seat="ana"),
    )


def test_an_absolute_file_stays_as_it_is(tmp_path: Path) -> None:
    config, _ = load(written(tmp_path, '[[prefix]]\nname = "docs"\nfile = "/d.json"\n'), {})
    assert config.prefix[0].file == Path("/d.json")


def test_they_may_come_from_the_environment() -> None:
    config, _ = load(None, {"MOE_APPLIANCE_PREFIX": '[{"name": "b", "seat": "ana"}]'})
    assert config.prefix == (PrefixSettings(name="b", seat="ana"),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[prefix]]\nname = "a"\n', "/appliance.toml:1: prefix[0] needs one of file and seat"),
        (
            '[[prefix]]\nname = "a"\nfile = "f"\nseat = "s"\n',
            "/appliance.toml:1: prefix[0] needs one of file and seat, and has both",
        ),
        ('[[prefix]]\nfile = "f"\n', "/appliance.toml:1: prefix[0].name is missing"),
        (
            '[[prefix]]\nname = "a b"\nfile = "f"\n',
            "/appliance.toml:2: prefix[0].name must be 1 to 64 of letters, digits, `.`, `_` and `-`, a letter or digit",
        ),
        ('[[prefix]]\nname = "a"\nfile = ""\n', "/appliance.toml:1: prefix[0] file is empty"),
        (
            '[[prefix]]\nname = "a"\nfile = "f"\npath = "/v1/embeddings"\n',
            "/appliance.toml:4: prefix[0].path must be '/v1/chat/completions'",
        ),
        (
            '[[prefix]]\nname = "a"\nseat = "s"\npath = "/v1/messages"\n',
            "/appliance.toml:1: prefix[0] path goes with file",
        ),
        (
            '[[prefix]]\nname = "a"\nseat = "s"\n[[prefix]]\nname = "a"\nfile = "f"\n',
            "/appliance.toml:1: prefix has two of the name a",
        ),
        ('[[prefix]]\nname = "a"\nseat = "s"\nfiles = "f"\n', "/appliance.toml:4: prefix[0].files is not a known key"),
        ('[prefix]\nname = "a"\n', "/appliance.toml:1: prefix must be a list in [ ]"),
        ("[prewarm]\nbodies_bytes = -1\n", "/appliance.toml:2: prewarm.bodies_bytes must be at least 0"),
        ('[prewarm]\nenabled = "yes"\n', "/appliance.toml:2: prewarm.enabled must be true or false"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in said(tmp_path, text)


def test_the_gateway_gets_them_as_they_are() -> None:
    prefixes = (PrefixSettings(name="docs", file=Path("/d.json")), PrefixSettings(name="b", seat="ana"))
    settings = GatewaySettings(seats_file=Path("/s"), state_dir=Path("/"), prefixes=prefixes)
    assert GatewaySettings.of_daemon(settings.model_dump_json().encode()) == settings
