"""Takes the pictures of the pages for docs/: a real box and browser; engine, cards and team are made up.

The team works for SHOWN_S before the pictures are taken, so that its lanes, its line and its last minutes are real; its
last two weeks are rows that are put into the ledger beforehand.
"""

from __future__ import annotations

import json
import random
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a file, from anywhere

import httpx
import structlog

from gateway.keys import SEAT_PREFIX, new_key
from gateway.ledger.rows import Row
from gateway.ledger.writing import Ledger
from tests.box.boxes import furnish
from tests.browser.chromium import Chromium, Page
from tests.checkpoint.packs.fixtures import PACKS
from tests.checkpoint.packs.writer import write
from tests.e2e.box import ROOT, Box
from tests.fake_nvml import FakeNvml, scenarios

TEAM = ("ana", "ben", "chris", "dana", "eli", "fay", "gil")
OFF = "gil"
BUDGETS = {"ana": 40_000_000, "chris": 9_000_000}
SHOWN_S = 75.0
FIRST_WORDS, NEW_SHARE = 90_000, 0.2
"""A new conversation is a cold prompt, and some turns begin one."""
DAY_S = 86_400
DAYS = 12
BUSY_PAGE = """
document.querySelectorAll('#lanes .lane.busy').length >= 3 && document.querySelector('#cold .chip.busy') &&
document.querySelectorAll('#queue tbody tr').length >= 1 &&
document.querySelector('#lanes .busy .pace').innerText.includes('tok/s')
"""
TEXT = "the server reads a file and says which line is wrong so that whoever wrote it can mend it at once"


def main(folder: Path) -> None:
    """Write the pictures into `folder`."""
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        box = stack.enter_context(served(Path(home)))
        stack.enter_context(at_work(box))
        time.sleep(SHOWN_S)
        browser = stack.enter_context(Chromium(Path(home)))
        operators(stack.enter_context(browser.page(1280)), box, folder)
        a_seats(stack.enter_context(browser.page(1080)), box, folder)


def operators(page: Page, box: Box, folder: Path) -> None:
    """The operator's page."""
    page.goto(f"{box.url}/admin#token={box.admin_key}")
    page.until("document.querySelector('#live .verdict') && document.querySelector('#clock:not([hidden])')")
    httpx.post(
        f"{box.url}/admin/actions/disable-seat",
        data={"seat": OFF},
        headers={"authorization": f"Bearer {box.admin_key}", "accept": "application/json"},
    ).raise_for_status()
    page.until(f"document.querySelector('#seat-{OFF}').innerText.includes('by root')")
    page.until(BUSY_PAGE, 120)
    page.picture(folder / "page-light.png")
    page.media(dark=True)
    page.picture(folder / "page-dark.png")
    page.media()
    page.size(520)
    page.picture(folder / "page-520.png")


def a_seats(page: Page, box: Box, folder: Path) -> None:
    """The page of the first seat."""
    page.goto(f"{box.url}/seat")
    page.write(box.keys[TEAM[0]])
    with page.loading():
        page.press("Enter")
    page.until("document.querySelectorAll('.lane.busy').length >= 1", 60)
    page.click("#agent-codex summary")
    page.picture(folder / "seat-page.png")


@contextmanager
def served(home: Path) -> Iterator[Box]:
    """A box like the study's, with two busy cards and a team that has been there for two weeks."""
    cards = FakeNvml(home / "cards", scenarios.TWO_GOOD)
    furnish(cards.root)
    environ = {
        name: value
        for name, value in cards.environ().items()
        if name in ("LD_LIBRARY_PATH", "PATH") or name.startswith("FAKE")
    }
    engine: dict[str, object] = {"name": "DeepSeek-V4.1-Flash on two RTX PRO 6000"}
    plan: dict[str, object] = {
        "file": str(ROOT / "plans/deepseek-v4.1-flash-2x-rtx-pro-6000.json"),
        "checkpoint": str(write(home / "study", *PACKS["study"]())),
    }
    box = Box(
        home,
        tables={"engine": engine, "plan": plan},
        knobs={"check_scale": 1.0},
        patches={"appliance.examine.ROOT": str(cards.root)},
        environ=environ,
    )
    box.keys = {name: new_key(SEAT_PREFIX, secrets.token_bytes(32)) for name in TEAM}
    box.write_seats({name: {"tokens_per_month": tokens} for name, tokens in BUDGETS.items()})
    for file in ("seats.toml", "admins.toml"):
        box.seats_file.with_name(file).chmod(0o600)
    two_weeks(home / "state/ledger.db")
    try:
        box.start().wait_ready()
        cards.configure(cards=tuple(replace(card, **busy) for card, busy in zip(cards.setup.cards, BUSY, strict=True)))
        yield box
    finally:
        print(box.close() or "done")


