"""How a plan's budget is shown: one colour for one kind of line, nothing hidden, estimates marked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from appliance.cli import status as text
from gateway.metrics import render
from gateway.pages.assets import static_files, templates
from gateway.state import BudgetBar, BudgetLine, Finding, Moment, PlanState, Severity
from gateway.status.compose import view
from gateway.status.plan import bar_views, kind_rows
from gateway.status.views import StatusView
from tests import status_sample

GIB = 1024**3


def unsigned(action: str, target: str = "") -> str:
    """In place of a session's value for a form."""
    return ""


def line(id: str, gib: float, *, exact: bool = True, moment: Moment = Moment.STEADY) -> BudgetLine:
    return BudgetLine(
        id=id,
        label=f"the {id}",
        bytes=int(gib * GIB),
        exact=exact,
        formula=f"{gib} x 1",
        source="headers",
        moment=moment,
    )


def bar(id: str, capacity_gib: float | None, *lines: BudgetLine) -> BudgetBar:
    capacity = None if capacity_gib is None else int(capacity_gib * GIB)
    return BudgetBar(id=id, label=f"GPU of {id}", capacity_bytes=capacity, lines=lines)


def plan(*bars: BudgetBar, fits: bool = True) -> PlanState:
    return PlanState(
        plan_id="sha256:" + "a" * 64,
        file="/etc/plan.json",
        name="a model",
        cold_experts=4608,
        experts=15360,
        fits=fits,
        verdict="fits: ~13.9 GiB a card left for KV",
        bars=bars,
    )


def shown(state: PlanState, *findings: Finding) -> StatusView:
    box = status_sample.box(findings=findings).model_copy(update={"plan": state})
    return view(box, status_sample.gateway(), status_sample.NOW_S)


def test_the_same_kind_of_line_has_the_same_number_in_every_bar() -> None:
    first, second = bar_views((bar("gpu0", 10, line("kv", 1), line("head", 2)), bar("gpu1", 10, line("head", 2))))
    assert {piece.id: piece.kind for piece in first.pieces} == {"kv": 0, "head": 1}
    assert second.pieces[0].kind == 1


def test_lines_without_bytes_are_left_out() -> None:
    (only,) = bar_views((bar("gpu0", 10, line("kv", 0), line("head", 2)),))
    assert [piece.id for piece in only.pieces] == ["head"]


def test_what_sticks_out_is_said_and_stays_on_the_bar() -> None:
    (over,) = bar_views((bar("gpu0", 8, line("routed", 10)),))
    assert (over.over.text, over.holds) == ("2.0 GiB", False)
    assert over.capacity_share == 0.8
    assert over.pieces[0].share == 1.0


def test_what_is_there_only_while_loading_counts_against_the_capacity() -> None:
    (node,) = bar_views((bar("node0", 10, line("pinned", 6), line("cache", 5, exact=False, moment=Moment.LOAD)),))
    assert (node.used.text, node.peak.text, node.holds) == ("~6.0 GiB", "~11.0 GiB", False)
    assert node.pieces[1].when == "while loading"


def test_rounding_is_shown_and_does_not_count() -> None:
    (node,) = bar_views((bar("node0", 10, line("pinned", 6), line("round", 5, moment=Moment.ROUNDED)),))
    assert (node.peak.text, node.left.text, node.holds) == ("6.0 GiB", "4.0 GiB", True)


def test_a_capacity_that_nobody_knows_is_no_fault() -> None:
    (host,) = bar_views((bar("host", None, line("pinned", 6)),))
    assert (host.holds, host.left.text, host.capacity_share) == (True, "–", None)


@given(
    st.lists(st.tuples(st.integers(0, 2**45), st.booleans(), st.sampled_from(Moment)), max_size=12),
    st.none() | st.integers(0, 2**42),
)
def test_pieces_lie_one_behind_the_other_inside_the_bar(
    lines: list[tuple[int, bool, Moment]], capacity: int | None
) -> None:
    made = tuple(
        BudgetLine(id=f"l{n}", label="l", bytes=size, exact=exact, formula="f", source="s", moment=moment)
        for n, (size, exact, moment) in enumerate(lines)
    )
    (one,) = bar_views((BudgetBar(id="gpu0", label="GPU", capacity_bytes=capacity, lines=made),))
    end = 0.0
    for piece in one.pieces:
        assert abs(piece.start - end) < 1e-3
        end = piece.start + piece.share
    assert end < 1.001
    assert len(kind_rows((one,))) == len(one.pieces)


def test_page_terminal_and_metrics_say_the_same() -> None:
    state = plan(
        bar("gpu0", 95.6, line("routed", 66.7), line("graphs", 1, exact=False)), bar("node0", 128, line("pin", 28))
    )
    status = shown(state)
    assets = static_files()
    page = templates(assets).get_template("fragment.html").render(view=status, csrf=unsigned)
    console = Console(width=120, record=True, force_terminal=False, highlight=False)
    with console.capture() as captured:
        text.render(status, console)
    terminal, metrics = captured.get(), render(status)[0].decode()
    for said in ("fits: ~13.9 GiB a card left for KV", "66.7 GiB", "~1.0 GiB", "~67.7 GiB of 95.6 GiB", "GPU of gpu0"):
        assert said in page
        assert said in terminal
    assert "66.7 x 1" in page
    assert 'moe_budget_bytes{line="routed",place="gpu0"} 7.16' in metrics
    assert 'moe_budget_capacity_bytes{place="node0"} 1.37' in metrics
    assert "moe_plan_fits 1.0" in metrics
    assert "moe_plan_cold_experts 4608.0" in metrics


def test_without_a_plan_nothing_is_said_of_one() -> None:
    status = view(status_sample.box(), status_sample.gateway(), status_sample.NOW_S)
    assert status.plan is None
    assert b"moe_plan" not in render(status)[0]
    assert "h-plan" not in templates(static_files()).get_template("fragment.html").render(view=status, csrf=unsigned)


def test_a_forced_finding_says_why() -> None:
    forced = Finding(
        id="topo.pair",
        severity=Severity.WARN,
        title="Cards on two sockets",
        observed="SYS",
        required="NODE",
        remedy="ask for another machine",
        forced="no other machine until Monday",
    )
    status = shown(plan(), forced)
    console = Console(width=120, highlight=False)
    with console.capture() as captured:
        text.render(status, console)
    page = templates(static_files()).get_template("fragment.html").render(view=status, csrf=unsigned)
    assert "forced: no other machine until Monday" in captured.get()
    assert "forced: no other machine until Monday" in page
