"""Which files a source has of a checkpoint, with sizes, validators and sums. Touches sockets.

A hub lists them. A server of files is asked for the index and then for each name: one request a file, of one byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit, urlunsplit

from appliance.checkpoint.answers import NotThereError, PageError
from appliance.checkpoint.faults import plain
from appliance.checkpoint.index import INDEX_BYTES, parse_index
from appliance.checkpoint.layout import INDEX, SINGLE, layout_of, parts_of
from appliance.checkpoint.partfile import RemoteFile
from appliance.checkpoint.sources import Hub, HubFile, Remote, Url, remote_of
from appliance.checkpoint.sums import SUMS, SUMS_BYTES, distinct, etag_sum, is_sum, parse_sums, safe_name
from appliance.checkpoint.threads import together
from appliance.checkpoint.transport import Transport
from appliance.checkpoint.wanted import WELL_KNOWN, small_files
from appliance.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Listing:
    """What is to be fetched, weights last. `origin`: without credentials and revision; `revision`: the commit of a hub,
    None for a server of files."""

    origin: str
    revision: str | None
    files: tuple[RemoteFile, ...]


def fetchable(source: Url | Hub, environ: Mapping[str, str]) -> Remote:
    """The source as a server to fetch from, its `file` also a GGUF one. Blocks for a hub's listing.

    Raises CheckpointError.
    """
    if isinstance(source, Url):
        parts = urlsplit(source.url)
        folder, _, last = parts.path.rpartition("/")
        if last.endswith(".gguf"):
            beside = remote_of(Url(urlunsplit(parts._replace(path=f"{folder}/"))), environ)
            return replace(beside, origin=f"{beside.origin}{last}", file=unquote(last))
    return remote_of(source, environ)


async def listing_of(remote: Remote, transport: Transport) -> Listing:
    """All files to fetch. Raises CheckpointError when one is missing or its name is unsafe."""
    if remote.files is not None:
        repo = remote.origin.partition("@")[0]
        listing = Listing(repo, remote.revision, await _of_hub(remote, remote.files, transport))
    else:
        weights = remote.file if remote.file and not remote.file.endswith(".json") else ""
        listing = Listing(remote.place + weights, None, await _of_server(remote, transport))
    distinct((file.name for file in listing.files), remote.origin)
    return listing


async def _of_hub(remote: Remote, files: Mapping[str, HubFile], transport: Transport) -> tuple[RemoteFile, ...]:
    layout = layout_of(remote.origin, files)
    weights = layout.shards or layout.gguf
    if layout.index is not None:
        weights = _shards(remote, layout.index, await transport.get(remote.url(layout.index), INDEX_BYTES))
    found = []
    for name in (*small_files(files), *weights):
        listed = files.get(safe_name(name, remote.origin))
        if listed is None:
            raise _missing(name, remote.origin)
        if listed.size_bytes is None:
            raise CheckpointError(f"{remote.origin} lists {plain(name)} without its size", "check HF_ENDPOINT")
        told = listed.sha256.lower() if listed.sha256 is not None and is_sum(listed.sha256) else None
        found.append(
            RemoteFile(
                name=name,
                url=remote.url(name),
                size_bytes=listed.size_bytes,
                validator=listed.validator,
                sha256=told,
                told_by="hub" if told else None,
            )
        )
    return tuple(found)


async def _of_server(remote: Remote, transport: Transport) -> tuple[RemoteFile, ...]:
    small, weights = await _names(remote, transport)
    raw = await transport.get(remote.url(SUMS), SUMS_BYTES, refused_is_absent=True) or b""
    told = (
        {}
        if raw.lstrip().startswith(b"<")
        else parse_sums(raw.decode("utf-8", "replace"), f"{SUMS} of {remote.origin}")
    )
    names = [safe_name(name, remote.origin) for name in (*small, *weights)]
    needed = set(weights)
    async with together() as group:
        asked = [
            group.create_task(_asked(remote, transport, name, told, may_lack=name not in needed)) for name in names
        ]
    found = tuple(file for task in asked if (file := task.result()) is not None)
    have = {file.name for file in found}
    for name in weights:
        if name not in have:
            raise _missing(name, remote.origin)
    return found


async def _names(remote: Remote, transport: Transport) -> tuple[Iterable[str], tuple[str, ...]]:
    """Names of small files, which need not exist, and of the weights, which must."""
    file = remote.file or INDEX
    if file.endswith(".gguf"):
        return (), parts_of(file)
    if not file.endswith(".json"):
        return (), (file,)
    raw = await transport.get(remote.url(file), INDEX_BYTES, refused_is_absent=remote.file is None)
    if raw is None and remote.file is None:
        return WELL_KNOWN, (SINGLE,)
    return (file, *WELL_KNOWN), _shards(remote, file, raw)


def _shards(remote: Remote, index: str, raw: bytes | None) -> tuple[str, ...]:
    if raw is None:
        raise _missing(index, remote.origin)
    return parse_index(remote.origin, index, raw).shards


async def _asked(
    remote: Remote, transport: Transport, name: str, told: Mapping[str, str], *, may_lack: bool
) -> RemoteFile | None:
    """None for what is not there. A server may say of a file that it lacks that it is forbidden, or send a page."""
    try:
        span = await transport.span(remote.url(name), 0, 0, refused_is_absent=may_lack)
    except NotThereError:
        return None
    except PageError:
        if may_lack:
            return None
        raise
    if span is None:  # only when it is asked whether the file is unchanged
        return None
    by_etag = etag_sum(span.etag)
    return RemoteFile(
        name=name,
        url=remote.url(name),
        size_bytes=span.total_bytes,
        validator=span.etag,
        etag=span.etag,
        sha256=told.get(name) or by_etag,
        told_by=SUMS if name in told else "ETag" if by_etag else None,
    )


def _missing(name: str, origin: str) -> CheckpointError:
    return CheckpointError(
        f"{plain(origin)} has no {plain(name)}, which belongs to the checkpoint",
        "give the address of a whole checkpoint: the folder with the index, or the file of weights itself",
    )
