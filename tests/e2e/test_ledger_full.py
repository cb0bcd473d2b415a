"""A real gateway on a disk that is really full: requests go on, and the rows are there once there is room."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.box import until
from tests.e2e.ledger_box import KilledGateway, killed_gateway

UNSHARE = ["unshare", "--mount", *(["--map-root-user", "--user"] if os.geteuid() else [])]
SMALL = """
mount -t tmpfs -o size=400k tmpfs "$0/state"
if [ -n "$FULL" ]; then cat /dev/zero > "$0/state/filler" 2>/dev/null; fi
exec "$@"
"""


def may_mount() -> bool:
    """Whether a mount of our own, which nobody else sees, can be made here."""
    if shutil.which("unshare") is None:
        return False
    tried = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False, timeout=10).returncode == 0


pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not may_mount(), reason="needs a mount namespace")]


@pytest.fixture
def gateway(short_folder: Path, request: pytest.FixtureRequest) -> Iterator[KilledGateway]:
    full = ["env", "FULL=1"] if request.param else []
    with killed_gateway(short_folder, [*full, *UNSHARE, "sh", "-c", SMALL, str(short_folder)]) as box:
        yield box


def state_of(box: KilledGateway) -> Path:
    """Its state folder, as that process sees it."""
    assert box.process is not None
    return Path(f"/proc/{box.process.pid}/root{box.folder}/state")


def findings(box: KilledGateway) -> list[str]:
    found = box.status()["findings"]
    assert isinstance(found, list)
    return [finding["id"] for finding in found]


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 1024)


def stopped(box: KilledGateway, folder: Path) -> list[str]:
    """Stop it; the request ids of its ledger. The disk is there as long as it is open."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert box.stop() == 0
        copied = box.folder / "copied.db"
        copied.write_bytes(Path(f"/proc/self/fd/{held}/ledger.db").read_bytes())
    finally:
        os.close(held)
    with contextlib.closing(sqlite3.connect(copied)) as db:
        return [id for (id,) in db.execute("SELECT request_id FROM requests")]


async def ask(box: KilledGateway, first: int, count: int) -> None:
    before = len(box.told)
    await box.ask(iter([f"r{number}" for number in range(first, first + count)]), "a")
    assert [told.status for told in box.told[before:]] == [200] * count


@pytest.mark.parametrize("gateway", [False, True], indirect=True, ids=["later", "from the start"])
async def test_a_full_disk_costs_no_request_and_no_row_once_there_is_room(gateway: KilledGateway) -> None:
    folder = state_of(gateway)
    await ask(gateway, 0, 20)
    await asyncio.to_thread(fill, folder)
    for round_ in range(1, 20):
        await ask(gateway, 1000 * round_, 300)
        if "ledger.broken" in await asyncio.to_thread(findings, gateway):
            break
    await asyncio.to_thread(until, "the finding", lambda: "ledger.broken" in findings(gateway), 10.0)
    await ask(gateway, 100_000, 20)
    (folder / "filler").unlink()
    await asyncio.to_thread(until, "it is mended", lambda: "ledger.broken" not in findings(gateway), 15.0)
    ids = await asyncio.to_thread(stopped, gateway, folder)
    assert sorted(ids) == sorted(told.id for told in gateway.told), "each once, none lost"
