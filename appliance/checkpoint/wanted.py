"""Which small files of a checkpoint are fetched besides its weights and index. Pure.

Weights in other forms (.bin, .pt, .onnx), sub-folders that the index does not name, and code stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx", ".h5", ".msgpack")
"""Endings of files that some engine loads as weights when it finds them."""
WELL_KNOWN = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "quantization_config.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
)
"""What is looked for where nothing lists what there is.
Source: the names under which transformers and vLLM save and look for them."""
_SMALL = ("*.json", "*.jinja", "*.model", "*.tiktoken", "tokenizer*", "vocab*", "merges.txt", "LICENSE*", "NOTICE*")


def small_files(listed: Iterable[str]) -> tuple[str, ...]:
    """Those of a listing that engines read besides weights: in the root, by their names."""
    return tuple(
        sorted(
            name
            for name in listed
            if "/" not in name and not name.endswith(WEIGHTS) and any(fnmatchcase(name, small) for small in _SMALL)
        )
    )
