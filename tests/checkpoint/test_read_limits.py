"""The released checkpoint: how long its headers take, what is fetched for them, and the hub's own call beside ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from appliance.checkpoint.cache import HeaderCache
from appliance.checkpoint.read import read, read_counted
from appliance.checkpoint.remote import Fetched
from appliance.checkpoint.sources import Folder, source_of
from appliance.checkpoint.tensors import Checkpoint
from tests.checkpoint.hub_server import HubServer
from tests.checkpoint.packs.fixtures import PackFolder
from tests.checkpoint.range_server import RangeServer

T = TypeVar("T")


def fetched_from(text: str, **environ: str) -> tuple[Checkpoint, Fetched]:
    return read_counted(source_of(text), environ=environ, cache=HeaderCache(None))


def timed(call: Callable[[], T], limit_s: float = 0.0, tries: int = 1) -> tuple[T, float]:
    """What the call gives, and the least seconds that it took: tried again while over the limit, since other processes
    share the cores."""
    least_s = float("inf")
    while True:
        began = time.perf_counter()
        found = call()
        least_s = min(least_s, time.perf_counter() - began)
        tries -= 1
        if least_s <= limit_s or tries <= 0:
            return found, least_s


def test_96_085_headers_of_48_shards_are_read_within_the_limits(
    pack_folder: PackFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pack_folder("released")
    local, local_s = timed(lambda: read(Folder(folder), environ={}), 2.0, tries=3)
    with RangeServer(folder) as server:
        (found, fetched), remote_s = timed(lambda: fetched_from(server.url), 3.0, tries=3)

    header_bytes = sum(shard.header_bytes for shard in found.shards)
    with capsys.disabled():
        ratio = fetched.header_bytes / header_bytes
        print(f"\nfolder {local_s:.2f} s; server {remote_s:.2f} s, {fetched.requests} requests, {ratio:.4f} x headers")
    assert (local.tensors, local.shards, local.index_sha256) == (found.tensors, found.shards, found.index_sha256)
    assert (found.tensor_count, found.total_bytes, len(found.shards)) == (96_085, 510_286_023_000, 48)
    assert fetched.header_bytes <= 1.05 * header_bytes
    assert fetched.requests <= 96
    assert remote_s < 3.0
    assert local_s < 2.0


@pytest.mark.parametrize("latency_s", [0.0, 0.05])
def test_huggingface_hubs_own_call_reads_the_same_beside_ours(
    pack_folder: PackFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    latency_s: float,
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import HfApi, constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = pack_folder("released")
    with RangeServer(folder) as cdn, HubServer(folder, cdn) as hub:
        cdn.latency_s = hub.latency_s = latency_s
        (ours, fetched), ours_s = timed(lambda: fetched_from("org/name", HF_ENDPOINT=hub.url))
        ours_requests, ours_bytes = hub.requests + cdn.requests, hub.sent_bytes + cdn.sent_bytes
        api = HfApi(endpoint=hub.url, token=False)
        theirs, theirs_s = timed(lambda: api.get_safetensors_metadata("org/name"))
        theirs_requests = hub.requests + cdn.requests - ours_requests
        theirs_bytes = hub.sent_bytes + cdn.sent_bytes - ours_bytes

    with capsys.disabled():
        print(f"\n{latency_s * 1000:.0f} ms a request:")
        print(f"  ours  {ours_s:.2f} s, {ours_requests} requests, {ours_bytes:,} bytes, verified")
        print(f"  HfApi {theirs_s:.2f} s, {theirs_requests} requests, {theirs_bytes:,} bytes")
    assert {tensor.name: tensor.file for tensor in ours.tensors} == theirs.weight_map
    assert fetched.requests == ours_requests
    assert ours_requests < theirs_requests
    assert ours_bytes < theirs_bytes
