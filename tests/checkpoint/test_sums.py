"""Sums in the form of sha256sum, and names that may become files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.checkpoint.sums import distinct, etag_sum, format_sums, is_ours, parse_sums, safe_name
from appliance.errors import CheckpointError

A, B = "a" * 64, "b" * 64


def test_what_is_written_is_what_sha256sum_checks(tmp_path: Path) -> None:
    names = ["model.safetensors", "with space.json", "sub/ümlaut.jinja"]
    (tmp_path / "sub").mkdir()
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    sums = subprocess.run(["sha256sum", "--", *names], cwd=tmp_path, capture_output=True, check=True, text=True).stdout

    (tmp_path / "SHA256SUMS").write_text(format_sums(parse_sums(sums, "it")))

    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(
            lambda name: not name.startswith("./") and "\\" not in name
        ),
        st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    )
)
def test_sums_survive_writing_and_reading(sums: dict[str, str]) -> None:
    assert parse_sums(format_sums(sums), "it") == sums


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (f"{A}  x.bin", "x.bin"),
        (f"{A} *x.bin", "x.bin"),
        (f"{A}  ./x.bin", "x.bin"),
        (f"{A.upper()}  x.bin", "x.bin"),
        (f"{A}  x.bin\r", "x.bin"),
        (f"\\{A}  a\\nb\\\\c", "a\nb\\c"),
    ],
)
def test_every_form_that_sha256sum_writes_is_read(line: str, name: str) -> None:
    assert parse_sums(f"\n{line}\n\n", "it") == {name: A}


@pytest.mark.parametrize(
    "line", ["<!DOCTYPE html>", f"{A[1:]}  x", f"{A} x", f"{A}  ", "SHA256 (x) = 0", f"{A}  x\n{B}  x"]
)
def test_a_line_that_is_no_sum_is_named_by_its_number(line: str) -> None:
    with pytest.raises(CheckpointError, match=r"SUMS of h, line [23]"):
        parse_sums(f"{B}  first\n{line}\n", "SUMS of h")


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/../../x",
        "a//b",
        "",
        ".",
        "a/.",
        "..",
        "a\\b",
        "a\nb",
        "a\x1b[31m",
        "a\u0085",
        "\udc80",
        "x" * 250,
        "SHA256SUMS",
        "sub/SHA256SUMS",
        ".moe-appliance-origin.json",
        ".moe-appliance.lock",
        "x.part",
        "x.part.json",
        "x.bad",
    ],
)
def test_a_name_that_leaves_the_folder_or_is_ours_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        safe_name(name, "the index")

    assert "the index names a file" in refused.value.message
    assert refused.value.message.isprintable()


@settings(deadline=None)
@given(st.text(st.sampled_from("ab./\\\n-~ \u00e4")) | st.text())
def test_a_name_that_passes_stays_inside(name: str) -> None:
    if _passes(name):
        assert Path("/f", name).resolve().is_relative_to("/f")
        assert Path("/f", name).resolve() != Path("/f")
        assert not is_ours(name)


def _passes(name: str) -> bool:
    try:
        return safe_name(name, "it") == name
    except CheckpointError:
        return False


@pytest.mark.parametrize(
    ("etag", "found"),
    [(f'"{A}"', A), (f'"{A.upper()}"', A), (f'W/"{A}"', None), ('"abc"', None), (None, None), ("", None)],
)
def test_only_a_strong_etag_of_64_hex_digits_is_a_sum(etag: str | None, found: str | None) -> None:
    assert etag_sum(etag) == found


@pytest.mark.parametrize(
    "names", [("a", "A"), ("stra\u00dfe", "STRASSE"), ("\u00e9", "e\u0301"), ("a", "a/b"), ("A/x", "a/y"), ("a/b", "A")]
)
def test_names_that_may_be_one_file_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(CheckpointError, match="the index names"):
        distinct(names, "the index")


def test_names_that_stay_apart_are_not_refused() -> None:
    distinct(("a", "b", "c/a", "c/b", "c/d/a", "ab", "a.b"), "the index")
