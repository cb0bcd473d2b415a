"""An engine that breaks in mid-answer: the client asks again or says so, and never takes the half for the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.clients import CLAUDE_CODE, CODEX, PI, Client
from tests.agents.stage import ANSWER, box

pytestmark = pytest.mark.anyio

AFTER_TOKENS = 3
FAULTS: dict[str, dict[str, object]] = {
    "closed": {"cut_after": AFTER_TOKENS},
    "reset": {"cut_after": AFTER_TOKENS, "cut_rst": True},
    "ended-cleanly": {"truncate_after": AFTER_TOKENS},
    "error-event": {"error_in_stream": AFTER_TOKENS},
}
ASK_AGAIN = (CLAUDE_CODE, CODEX, PI)
"""They do, by the type or the words of the error; SDKs and llm never once a stream has begun."""
HEALED = {"cut_after": None, "truncate_after": None, "error_in_stream": None}


@pytest.mark.parametrize("fault", FAULTS)
async def test_half_an_answer_is_never_taken_for_the_whole(client: Client, fault: str, tmp_path: Path) -> None:
    # given: an engine that breaks in the middle of its first answer, and only then
    knobs = FAULTS[fault] | {"only_marker": "pear"}
    async with box(tmp_path, [client], knobs) as here, here.run(client, "Where is the pear?") as run:
        log = here.gateway.engine.stats.log
        await here.gateway.until(lambda: any(record.outcome for record in log), 15)
        here.gateway.set_knobs(**HEALED)
        result = await run.result()
        # then: whoever asks again has the whole answer, everybody else an error, and nobody the half
        assert log[0].outcome not in ("completed", "")
        assert (await here.over(client))[0]["word"] != "ok"
        if result.code == 0:
            assert result.stdout.strip() == ANSWER, result.told()
        else:
            assert "engine" in (result.stdout + result.stderr).lower(), result.told()
        assert (result.code == 0) == (client in ASK_AGAIN), result.told()
        assert [record.outcome for record in list(log)[1:]] == ["completed"] * (result.code == 0)
