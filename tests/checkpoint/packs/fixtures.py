"""All packs by name, and the fixture that writes them. Touches files.

A conftest imports `pack_folder` to have it as a fixture. `checkpoint` and `catalogue` need no file and are kept, since
the large ones take half a second to make.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from appliance.checkpoint.catalogue import Catalogue, catalogue_of
from appliance.checkpoint.tensors import Checkpoint
from tests.checkpoint.packs import deepseek_v41, standard
from tests.checkpoint.packs.gguf import SHAPES, gguf
from tests.checkpoint.packs.memory import checkpoint_of
from tests.checkpoint.packs.standard import Pack
from tests.checkpoint.packs.writer import write

PACKS: dict[str, Callable[[], Pack]] = {
    "released": deepseek_v41.released,
    "exl3-routed-only": partial(deepseek_v41.exl3_routed_only, 3),
    "study": deepseek_v41.study_pack,
    "qwen3-moe": standard.qwen3_moe,
    "qwen3-moe-fp8": partial(standard.qwen3_moe, fp8_blocks=True),
    "gpt-oss": standard.gpt_oss,
    "mixtral": standard.mixtral,
    "glm-4.5": standard.glm45,
    "glm-4.5-air": partial(standard.glm45, air=True),
    "deepseek-v3": standard.deepseek_v3,
    "deepseek-v2": standard.deepseek_v2,
}
"""Name -> shards and config.json."""

GGUF = tuple(f"{architecture}.gguf" for architecture in SHAPES)
"""Names of the packs that are GGUF; they have no folder."""

PackFolder = Callable[[str], Path]


@cache
def checkpoint(name: str) -> Checkpoint:
    """A pack as reading its headers would give it."""
    return gguf(name.removesuffix(".gguf")) if name in GGUF else checkpoint_of(*PACKS[name]())


@cache
def catalogue(name: str) -> Catalogue:
    """A pack by purpose."""
    return catalogue_of(checkpoint(name))


@pytest.fixture(scope="session")
def pack_folder(tmp_path_factory: pytest.TempPathFactory) -> PackFolder:
    """The folder of a pack, written at the first request of the session. Do not change what is in it."""
    written: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in written:
            shards, config = PACKS[name]()
            written[name] = write(tmp_path_factory.mktemp(name), shards, config)
        return written[name]

    return folder