BUSY = (
    {"busy": 91, "used_bytes": 86 * 1024**3, "temperature": 72, "power_now_mw": 487_000, "pcie_rx_kb": 18_400_000,
     "pcie_tx_kb": 212_000},
    {"busy": 88, "used_bytes": 86 * 1024**3, "temperature": 78, "power_now_mw": 598_000, "pcie_rx_kb": 17_900_000,
     "pcie_tx_kb": 205_000, "throttle": 4},
)  # fmt: skip


def two_weeks(path: Path) -> None:
    """What the study's team would have done, hour by hour."""
    chance = random.Random(7)  # noqa: S311 - the same pictures each time
    ledger = Ledger(path, 0, structlog.get_logger(), lambda: 4)
    ledger.start()
    now_s = time.time()
    number = 0
    for day in range(1, DAYS):
        begins_s = (now_s // DAY_S - day) * DAY_S + 8 * 3600
        for seat in TEAM:
            at_s = begins_s + chance.expovariate(1 / 300)
            while at_s < begins_s + 8 * 3600 and day % 7 not in (2, 3):
                number += 1
                ledger.put(_row(at_s, seat, number, chance))
                at_s += chance.expovariate(1 / 130) + 10
    ledger.close(60)


def _row(at_s: float, seat: str, number: int, chance: random.Random) -> Row:
    prompt = chance.randint(9_000, 90_000)
    tokens = chance.randint(80, 900)
    return Row(
        at_s=at_s,
        request_id=f"{number:032x}",
        seat=seat,
        route="/v1/chat/completions",
        word="ok" if number % 90 else "client_gone",
        status=200,
        code="",
        queue_s=0.001 if number % 30 else chance.uniform(0.5, 6.0),
        ttft_s=chance.uniform(0.4, 1.6),
        duration_s=tokens / 55,
        prompt_tokens=prompt,
        cached_tokens=int(prompt * chance.uniform(0.88, 0.98)),
        completion_tokens=tokens,
        tok_per_s=chance.uniform(44, 90),
        estimated=False,
        stream=True,
        body_bytes=prompt * 4,
        run=seat,
        turn=number,
        helper=False,
    )


@contextmanager
def at_work(box: Box) -> Iterator[None]:
    """Each seat goes on with one conversation, with pauses, so that the box is full now and then."""
    ends = threading.Event()
    threads = [threading.Thread(target=_converse, args=(box, seat, ends, n)) for n, seat in enumerate(TEAM[:6])]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def _converse(box: Box, seat: str, ends: threading.Event, number: int) -> None:
    chance = random.Random(number)  # noqa: S311
    messages: list[dict[str, str]] = []
    ends.wait(6.0 * number)
    with httpx.Client(timeout=120, headers={"authorization": f"Bearer {box.keys[seat]}"}) as client:
        while not ends.is_set():
            if not messages or chance.random() < NEW_SHARE:
                messages = [{"role": "user", "content": " ".join(chance.choices(TEXT.split(), k=FIRST_WORDS))}]
            body = {
                "model": "fake-model",
                "messages": messages,
                "stream": True,
                "max_tokens": chance.randint(300, 900),
            }
            with client.stream("POST", f"{box.url}/v1/chat/completions", content=json.dumps(body)) as answer:
                for _ in answer.iter_lines():
                    if ends.is_set():
                        return
            messages += [
                {"role": "assistant", "content": " ".join(chance.choices(TEXT.split(), k=400))},
                {"role": "user", "content": " ".join(chance.choices(TEXT.split(), k=200))},
            ]
            ends.wait(chance.uniform(1.0, 7.0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
