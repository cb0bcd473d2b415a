"""What all requests share: admission follows the engine, a broken seat file beside a new gateway."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from pathlib import Path

import pytest

from gateway import logs
from gateway.admission_types import Reason, Rejected
from gateway.app import _core
from gateway.core import Core, Engine
from gateway.dialects import Prepared
from gateway.dialects.openai import CHAT
from gateway.keys import digest_of
from gateway.limiter import Request
from gateway.pages.site import cookie_secret
from gateway.prefix.index import PrefixIndex
from gateway.prefix.kept import NAME as KEPT_NAME
from gateway.prefix.kept import keeping
from gateway.problem import Problem
from gateway.settings import AdmissionSettings, GatewaySettings
from gateway.state import BoxState, EngineProfile, EngineState, Phase
from gateway.upstream import EngineAddress
from tests.gateway.prefix.chains import at_once

KEY = "moe-" + "k" * 43
GOOD = f'[seats.ana]\ndigest = "{digest_of(KEY)}"\n'


def make(folder: Path, log: io.StringIO | None = None, **more: Path) -> Core:
    settings = GatewaySettings(
        seats_file=folder / "seats.toml", state_dir=folder, admission=AdmissionSettings(), **more
    )
    return _core(settings, logs.configure("gateway", log or io.StringIO()), asyncio.get_running_loop())


def ready(start_id: str, streams: int) -> tuple[BoxState, Engine]:
    profile = EngineProfile(name="p", floor_tok_per_s=10, cold_tokens=100, streams=streams)
    state = EngineState(phase=Phase.READY, start_id=start_id, profile=profile, url="http://127.0.0.1:1")
    return BoxState(revision=1, engine=state), Engine(EngineAddress.parse("http://127.0.0.1:1"), None, start_id)


@pytest.mark.anyio
async def test_an_engine_that_goes_away_gives_no_ticket_to_its_waiters(tmp_path: Path) -> None:
    core = make(tmp_path)
    core.engine_changed(*ready("one", streams=1))
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(core.limiter.enter(Request("ana", None, 1, lambda _: None))) for _ in range(3)]
        core.engine_changed(BoxState(revision=2, engine=EngineState(phase=Phase.BACKOFF)), None)
        answers = [place.answer.result() for place in places[1:]]
        assert all(isinstance(answer, Rejected) and answer.reason is Reason.ENGINE_LOST for answer in answers)
        assert core.limiter.running == 1


@pytest.mark.anyio
async def test_another_start_of_the_engine_answers_those_who_waited_for_the_former(tmp_path: Path) -> None:
    core = make(tmp_path)
    core.engine_changed(*ready("one", streams=1))
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(core.limiter.enter(Request("ana", None, 1, lambda _: None))) for _ in range(2)]
        core.engine_changed(*ready("two", streams=1))
        assert isinstance(places[1].answer.result(), Rejected)
        assert core.why_not() is None


@pytest.mark.anyio
async def test_a_suspected_engine_is_trusted_again_when_it_stands(tmp_path: Path) -> None:
    core = make(tmp_path)
    box, engine = ready("one", streams=1)
    core.engine_changed(box, engine)
    core.engine_suspect(engine)
    assert core.limiter.policy.closed is not None
    core.engine_changed(*ready("one", streams=1))  # the daemon has not noticed yet
    assert core.limiter.policy.closed is not None
    core._trust_again()
    assert core.limiter.policy.closed is None


@pytest.mark.anyio
async def test_the_next_start_of_a_suspected_engine_is_trusted_at_once(tmp_path: Path) -> None:
    core = make(tmp_path)
    box, engine = ready("one", streams=1)
    core.engine_changed(box, engine)
    core.engine_suspect(engine)
    core.engine_changed(*ready("two", streams=1))
    assert core.limiter.policy.closed is None


@pytest.mark.anyio
async def test_draining_stays_closed_whatever_the_engine_does(tmp_path: Path) -> None:
    core = make(tmp_path)
    core.drain()
    core.engine_changed(*ready("one", streams=4))
    assert core.why_not() is not None
    assert core.limiter.policy.closed is not None
    assert core.all_done.is_set()


@pytest.mark.anyio
async def test_a_gateway_that_starts_beside_a_broken_seat_file_knows_the_last_good_seats(tmp_path: Path) -> None:
    (tmp_path / "seats.toml").write_text(GOOD)
    make(tmp_path)
    (tmp_path / "seats.toml").write_text("[seats.ana\n")
    core = make(tmp_path)
    assert core.seats.broken is not None
    assert set(core.seats.value.accounts) == {"ana"}
    assert (tmp_path / "seats.last-good.toml").stat().st_mode & 0o777 == 0o640


@pytest.mark.anyio
async def test_a_seat_file_that_was_removed_is_believed(tmp_path: Path) -> None:
    (tmp_path / "seats.toml").write_text(GOOD)
    make(tmp_path)
    (tmp_path / "seats.toml").unlink()
    assert make(tmp_path).seats.value.accounts == {}


def test_a_full_disk_leaves_a_secret_in_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert len(cookie_secret(blocked / "cookie.secret")) == 32
    kept = cookie_secret(tmp_path / "cookie.secret")
    assert cookie_secret(tmp_path / "cookie.secret") == kept
    assert (tmp_path / "cookie.secret").stat().st_mode & 0o777 == 0o600


def named(core: Core, model: object, **fields: object) -> Prepared | Problem:
    raw = json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}], **fields}).encode()
    prepared = CHAT.prepare(raw, json.loads(raw))
    assert isinstance(prepared, Prepared)
    return core.named(prepared)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "sent"),
    [("m", "m"), ("other", "other"), (None, None), ("claude-sonnet-4-5", "m"), ("claude-", "m"), ("Claude-x", ""),
     ("gpt-5", ""), ("", ""), ("claude", ""), ("claude-" + "x" * 200, "m"), ("claude-" + "x" * 70_000, "")],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
async def test_a_vendors_name_means_the_model_that_is_here(tmp_path: Path, asked: str | None, sent: str | None) -> None:
    core = make(tmp_path)
    box, engine = ready("one", streams=1)
    core.engine_changed(
        box.model_copy(update={"engine": box.engine.model_copy(update={"models": ("m", "other")})}), engine
    )
    result = named(core, asked)
    if sent == "":
        assert isinstance(result, Problem)
        assert (result.status, result.code, result.param) == (404, "model_not_found", "model")
        assert len(result.message) < 400
    else:
        assert isinstance(result, Prepared)
        assert (json.loads(result.body)["model"], result.model) == (sent, sent)


@pytest.mark.anyio
async def test_any_name_passes_while_nobody_knows_the_models(tmp_path: Path) -> None:
    core = make(tmp_path)
    core.engine_changed(*ready("one", streams=1))
    result = named(core, "claude-x")
    assert isinstance(result, Prepared)
    assert result.model == "claude-x"


@pytest.mark.anyio
async def test_why_a_snapshot_of_what_is_warm_was_not_taken_is_logged_unless_there_is_none(tmp_path: Path) -> None:
    async def told(start_id: str) -> list[dict[str, str]]:
        log = io.StringIO()
        core = make(tmp_path, log, gateway_socket=tmp_path / "gateway.sock")
        core.engine_changed(*ready(start_id, streams=1))
        lines = [json.loads(line) for line in log.getvalue().splitlines()]
        return [line for line in lines if line["event"].startswith("prefix.")]

    assert await told("one") == []
    path = tmp_path / KEPT_NAME
    path.write_bytes(at_once(keeping("one", PrefixIndex()))[:40])
    [line] = await told("one")
    assert (line["event"], line["path"], line["error"]) == ("prefix.not_taken", str(path), "it is not whole")
    path.write_bytes(at_once(keeping("one", PrefixIndex())))
    assert [line["event"] for line in await told("one")] == ["prefix.taken"]
    [line] = await told("two")
    assert line["error"] == "it is of another start of the engine"
