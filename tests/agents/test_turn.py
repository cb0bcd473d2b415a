"""One task, one tool call, one answer: with each client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.clients import Client
from tests.agents.stage import ANSWER, box

pytestmark = pytest.mark.anyio

FOUND = "fig-4711"


async def test_a_tool_call_and_then_the_answer(client: Client, tmp_path: Path) -> None:
    # given: an engine that has the client run a command, and then answers
    rule = client.rule(f"echo {FOUND} | rev | rev > found.txt; cat found.txt")
    async with box(tmp_path, [client], {"tool_rules": (rule,)}) as here, here.run(client, "Where is the pear?") as run:
        result = await run.result()
        await here.gateway.idle()
        # then: the person sees the answer, and the command was run
        assert (result.code, result.stdout.strip()) == (0, ANSWER), result.told()
        assert (here.desk(client).work / "found.txt").read_text().strip() == FOUND
        # then: the engine got two requests and no more, in this client's form, one after the other
        stats = here.gateway.engine.stats
        assert [(record.path, record.outcome) for record in stats.log] == [(client.path, "completed")] * 2
        assert stats.peak_sequences == 1
        # then: both stream and offer the tool, and the second brings the command's output
        sent = here.sent()
        assert [(request.body["stream"], client.tool in request.tools) for request in sent] == [(True, True)] * 2
        assert [FOUND in request.text.replace(f"echo {FOUND}", "") for request in sent] == [False, True]
        assert [(line["status"], line["word"]) for line in await here.over(client)] == [(200, "ok")] * 2
