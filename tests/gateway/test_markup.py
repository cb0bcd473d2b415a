"""Every string that reaches a page, whoever wrote it, is text there: no tag, no attribute, no address of theirs."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from gateway.agents.programs import AGENTS
from gateway.ledger.rows import Usage
from gateway.pages.assets import static_files, templates
from gateway.pages.live import LivePart
from gateway.pages.seat_view import agent_views, seat_view
from gateway.status.compose import view
from gateway.status.views import StatusView
from tests.gateway.test_status_plan import bar, line, plan
from tests.status_sample import NOW_S, lively

EVIL = (
    "`</pre></script><script>alert(1)</script>\"' onmouseover=alert(1) x='><img src=x onerror=alert(1)><a href=//evil>"
)
OURS = frozenset({"state", "mode", "tone", "points", "id"})
"""Fields with words of our own, by which the templates choose; ids are told apart by them."""
USE = Usage("ana", requests=4, served=4, prompt_tokens=10, completion_tokens=3, hit_share=0.2)
M = TypeVar("M", bound=BaseModel)


def evil(model: M) -> M:
    """The same with EVIL in every string."""
    return model.model_copy(update={name: _evil(value) for name, value in model.__dict__.items() if name not in OURS})


def _evil(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return evil(value)
    if isinstance(value, tuple):
        return tuple(_evil(one) for one in value)
    return EVIL if type(value) is str else value


class Tags(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.faults: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        for name, value in attrs:
            where = name in ("src", "href", "action") and not (value or "").startswith(("/admin", "/seat", "#"))
            if name.startswith("on") or name in ("style", "srcdoc") or where:
                self.faults.append(f"<{tag} {name}={value}>")
            if tag == "script" and name == "src":
                self.names.discard("script")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture
def status() -> StatusView:
    box, gateway = lively()
    seen = view(box.model_copy(update={"plan": plan(bar("gpu0", 96.0, line("weights", 40.0)))}), gateway, NOW_S)
    made = evil(seen)
    assert made.plan is not None
    assert made.events[0].text == made.seats[0].name == made.plan.bars[0].pieces[0].formula == EVIL
    return made


def check(html: str, least: int) -> None:
    tags = Tags()
    tags.feed(html)
    assert tags.faults == []
    assert tags.names.isdisjoint({"script", "style", "iframe", "object", "base"})
    assert "".join(tags.text).count("<script>alert(1)</script>") >= least


def test_the_operators_page(status: StatusView) -> None:
    made = templates(static_files())
    live = LivePart(made).html(status, lambda *of: EVIL)
    check(made.get_template("page.html").render(view=status, live=live, admin=EVIL, logout=EVIL), 100)


def test_the_page_of_a_seat(status: StatusView) -> None:
    seen = evil(seat_view(status, EVIL, (USE, USE, USE)))
    agents = tuple(evil(agent) for agent in agent_views("http://box", status, EVIL))
    assert len(agents) == len(AGENTS)
    html = templates(static_files()).get_template("seat.html").render(view=seen, agents=agents, logout=EVIL)
    check(html, 50)
