"""appliance/engine/probe_results.py: what was seen becomes rows, findings and, where it is needed, an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.host_bytes import HostBytes
from appliance.engine.probe_results import degraded, pace, results
from appliance.engine.probe_seen import Cached, Measured, Proven, Run, Seen, Shown, Streamed
from appliance.engine.promise import Promise, usual
from appliance.units import GIB
from gateway.state import EngineAbilities, EngineProfile, ProbeResult, Verdict

PROMISE = Promise(kind="vllm", floor_tok_per_s=40.0, allow_degraded=False)


def streamed(tokens: int, each_s: float, *, text: str = "words", **more: Any) -> Streamed:
    """A reply of `tokens` chunks, one every `each_s` seconds."""
    usage = {"prompt_tokens": 430, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 384}}
    at_s = [number * each_s for number in range(tokens)]
    return Streamed(0.0, at_s=at_s, text=text, **{"finish": "length", "usage": usage, **more})


GOOD = Measured(
    last=streamed(16, 0.01),
    cached=Cached(430, 384, 384),
    abilities=EngineAbilities(dialects=("/v1/chat/completions",), images=False),
    shown=Shown(streamed(72, 0.01), None, Seen(True, "called"), Seen(True, "kept"), Seen(True, "kept")),
)


def rows(seen: Measured, promise: Promise = PROMISE) -> dict[str, ProbeResult]:
    return {row.id: row for row in results(promise, seen)}


def verdicts(seen: Measured, promise: Promise = PROMISE) -> dict[str, Verdict]:
    return {name: row.verdict for name, row in rows(seen, promise).items() if row.verdict is not Verdict.OK}


def test_an_engine_that_shows_all_has_nothing_but_good_rows() -> None:
    assert verdicts(GOOD) == {}
    assert all(row.remedy == "" for row in results(PROMISE, GOOD))
    assert degraded(PROMISE, results(PROMISE, GOOD)) is None


@pytest.mark.parametrize(
    ("cached", "verdict", "says"),
    [
        (Cached(430, 384, None), Verdict.OK, "384 by its usage, of 430"),
        (Cached(430, None, 384), Verdict.OK, "384 by its metrics"),
        (Cached(430, 0, 0), Verdict.FAILED, "0 by its usage, 0 by its metrics"),
        (Cached(430, None, 0), Verdict.FAILED, "0 by its metrics"),
        (Cached(430, 0, 384), Verdict.OK, "384 by its metrics"),
        (Cached(430, None, None), Verdict.UNKNOWN, "does not say"),
    ],
)
def test_a_second_reading_must_come_from_the_cache_by_either_account(
    cached: Cached, verdict: Verdict, says: str
) -> None:
    row = rows(replace(GOOD, cached=cached))["cache"]
    assert (row.verdict, row.needed) == (verdict, True)
    assert says in row.observed


def test_a_pace_below_the_floor_ends_the_start_and_names_floor_pace_and_remedy() -> None:
    seen = replace(GOOD, shown=replace(GOOD.shown, paced=streamed(72, 0.05)))
    cause = degraded(PROMISE, results(PROMISE, seen))
    assert cause is not None
    assert cause.id == "engine.degraded"
    assert "20 tok/s over 72 tokens (wanted: 40 tok/s, the floor)" in cause.title
    assert "CUDA graphs" in cause.remedy
    assert "allow_degraded = true" in cause.remedy
    assert cause.retry, "another start may be faster"


def test_what_no_other_start_would_mend_is_not_tried_again() -> None:
    seen = replace(GOOD, shown=replace(GOOD.shown, tools=Seen(False, "answered without a call: no")))
    cause = degraded(PROMISE, results(PROMISE, seen))
    assert cause is not None
    assert not cause.retry
    assert "tool_call_parser" in cause.remedy


def test_a_degraded_engine_may_serve_where_that_is_allowed_and_no_row_changes() -> None:
    no_details = streamed(16, 0.01, usage={"prompt_tokens": 430, "completion_tokens": 16})
    seen = replace(GOOD, last=no_details, shown=replace(GOOD.shown, paced=streamed(72, 0.05)))
    made = results(replace(PROMISE, allow_degraded=True), seen)
    assert degraded(replace(PROMISE, allow_degraded=True), made) is None
    assert made == results(PROMISE, seen)
    assert {row.id: row.needed for row in made if row.verdict is Verdict.FAILED} == {
        "pace": True,
        "cached_tokens": False,
    }


def test_an_engine_is_not_degraded_by_what_nobody_needs() -> None:
    no_details = streamed(16, 0.01, usage={"prompt_tokens": 430, "completion_tokens": 16})
    assert degraded(PROMISE, results(PROMISE, replace(GOOD, last=no_details))) is None


def test_a_short_answer_proves_a_pace_but_blames_none() -> None:
    for each_s, verdict in ((0.01, Verdict.OK), (0.05, Verdict.UNKNOWN)):
        seen = replace(GOOD, shown=replace(GOOD.shown, paced=streamed(16, each_s)))
        assert rows(seen)["pace"].verdict is verdict


def test_an_answer_that_does_not_end_in_time_is_too_slow() -> None:
    seen = replace(GOOD, shown=replace(GOOD.shown, paced=None, paced_limit_s=10.0))
    assert verdicts(seen) == {"pace": Verdict.FAILED}
    assert "10 s" in rows(seen)["pace"].observed
    assert verdicts(seen, replace(PROMISE, floor_tok_per_s=0.0)) == {"pace": Verdict.UNKNOWN}


def test_a_demo_needs_nothing_and_what_was_not_asked_is_not_known() -> None:
    demo = usual("embedded", EngineProfile(name="d", floor_tok_per_s=10, cold_tokens=1, streams=4, demo=True), 180.0)
    seen = replace(GOOD, cached=Cached(200, 0, None), shown=Shown())
    made = rows(seen, demo)
    assert not any(row.needed for name, row in made.items() if name != "completion")
    assert {name for name, row in made.items() if row.verdict is Verdict.UNKNOWN} == {
        "tools",
        "json_object",
        "json_schema",
    }


def test_an_engine_that_serves_others_is_not_filled_with_prompts() -> None:
    profile = EngineProfile(name="d", floor_tok_per_s=40, cold_tokens=1, streams=4)
    assert usual("command", profile, 90.0) == Promise(kind="command", floor_tok_per_s=40, streams=4, hang_s=90.0)
    assert usual("external", profile, 90.0).streams == 0


def test_thoughts_without_an_answer_are_told_with_what_to_do() -> None:
    only = streamed(72, 0.01, text="", thought=True)
    row = rows(replace(GOOD, shown=replace(GOOD.shown, paced=only)))["thinking"]
    assert (row.verdict, row.needed) == (Verdict.FAILED, False)
    assert "72 tokens of thought" in row.observed
    assert "thinking" in row.remedy
    both = replace(GOOD, shown=replace(GOOD.shown, paced=streamed(72, 0.01, thought=True)))
    assert rows(both)["thinking"].observed == "thinks, then answers"
    short = replace(GOOD, last=only, shown=replace(GOOD.shown, paced=None))
    assert rows(short)["thinking"].verdict is Verdict.UNKNOWN, "16 tokens are too few to tell"


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (10 * GIB, Verdict.OK),
        (int(10.09 * GIB), Verdict.OK),
        (int(10.2 * GIB), Verdict.FAILED),
        (0, Verdict.FAILED),
        (None, Verdict.UNKNOWN),
    ],
)
def test_host_ram_must_hold_what_the_plan_says(found: int | None, verdict: Verdict) -> None:
    row = rows(replace(GOOD, host_bytes=found), replace(PROMISE, host_bytes=10 * GIB))["host_bytes"]
    assert (row.verdict, row.needed) == (verdict, True)


def test_without_a_plan_nothing_is_said_of_host_ram() -> None:
    assert "host_bytes" not in rows(replace(GOOD, host_bytes=10 * GIB))


def test_the_proof_is_told_with_its_seconds_and_paces() -> None:
    proven = Proven(262_144, (Run(261_900, 44.0, 61.5), Run(261_910, 88.0, None)))
    row = rows(replace(GOOD, proven=proven))["prove"]
    assert row.verdict is Verdict.OK
    assert "261900 tokens read in 44 s, then 61.5 tok/s; 261910 tokens read in 88 s" in row.observed
    failed = replace(GOOD, proven=Proven(262_144, failed="they did not end within 360 s"))
    assert degraded(PROMISE, results(PROMISE, failed)) is not None
    assert "prove" not in rows(GOOD)


@given(
    st.lists(st.floats(min_value=0.001, max_value=5.0), min_size=1, max_size=300),
    st.integers(min_value=2, max_value=2000),
)
def test_a_pace_is_within_those_of_its_gaps(gaps: list[float], tokens: int) -> None:
    at_s = [0.0]
    for gap in gaps:
        at_s.append(at_s[-1] + gap)
    found = pace(at_s, tokens)
    assert found is not None
    per_chunk = (tokens - 1) / len(gaps)
    assert per_chunk / max(gaps) * 0.999 <= found <= per_chunk / min(gaps) * 1.001


def test_one_stall_does_not_speak_for_the_whole_answer() -> None:
    at_s = [number * 0.01 + (5.0 if number > 40 else 0.0) for number in range(72)]
    found = pace(at_s, 72)
    assert found is not None
    assert found == pytest.approx(100.0)


def test_each_process_of_the_engine_is_counted_once_with_its_last_word() -> None:
    heard = HostBytes()
    assert heard.total() is None
    for line in (
        "(Worker_TP0 pid=11) INFO 11-30 [uva.py:58] Total CPU offloaded parameters: 4.0",
        "(Worker_TP1 pid=12) INFO 11-30 [uva.py:58] Total CPU offloaded parameters: 4.5",
        "(Worker_TP0 pid=11) INFO 11-30 [uva.py:58] Total CPU offloaded parameters: 6.5",
        "(Worker_TP0 pid=11) INFO 11-30 something else: 9.0",
    ):
        heard.take(line)
    assert heard.total() == 11 * GIB


def test_the_residency_plugin_says_its_bytes_for_each_rank() -> None:
    heard = HostBytes()
    for rank in (0, 1, 1):
        heard.take(f"moe-residency: rank {rank}: placed: 77 bytes in VRAM, {5 + rank} bytes in host RAM of node 0, 6")
    assert heard.total() == 11
