"""Which files of a folder are the checkpoint."""

from __future__ import annotations

import pytest

from appliance.checkpoint.layout import Layout, alone_note, layout_of, model_of, parts_of, strays
from appliance.errors import CheckpointError

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        ([INDEX, "other.safetensors.index.json", "a.safetensors"], Layout(index=INDEX)),
        (["my.safetensors.index.json", "a.safetensors"], Layout(index="my.safetensors.index.json")),
        (["model.safetensors", "model.fp16.safetensors"], Layout(shards=("model.safetensors",))),
        (["b.safetensors", "a.safetensors", "sub/c.safetensors"], Layout(shards=("a.safetensors", "b.safetensors"))),
        (["a.safetensors", "m.gguf"], Layout(shards=("a.safetensors",))),
        (["m.gguf", "readme.md"], Layout(gguf=("m.gguf",))),
        (["m-00002-of-00002.gguf"], Layout(gguf=("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"))),
    ],
)
def test_names_say_what_to_read(names: list[str], layout: Layout) -> None:
    assert layout_of("here", names) == layout


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "no .safetensors and no .gguf file"),
        (["sub/model.safetensors", "pytorch_model.bin"], "no .safetensors and no .gguf file"),
        (["a.safetensors.index.json", "b.safetensors.index.json"], "2 indexes"),
        (["a.gguf", "b.gguf"], "2 GGUF models"),
    ],
)
def test_none_or_more_than_one_is_told(names: list[str], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        layout_of("here", names)


def test_a_split_has_all_its_parts() -> None:
    assert parts_of("m-00002-of-00003.gguf") == tuple(f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3))
    assert parts_of("m.gguf") == ("m.gguf",)
    assert parts_of("m-00001-of-99999.gguf") == ("m-00001-of-99999.gguf",)
    assert model_of("m-00002-of-00003.safetensors") == "m.safetensors"


def test_lines_about_what_is_left_out() -> None:
    assert alone_note("m.safetensors") is None
    assert "one of 3 files" in (alone_note("m-00002-of-00003.safetensors") or "")
    assert list(strays(["a.safetensors", "x.json", "s/c.safetensors"], ["a.safetensors"])) == []
    assert list(strays(["a.safetensors", "b.safetensors", "c.safetensors"], ["a.safetensors"])) == [
        "b.safetensors and 1 more: not in the index, not counted"
    ]
