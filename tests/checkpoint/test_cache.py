"""Headers that are kept: what is found again, what counts as absent, where they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.checkpoint.cache import HeaderCache, Kept, cache_folder

PLACE = "http://127.0.0.1/org/name/model.safetensors"
KEPT = Kept('"etag"', 99, b'{"a":{}}')


def test_what_is_kept_is_found_again_by_another_process(tmp_path: Path) -> None:
    HeaderCache(tmp_path / "headers").keep(PLACE, KEPT)

    assert HeaderCache(tmp_path / "headers").find(PLACE) == KEPT
    assert HeaderCache(tmp_path / "headers").find(PLACE + "2") is None


def test_the_same_header_in_two_places_is_one_file(tmp_path: Path) -> None:
    cache = HeaderCache(tmp_path)
    cache.keep(PLACE, KEPT)
    cache.keep(PLACE + "2", Kept('"other"', 98, KEPT.data))

    assert len(list(tmp_path.glob("*.header"))) == 1
    assert cache.find(PLACE) == KEPT


def test_a_new_header_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    cache = HeaderCache(tmp_path)
    cache.keep(PLACE, KEPT)
    cache.keep(PLACE, Kept('"new"', 1, b"{}"))

    assert cache.find(PLACE) == Kept('"new"', 1, b"{}")


@pytest.mark.parametrize("ending", ["header", "where"])
@pytest.mark.parametrize("damage", [b"", b"{}", b'{"a":{}} ', b"\xff", b"[]", b'{"header": 7}'])
def test_a_damaged_file_counts_as_absent_and_is_written_anew(tmp_path: Path, ending: str, damage: bytes) -> None:
    cache = HeaderCache(tmp_path)
    cache.keep(PLACE, KEPT)
    next(tmp_path.glob(f"*.{ending}")).write_bytes(damage)

    assert cache.find(PLACE) is None
    cache.keep(PLACE, KEPT)
    assert cache.find(PLACE) == KEPT


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    HeaderCache(tmp_path / "a" / "headers").keep(PLACE, KEPT)

    assert (tmp_path / "a" / "headers").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "headers").iterdir()} == {0o600}


def test_a_folder_that_others_may_write_to_keeps_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    cache = HeaderCache(tmp_path)
    cache.keep(PLACE, KEPT)

    assert cache.find(PLACE) is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "headers", tmp_path / "file", None):
        cache = HeaderCache(folder)
        cache.keep(PLACE, KEPT)
        assert cache.find(PLACE) is None


def test_a_folder_that_vanishes_is_no_error(tmp_path: Path) -> None:
    cache = HeaderCache(tmp_path / "headers")
    os.rmdir(tmp_path / "headers")
    cache.keep(PLACE, KEPT)
    assert cache.find(PLACE) is None


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"CACHE_DIRECTORY": "/var/cache/moe:/other", "HOME": "/root"}, "/var/cache/moe/headers"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/root"}, "/x/moe-appliance/headers"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/root"}, "/root/.cache/moe-appliance/headers"),
        ({"HOME": "/root"}, "/root/.cache/moe-appliance/headers"),
        ({}, None),
    ],
)
def test_the_folder_follows_the_environment(environ: dict[str, str], folder: str | None) -> None:
    assert cache_folder(environ) == (None if folder is None else Path(folder))
