"""Which configuration file is read, and what is said of one that cannot be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.config import find_config
from appliance.errors import ConfigError
from tests.appliance.test_config import refusal, written


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(None, {}) is None
    local = written(tmp_path, "")
    assert find_config(None, {}) == Path("appliance.toml")
    assert find_config(local, {"MOE_APPLIANCE_CONFIG": "/other"}) == local
    with pytest.raises(ConfigError, match="no configuration file /other"):
        find_config(None, {"MOE_APPLIANCE_CONFIG": "/other"})
    assert "cannot be read" in refusal(tmp_path).message


def test_a_folder_that_may_not_be_looked_into_is_said_and_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)  # as root, no folder is closed
    with pytest.raises(ConfigError, match="may not look into /etc/moe-appliance") as caught:
        find_config(Path("/etc/moe-appliance/appliance.toml"), {})
    assert "sudo" in caught.value.remedy
