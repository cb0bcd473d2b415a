"""A checkpoint for people and for programs. Writes to the console it is given.

Names come from files that strangers wrote: they are shown without control characters and never read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console

from appliance.checkpoint.catalogue import Catalogue, TensorClass
from appliance.checkpoint.remote import Fetched
from appliance.checkpoint.tensors import Checkpoint
from appliance.cli.terminal import say, table
from appliance.units import GIB

_NAMES = {
    TensorClass.ROUTED: "routed experts",
    TensorClass.SHARED: "shared experts",
    TensorClass.ATTENTION: "attention",
    TensorClass.DENSE: "dense",
    TensorClass.EMBEDDING: "embedding",
    TensorClass.HEAD: "head",
    TensorClass.ENGRAM: "Engram",
    TensorClass.DRAFT: "draft/MTP",
    TensorClass.VISION: "vision",
    TensorClass.OTHER: "other",
}


def as_json(checkpoint: Checkpoint, catalogue: Catalogue, fetched: Fetched) -> dict[str, Any]:
    """The values of `--json`. `experts.bytes_each`: of the largest routed expert, `bytes_by_layer`: of one expert in
    each layer; `fetched`: zeros for a folder; `missing`: what keeps it from being planned, "" when nothing does."""
    by_layer = _bytes_by_layer(catalogue)
    return {
        "origin": checkpoint.origin,
        "format": str(checkpoint.format),
        "revision": checkpoint.revision,
        "index_sha256": checkpoint.index_sha256,
        "family": catalogue.family,
        "missing": catalogue.missing,
        "tensor_count": checkpoint.tensor_count,
        "total_bytes": checkpoint.total_bytes,
        "classes": {str(cls): catalogue.whole_bytes(cls) for cls in TensorClass},
        "experts": {
            "layers": len(by_layer),
            "per_layer": catalogue.geometry.experts,
            "top_k": catalogue.geometry.top_k,
            "bytes_each": max(by_layer.values(), default=0),
            "bytes_by_layer": by_layer,
        },
        "dtypes": dict(catalogue.dtypes),
        "shards": [asdict(shard) for shard in checkpoint.shards],
        "fetched": asdict(fetched),
        "notes": list(checkpoint.notes),
    }


def render(checkpoint: Checkpoint, catalogue: Catalogue, fetched: Fetched, console: Console) -> None:
    """Print it for people."""
    total = checkpoint.total_bytes
    revision = f"  {checkpoint.revision}" if checkpoint.revision else ""
    say(console, (f"{checkpoint.origin}{revision}", "bold"))
    sizes = f"{checkpoint.tensor_count:,} tensors, {total:,} bytes = {_gib(total)}, {_files(checkpoint)}"
    say(console, f"{checkpoint.format}, family {catalogue.family}: {sizes}")
    console.print()
    shown = table()
    for heading in ("class", "bytes", "GiB", "share"):
        shown.add_column(heading, justify="left" if heading == "class" else "right", no_wrap=True)
    for cls in TensorClass:
        taken = catalogue.whole_bytes(cls)
        if taken:
            shown.add_row(_NAMES[cls], f"{taken:,}", f"{taken / GIB:,.3f}", f"{taken / total:.1%}")
    shown.add_row("total", f"{total:,}", f"{total / GIB:,.3f}", "", style="bold")
    console.print(shown)
    for line in _experts(catalogue):
        say(console, line)
    console.print()
    mix = sorted(catalogue.dtypes.items(), key=lambda item: -item[1])
    say(console, "dtypes  " + ", ".join(f"{dtype} {_gib(taken)}" for dtype, taken in mix))
    if fetched.requests:
        headers = f"{fetched.header_bytes:,} bytes of headers"
        say(console, f"fetched {fetched.bytes:,} bytes in {fetched.requests} requests, {headers}; no weights")
    for note in checkpoint.notes:
        say(console, ("note    ", "yellow"), note)
    if catalogue.missing:
        say(console, ("no plan ", "bold yellow"), f"can be made for it: {catalogue.missing}")


def _experts(catalogue: Catalogue) -> Iterator[str]:
    """A line for each run of layers whose experts have one size."""
    by_layer = _bytes_by_layer(catalogue)
    if not by_layer:
        return
    geometry = catalogue.geometry
    yield ""
    yield f"experts {geometry.experts:,} in each of {len(by_layer)} layers, {geometry.top_k} for each token"
    for each, run in groupby(sorted(by_layer), key=by_layer.__getitem__):
        layers = list(run)
        where = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]} to {layers[-1]}"
        yield f"        {where}: {each:,} bytes an expert, {_gib(each * geometry.experts)} a layer"


def _bytes_by_layer(catalogue: Catalogue) -> dict[int, int]:
    return {layer: catalogue.expert_bytes(layer) for layer in catalogue.experts}


def _files(checkpoint: Checkpoint) -> str:
    count = len(checkpoint.shards)
    smallest = min((shard.size_bytes for shard in checkpoint.shards), default=0)
    largest = max((shard.size_bytes for shard in checkpoint.shards), default=0)
    return "1 file" if count == 1 else f"{count} files of {_gib(smallest)} to {_gib(largest)}"


def _gib(taken: int) -> str:
    return f"{taken / GIB:,.3f} GiB" if taken >= GIB // 100 else f"{taken / (1 << 20):,.3f} MiB"
