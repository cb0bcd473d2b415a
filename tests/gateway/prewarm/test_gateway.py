"""The gateway keeps what the engine got of each turn, and reads it again into an engine that has started anew."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.core import Engine
from gateway.observe import snapshot
from gateway.prewarm import reader as reader_module
from gateway.prewarm.settings import PrefixSettings
from tests.gateway.forms import PATHS
from tests.gateway.running import Running, running, seats_toml
from tests.gateway.wire import ask, exchange, post

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "IDLE_S", 0.02)
    monkeypatch.setattr(reader_module, "LOOK_S", 0.005)


@asynccontextmanager
async def prewarming(knobs: dict[str, object] | None = None, **settings: Any) -> AsyncIterator[Running]:
    """A gateway that prewarms as app.py has it do."""
    async with running({"echo_body": 50, **(knobs or {})}, **settings) as gateway:
        reads = asyncio.create_task(gateway.core.prewarm.run())
        yield gateway
        reads.cancel()
        await asyncio.gather(reads, return_exceptions=True)


def restart(gateway: Running, start_id: str) -> None:
    """The engine has lost all that it held."""
    core, engine = gateway.core, gateway.core.engine
    assert engine is not None
    gateway.engine.scheduler.cache.clear()
    state = core.engine_state.model_copy(update={"start_id": start_id})
    core.engine_changed(core.box.model_copy(update={"engine": state}), Engine(engine.address, engine.key, start_id))


async def turn(gateway: Running, text: str, seat: str = "a", path: str = PATHS[0]) -> None:
    answer = await exchange(gateway, post(ask(path, text, stream=True, max_tokens=4), path=path, seat=seat))
    assert answer.status == 200


def got(gateway: Running) -> list[dict[str, Any]]:
    """The bodies that the engine got, in order."""
    return [json.loads(base64.b64decode(echo["body_b64"])) for echo in gateway.engine.stats.echoes]


async def all_read(gateway: Running, count: int) -> None:
    await gateway.until(lambda: (s := gateway.core.prewarm.state).of == count == s.done)


@pytest.mark.parametrize("path", PATHS)
async def test_a_turn_is_read_again_after_a_restart_and_found_there(path: str) -> None:
    async with prewarming() as gateway:
        text = "what she asked " * 200
        await turn(gateway, text, path=path)
        await gateway.idle()
        restart(gateway, "again")
        await all_read(gateway, 1)
        first, again = got(gateway)
        assert {key: again.get(key) for key in ("messages", "prompt", "input", "system")} == {
            key: first.get(key) for key in ("messages", "prompt", "input", "system")
        }
        assert again["stream"] is False
        await turn(gateway, text, path=path)
        await gateway.idle()
        last = gateway.engine.stats.log[-1]
        assert last.cached_tokens >= 0.9 * last.prompt_tokens


async def test_a_request_that_comes_meanwhile_cuts_the_read_and_is_served() -> None:
    async with prewarming() as gateway:
        await turn(gateway, "long " * 600)
        await gateway.idle()
        gateway.set_knobs(time_scale=1.0, prefill_tok_per_s=100.0)
        restart(gateway, "again")
        await gateway.until(lambda: gateway.engine.stats.running == 1)
        gateway.set_knobs(time_scale=0.001)
        await turn(gateway, "short", seat="b")
        assert gateway.engine.stats.aborted == 1
        assert gateway.core.prewarm.state.cut == 1
        await all_read(gateway, 1)


async def test_requests_that_are_refused_before_the_engine_cut_no_read_and_take_no_sequence() -> None:
    async with prewarming() as gateway:
        await turn(gateway, "long " * 600)
        await gateway.idle()
        gateway.set_knobs(time_scale=1.0, prefill_tok_per_s=1500.0)
        restart(gateway, "again")
        await gateway.until(lambda: gateway.engine.stats.running == 1)
        served = gateway.core.prewarm._served()
        good = ask(PATHS[0], "hello", stream=True)
        for body, seat, status in ((good, "stranger", 401), ({"model": "fake-model"}, "a", 400)):
            answer = await exchange(gateway, post(body, path=PATHS[0], seat=seat))
            assert answer.status == status
        assert gateway.core.prewarm._served() == served
        await all_read(gateway, 1)
        assert gateway.core.prewarm.state.cut == 0


async def test_a_seat_that_is_switched_off_loses_what_was_kept_of_it() -> None:
    async with prewarming() as gateway:
        await turn(gateway, "hers " * 50)
        await gateway.idle()
        assert gateway.core.prewarm.heads.held_bytes > 0
        gateway.write_seats(seats_toml(disabled="a"))
        assert gateway.core.prewarm.heads.held_bytes == 0


async def test_a_title_beside_a_run_does_not_take_its_place() -> None:
    async with prewarming() as gateway:
        path = PATHS[0]
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        body = ask(path, "go", stream=True, max_tokens=4) | {"tools": tools}
        await exchange(gateway, post(body, path=path, seat="a"))
        await gateway.idle()
        held = gateway.core.prewarm.heads.held_bytes
        await turn(gateway, "go")
        await gateway.idle()
        assert gateway.done()[-1]["helper"] is True
        assert gateway.core.prewarm.heads.held_bytes == held


async def test_a_prefix_whose_file_is_gone_is_a_finding_on_the_page(tmp_path: Path) -> None:
    prefix = PrefixSettings(name="docs", file=tmp_path / "gone.json")
    async with prewarming(prefixes=(prefix,)) as gateway:
        await gateway.until(lambda: bool(gateway.core.prewarm.findings()))
        assert "prefix.broken" in [finding.id for finding in snapshot(gateway.core).findings]


async def test_a_prefix_of_a_seat_that_there_is_not_is_a_finding_and_one_of_a_seat_that_there_is_is_none() -> None:
    prefixes = (PrefixSettings(name="mine", seat="a"), PrefixSettings(name="theirs", seat="nobody"))
    async with prewarming(prefixes=prefixes) as gateway:
        [finding] = [found for found in snapshot(gateway.core).findings if found.id == "prefix.seat"]
    assert finding.observed == "theirs: there is no seat nobody"
