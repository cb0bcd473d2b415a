"""The packs themselves: they are what was published, and cheap."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import pytest

from tests.checkpoint.packs import deepseek_v41
from tests.checkpoint.packs.fixtures import PACKS, PackFolder, checkpoint
from tests.checkpoint.packs.writer import INDEX, Spec, header, write

PUBLISHED = {
    "released": (96_085, 510_286_023_000),
    "exl3-routed-only": (188_245, 426_035_747_160),
    "qwen3-moe": (18_867, 61_064_245_248),
    "mixtral": (995, 93_405_585_408),
    "gpt-oss": (687, 65_248_815_744),
    "deepseek-v2": (29_102, 471_482_869_760),
}
"""Name -> tensors and bytes as the published index has them; of the EXL3 pack only the number is published."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_pack_has_as_many_tensors_and_bytes_as_the_published_checkpoint(name: str) -> None:
    made = checkpoint(name)

    assert (made.tensor_count, made.total_bytes) == PUBLISHED[name]


def test_the_released_checkpoint_has_48_shards_and_the_engram_tables_are_in_the_last_two() -> None:
    shards, _ = deepseek_v41.released()

    tables = {name for name, specs in shards.items() for spec in specs if ".engram.embed." in spec.name}
    assert len(shards) == 48
    assert tables == {"model-00047-of-00048.safetensors", "model-00048-of-00048.safetensors"}
    assert all(specs for specs in shards.values())


@pytest.mark.parametrize("k", [2, 3, 4])
def test_one_expert_in_exl3_takes_what_the_formula_says(k: int) -> None:
    specs = deepseek_v41.experts("layers.0", 1, deepseek_v41.exl3(k))

    matrices = ((2304, 5120), (5120, 2304), (2304, 5120))
    assert sum(spec.nbytes for spec in specs) == sum(o * i * k // 8 + 2 * (o + i) + 4 for o, i in matrices)


def test_the_stand_in_for_the_studys_pack_has_its_size() -> None:
    made = checkpoint("study")

    assert made.total_bytes == 332_070_852_762
    assert made.total_bytes / 2**30 == pytest.approx(309.3, abs=0.1)


@pytest.mark.parametrize("name", PACKS)
def test_a_pack_is_written_in_seconds_and_takes_little_of_the_disk(name: str, pack_folder: PackFolder) -> None:
    started = time.monotonic()
    folder = pack_folder(name)
    took_s = time.monotonic() - started

    files = list(folder.iterdir())
    apparent, real = (sum(call(file) for file in files) for call in (_apparent, _real))
    assert took_s < 5
    assert apparent > checkpoint(name).total_bytes
    assert real < 100e6


def _apparent(file: Path) -> int:
    return file.stat().st_size


def _real(file: Path) -> int:
    return file.stat().st_blocks * 512


def test_a_written_shard_begins_with_the_length_of_its_header_and_ends_with_its_data(tmp_path: Path) -> None:
    specs = [Spec("a", "BF16", (3, 5)), Spec("b", "F8_E8M0", (7,)), Spec("c", "I32", ())]

    write(tmp_path, {"x.safetensors": specs}, {"model_type": "none"})

    raw = (tmp_path / "x.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    entries = json.loads(raw[8 : 8 + length])
    index = json.loads((tmp_path / INDEX).read_text())
    assert length % 8 == 0
    assert {name: entries[name]["data_offsets"] for name in "abc"} == {"a": [0, 30], "b": [30, 37], "c": [37, 41]}
    assert len(raw) == 8 + length + 41 == len(header(specs)[0]) + 41
    assert index == {"metadata": {"total_size": 41}, "weight_map": dict.fromkeys("abc", "x.safetensors")}
    assert json.loads((tmp_path / "config.json").read_text()) == {"model_type": "none"}


def test_a_pack_without_index_and_configuration_has_only_its_shard(tmp_path: Path) -> None:
    write(tmp_path / "new", {"x.safetensors": [Spec("a", "U8", (1,))]}, index=False)

    assert [file.name for file in (tmp_path / "new").iterdir()] == ["x.safetensors"]
