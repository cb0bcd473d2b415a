"""GGUF files: tensors, metadata, splits, and what is told when they are broken."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest

from appliance.checkpoint.read import read
from appliance.checkpoint.sources import Folder, Url, source_of
from appliance.checkpoint.tensors import Checkpoint, Format
from appliance.errors import DEMO_EXTRA, CheckpointError

numpy = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")

F32, F16, Q4_K = 0, 1, 12
ALIGNMENT = 32
METADATA = {"general.architecture": "llama", "llama.block_count": 2, "llama.expert_count": 8}
TENSORS = [("token_embd.weight", (256, 1000), F16), ("blk.0.ffn_gate_exps.weight", (256, 512, 8), Q4_K)]


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case _:
            return struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)


def write(path: Path, metadata: Mapping[str, Any], tensors: Sequence[tuple[str, tuple[int, ...], int]]) -> Path:
    """A GGUF file whose data is a hole."""
    infos, offset = b"", 0
    for name, shape, kind in tensors:
        infos += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        per_block, block_bytes = {F32: (1, 4), F16: (1, 2), Q4_K: (256, 144)}[kind]
        offset += -(-prod(shape) * block_bytes // per_block // ALIGNMENT) * ALIGNMENT
    keys = b"".join(_text(key) + _value(value) for key, value in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + keys + infos
    head += b"\0" * (-len(head) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + offset)
    return path


def shown(path: Path) -> Checkpoint:
    return read(Folder(path), environ={})


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        shown(path)
    assert caught.value.remedy
    return caught.value.message


def test_a_file_gives_its_tensors_and_metadata(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", METADATA, TENSORS)

    found = shown(path)

    assert (found.format, found.origin, found.config) == (Format.GGUF, str(path), METADATA)
    embedding, experts = found.tensors
    assert (embedding.dtype, embedding.shape, embedding.nbytes) == ("F16", (256, 1000), 512_000)
    assert (experts.dtype, experts.shape, experts.nbytes) == ("Q4_K", (256, 512, 8), 589_824)
    assert experts.begin - embedding.begin == 512_000
    assert embedding.begin == found.shards[0].header_bytes
    assert found.shards[0].size_bytes == path.stat().st_size
    assert found.tensors == shown(tmp_path).tensors


def test_files_of_the_packages_own_writer_are_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen3moe")
    writer.add_block_count(3)
    writer.add_expert_count(128)
    writer.add_head_count_kv([2, 4, 8])
    writer.add_rope_freq_base(1e6)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("blk.0.x", numpy.zeros((3, 5), numpy.float32))
    writer.add_tensor("blk.1.x", numpy.zeros((7,), numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    found = shown(tmp_path)

    assert found.config == {
        "general.architecture": "qwen3moe",
        "qwen3moe.block_count": 3,
        "qwen3moe.expert_count": 128,
        "qwen3moe.attention.head_count_kv": [2, 4, 8],
        "qwen3moe.rope.freq_base": 1e6,
    }
    assert [(tensor.name, tensor.shape, tensor.nbytes) for tensor in found.tensors] == [
        ("blk.0.x", (5, 3), 60),
        ("blk.1.x", (7,), 14),
    ]


def test_a_large_vocabulary_is_stepped_over(tmp_path: Path) -> None:
    tokens = [f"token{number}" for number in range(300_000)]
    words = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": list(range(300_000))}
    path = write(tmp_path / "m.gguf", METADATA | words | {"llama.vocab_size": 300_000}, TENSORS)

    began = time.perf_counter()
    found = shown(path)

    assert time.perf_counter() - began < 10.0
    assert found.config == METADATA | {"llama.vocab_size": 300_000}
    assert found.shards[0].header_bytes > 5_000_000


def _split(folder: Path, count: int = 3, tensors: int = 3) -> list[Path]:
    paths = []
    for part in range(count):
        metadata = {"split.no": part, "split.count": count, "split.tensors.count": tensors}
        name = f"m-{part + 1:05d}-of-{count:05d}.gguf"
        paths.append(write(folder / name, (METADATA if part == 0 else {}) | metadata, [(f"t{part}", (32,), F32)]))
    return paths


def test_a_split_is_one_checkpoint(tmp_path: Path) -> None:
    paths = _split(tmp_path)

    for start in (tmp_path, paths[0], paths[2]):
        found = shown(start)
        assert found.origin == str(tmp_path / "m.gguf")
        assert [(tensor.name, tensor.file) for tensor in found.tensors] == [
            (f"t{part}", path.name) for part, path in enumerate(paths)
        ]
        assert found.config["llama.expert_count"] == 8


def test_a_split_that_is_not_whole_is_told(tmp_path: Path) -> None:
    paths = _split(tmp_path, tensors=4)
    assert "the split has 4 tensors, the files hold 3" in refused(tmp_path)
    write(paths[1], {}, [("t0", (32,), F32)])
    assert f"{paths[1].name}: tensor t0: also in {paths[0].name}" in refused(tmp_path)
    paths[1].unlink()
    assert f"{paths[1].name}: missing" in refused(tmp_path)
    renamed = tmp_path / "whole.gguf"
    paths[0].rename(renamed)
    assert "split into 3 files by its header, 1 by its name" in refused(renamed)


def test_several_models_in_a_folder_are_told(tmp_path: Path) -> None:
    _split(tmp_path)
    write(tmp_path / "other.gguf", METADATA, TENSORS)

    assert "2 GGUF models (m.gguf, other.gguf)" in refused(tmp_path)


def test_a_cut_file_is_named_with_the_tensor(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", METADATA, TENSORS)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)

    assert "m.gguf: truncated: " in (said := refused(path))
    assert "tensor blk.0.ffn_gate_exps.weight is the first that is cut" in said


@pytest.mark.parametrize("size", [0, 3, 8, 20, 60, 150])
def test_a_file_that_is_cut_in_its_header_is_named(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "m.gguf", METADATA, TENSORS)
    with path.open("r+b") as file:
        file.truncate(size)

    assert f"m.gguf: the header cannot be read, the file is cut or damaged ({size} bytes" in refused(path)


def test_what_is_no_gguf_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"<html>" * 100)

    assert "m.gguf: the header cannot be read" in refused(tmp_path)


@pytest.mark.parametrize("count", [2**62, 10**9])
def test_an_absurd_array_is_told_soon(tmp_path: Path, count: int) -> None:
    path = write(tmp_path / "m.gguf", {"a": ["x"], "b": [1]}, TENSORS)
    data = bytearray(path.read_bytes())
    for kind in (8, 4):
        at = data.index(struct.pack("<IIQ", 9, kind, 1)) + 8
        data[at : at + 8] = struct.pack("<Q", count)
        path.write_bytes(data)
        assert "the header cannot be read" in refused(path)


def test_overlapping_tensors_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", METADATA, TENSORS)
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<IQ", Q4_K, 512_000), struct.pack("<IQ", Q4_K, 32)))

    assert "tensors token_embd.weight and blk.0.ffn_gate_exps.weight: their data overlap" in refused(path)


def test_without_the_package_the_remedy_is_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.gguf", METADATA, TENSORS)
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))

    with pytest.raises(CheckpointError, match="needs the package gguf") as caught:
        shown(path)
    assert caught.value.remedy == DEMO_EXTRA


def test_a_url_of_a_gguf_file_is_refused() -> None:
    source = source_of("http://127.0.0.1:9/m.gguf")
    assert isinstance(source, Url)
    with pytest.raises(CheckpointError, match="from this machine only"):
        read(source, environ={})


def test_a_tensor_that_is_no_whole_number_of_blocks_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", METADATA, [("a", (384, 2), Q4_K)])

    with pytest.raises(CheckpointError, match=r"no whole number of blocks of 256"):
        read(Folder(file), environ={})
