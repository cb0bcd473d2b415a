"""`moe-appliance checkpoint fetch` and `verify`: the weights themselves onto this machine, and whether they are whole.

Progress goes to standard error, the result to standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from appliance.checkpoint.faults import plain, typed
from appliance.checkpoint.fetch import Fetched, FetchedFile, fetch
from appliance.checkpoint.verify import Trouble, Verified, verify
from appliance.cli.checkpoint_progress import duration, gib, shown
from appliance.cli.context import JsonOption, say

_NAMES_SHOWN = 12


def register(app: typer.Typer) -> None:
    """Add both verbs to the group `checkpoint`."""
    app.command("fetch")(fetch_verb)
    app.command("verify")(verify_verb)


def fetch_verb(
    source: Annotated[
        str, typer.Argument(metavar="REPO@REV|URL", help="A hub's repository, or a folder or file by URL.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder of the checkpoint; it is made.")],
    as_json: JsonOption = False,
) -> None:
    """Fetch a checkpoint's weights, checked against every sum that the source tells. Run again, it goes on.

    Tokens come from the environment: HF_TOKEN for a hub (HF_ENDPOINT), MOE_CHECKPOINT_TOKEN for a URL.
    """
    try:
        with shown("fetching") as on_progress:
            done = asyncio.run(fetch(source, to, environ=dict(os.environ), on_progress=on_progress))
    except KeyboardInterrupt:
        say("Stopped. What came is kept: run the same command again to go on.")
        raise
    if as_json:
        print(json.dumps(_fetched_json(done)))
        return
    for sentence in _fetched_lines(done):
        print(sentence)


def verify_verb(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the checkpoint.")],
    write: Annotated[
        bool, typer.Option("--write", help="Write SHA256SUMS from what is there, where there is none.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Hash every file again and compare with SHA256SUMS, then the headers. Exit 0: all good, 1: not."""
    with shown("checking") as on_progress:
        result = asyncio.run(verify(folder, environ=dict(os.environ), on_progress=on_progress, write=write))
    if as_json:
        print(json.dumps(_verified_json(result)))
    else:
        for sentence in _verified_lines(result):
            print(sentence)
    if not result.good:
        raise typer.Exit(1)


def _fetched_lines(done: Fetched) -> list[str]:
    hashed = [file for file in done.files if file.hashed]
    told, ours = _by_teller(hashed)
    at = f" at {plain(done.revision)}" if done.revision else ""
    unhashed = len(done.files) - len(hashed)
    rate = f" ({done.received_bytes / done.seconds / 1e6:,.0f} MB/s)" if done.received_bytes and done.seconds else ""
    lines = [
        f"{plain(done.folder)}: {len(done.files)} files, {gib(done.total_bytes)}, "
        f"{'all there' if unhashed else 'whole'}, from {plain(done.origin)}{at}.",
        f"{gib(done.received_bytes)} came in {duration(done.seconds)}{rate}.",
    ]
    if told:
        tellers = ", ".join(sorted({str(file.told_by) for file in told}))
        lines.append(f"SHA-256 as the source tells it ({tellers}): {len(told)} files.")
    if ours:
        lines.append(f"SHA-256 only ours, of what came, as nobody told one: {_names(ours)}.")
    if unhashed:
        lines.append(
            f"Not hashed again: {unhashed} files, whose size, time and inode are as when they were fetched and hashed."
        )
    return [*lines, f"To check it again: moe-appliance checkpoint verify {typed(done.folder)}"]


def _by_teller(files: Sequence[FetchedFile]) -> tuple[list[FetchedFile], list[FetchedFile]]:
    return [file for file in files if file.told_by], [file for file in files if not file.told_by]


def _names(files: Sequence[FetchedFile]) -> str:
    named = ", ".join(plain(file.name) for file in files[:_NAMES_SHOWN])
    return f"{named} and {len(files) - _NAMES_SHOWN} more" if len(files) > _NAMES_SHOWN else named


def _fetched_json(done: Fetched) -> dict[str, Any]:
    told, ours = _by_teller(done.files)
    return {
        "origin": done.origin,
        "revision": done.revision,
        "folder": str(done.folder),
        "total_bytes": done.total_bytes,
        "received_bytes": done.received_bytes,
        "seconds": round(done.seconds, 3),
        "sums_told_by_source": len(told),
        "sums_only_ours": len(ours),
        "not_hashed_again": sum(not file.hashed for file in done.files),
        "files": [asdict(file) for file in done.files],
    }


def _verified_lines(result: Verified) -> list[str]:
    lines = [f"{plain(one.file or result.folder)}: {one.trouble}: {one.detail}" for one in result.found]
    headers = "headers sound" if result.headers else "headers not read: pip install gguf"
    if result.wrote:
        lines.append(
            f"{plain(result.folder)}/SHA256SUMS written: {result.files} files, {gib(result.total_bytes)}, as they are."
        )
    elif result.good:
        lines.append(f"{plain(result.folder)}: good: {result.files} files, {gib(result.total_bytes)}, {headers}.")
    else:
        wrong = sum(not one.trouble.harmless for one in result.found)
        lines.append(f"{plain(result.folder)}: NOT good: {wrong} {'thing is' if wrong == 1 else 'things are'} wrong.")
        lines.append(f"remedy: {_remedy(result)}")
    return lines


def _remedy(result: Verified) -> str:
    there = (Trouble.DIFFERS, Trouble.UNREADABLE, Trouble.EXTRA_WEIGHTS)
    files = [typed(result.folder / one.file) for one in result.found if one.trouble in there]
    source = typed(result.address) if result.address else "REPO@REV|URL"
    again = f"moe-appliance checkpoint fetch {source} --to {typed(result.folder)}"
    return f"rm {' '.join(files)}; {again}" if files else again


def _verified_json(result: Verified) -> dict[str, Any]:
    return {
        "folder": str(result.folder),
        "good": result.good,
        "files": result.files,
        "total_bytes": result.total_bytes,
        "wrote": result.wrote,
        "found": [asdict(one) for one in result.found],
    }
