"""How the probes of the engine are shown: all of them, in order, with what to do about those that failed."""

from __future__ import annotations

from rich.console import Console

from appliance.cli import status as text
from gateway.metrics import render
from gateway.pages.assets import static_files, templates
from gateway.state import ProbeResult, Severity, Verdict
from gateway.status.compose import view
from gateway.status.figures import Tone
from gateway.status.views import StatusView
from tests import status_sample

RESULTS = (
    ProbeResult(
        id="cache",
        title="Prefix cache",
        verdict=Verdict.OK,
        observed="384 of 430 tokens by its usage",
        wanted="a prompt that is read again comes from the cache",
        needed=True,
    ),
    ProbeResult(
        id="tools",
        title="Tool calls",
        verdict=Verdict.FAILED,
        observed="refused with 400: <b>no parser</b>",
        wanted="a tool is called",
        needed=True,
        remedy="add --tool-call-parser NAME",
    ),
    ProbeResult(
        id="cached_tokens",
        title="Cached tokens in usage",
        verdict=Verdict.FAILED,
        observed="not told",
        wanted="usage says so",
        remedy="add --enable-prompt-tokens-details",
    ),
    ProbeResult(
        id="json_object", title="JSON answers", verdict=Verdict.UNKNOWN, observed="not asked", wanted="a JSON object"
    ),
)


def shown(results: tuple[ProbeResult, ...] = RESULTS) -> StatusView:
    box = status_sample.box()
    engine = box.engine.model_copy(update={"probes": results})
    return view(box.model_copy(update={"engine": engine}), status_sample.gateway(), status_sample.NOW_S)


def page(found: StatusView) -> str:
    template = templates(static_files()).get_template("fragment.html")
    return template.render(view=found, csrf=lambda action, target="": "")


def test_each_row_has_the_tone_of_what_its_failure_means() -> None:
    assert [(row.id, row.tone, row.wanted) for row in shown().probes] == [
        ("cache", Tone.OK, ""),
        ("tools", Tone.BAD, "a tool is called"),
        ("cached_tokens", Tone.WARN, "usage says so"),
        ("json_object", Tone.OK, "a JSON object"),
    ]


def test_the_page_has_every_row_and_takes_no_markup_of_the_engine() -> None:
    html = page(shown())
    assert "<strong>1</strong> of 4" in html
    for result in RESULTS:
        assert f'<li data-key="{result.id}"' in html
        assert result.remedy in html
    assert "&lt;b&gt;no parser" in html
    assert "wanted, and needed: a tool is called" in html
    assert '<span class="chip quiet">unknown</span> JSON answers' in html


def test_an_engine_that_was_asked_nothing_has_no_card() -> None:
    assert 'id="probes"' not in page(shown(()))
    assert b"moe_engine_probe" not in render(shown(()))[0]


def test_what_failed_is_a_finding_and_the_verdict_names_what_was_needed() -> None:
    found = shown()
    assert [(row.id, row.severity) for row in found.findings if row.id.startswith("engine.probe.")] == [
        ("engine.probe.tools", Severity.WARN),
        ("engine.probe.cached_tokens", Severity.INFO),
    ]
    assert found.verdict.tone is Tone.WARN
    assert "Tool calls" in found.verdict.text
    needless = tuple(result for result in RESULTS if result.id != "tools")
    assert shown(needless).verdict.tone is Tone.OK


def test_a_gauge_tells_what_is_known() -> None:
    lines = render(shown())[0].decode().splitlines()
    assert [line for line in lines if line.startswith("moe_engine_probe{")] == [
        'moe_engine_probe{probe="cache"} 1.0',
        'moe_engine_probe{probe="tools"} 0.0',
        'moe_engine_probe{probe="cached_tokens"} 0.0',
    ]


def test_the_terminal_says_the_same() -> None:
    console = Console(width=100, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        text.render(shown(), console)
    told = capture.get()
    assert "what the engine showed  1 of 4" in told
    for result in RESULTS:
        assert f"{result.title}  {result.observed}" in told
        assert result.remedy in told
