"""Prometheus rules and Grafana dashboard: they are what their programs take, and name only figures that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from appliance.engine.settings import CommandSettings
from appliance.engine.vllm.settings import VllmSettings
from gateway.metrics import render
from gateway.snapshot import ConnectionsView, Times
from gateway.state import BudgetBar, BudgetLine, Phase, PlanState, ResidencyFigures
from gateway.status.compose import view
from tests.packaging.parts import PACKAGING, ROOT
from tests.status_sample import NOW_S, lively

RULES = PACKAGING / "prometheus/moe-appliance.rules.yml"
UNIT_TESTS = PACKAGING / "prometheus/tests.yml"
DASHBOARD = PACKAGING / "grafana/moe-appliance.json"
OPERATIONS = ROOT / "docs/operations.md"
OF_OTHERS = {"up", "node_filesystem_avail_bytes", "node_filesystem_size_bytes"}
"""Prometheus's own, and node_exporter's."""
WORDS = (
    r"by|on|ignoring|unless|and|or|sum|count|rate|increase|histogram_quantile|avg_over_time|max_over_time|label_values"
)
SEVERITIES = {"critical", "warning", "info"}
"""As the head of the rules explains them."""


def loaded(path: Path) -> Any:
    """A YAML file as plain values."""
    return YAML(typ="safe", pure=True).load(path)


def rules() -> list[dict[str, Any]]:
    return [rule for group in loaded(RULES)["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Those that show something."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def names_in(expression: str) -> set[str]:
    """The metrics that a PromQL expression reads."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\b(by|on|ignoring|without)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    return {name for name in re.findall(r"[a-z_][a-z0-9_]*", bare) if not re.fullmatch(WORDS, name)}


def known() -> set[str]:
    """Every name that /metrics can have, from a view in which everything is known."""
    box, gateway = lively()
    times = Times(bounds_s=(1.0,), counts=(1, 0), sum_s=0.5)
    there = ConnectionsView(open=1, most=2, refused=0, given_up=0)
    gateway = gateway.model_copy(update={"queue_wait": times, "first_token": times, "connections": there})
    line = BudgetLine(id="core", label="core", bytes=1, exact=True, formula="1", source="test")
    bar = BudgetBar(id="gpu0", label="card 0", capacity_bytes=2, lines=(line,))
    plan = PlanState(plan_id="p", file="f", name="n", cold_experts=1, experts=2, fits=True, verdict="fits", bars=(bar,))
    residency = ResidencyFigures(
        at_s=NOW_S, tokens=1, seconds=1.0, visits=2, cold_visits=1, cold_bytes=1 << 20, swapped=1
    )
    box = box.model_copy(update={"plan": plan, "engine": box.engine.model_copy(update={"residency": residency})})
    text = render(view(box, gateway, NOW_S))[0].decode()
    return {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}


def expressions() -> Iterator[tuple[str, str]]:
    """(where, expression) of both files."""
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it. Skips where it is not installed, but never in CI."""
    found = shutil.which("promtool")
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("promtool is missing: apt-get install prometheus")
    if found is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    return subprocess.run([found, *words], capture_output=True, text=True, timeout=120, check=False)


def test_prometheus_takes_the_rules() -> None:
    said = promtool("check", "rules", RULES)
    assert said.returncode == 0, said.stdout + said.stderr


def test_prometheus_takes_what_the_panels_ask(tmp_path: Path) -> None:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    plain = [one.replace("$__rate_interval", "5m").replace("$box", "box") for one in asked]
    recorded = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(plain)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    said = promtool("check", "rules", tmp_path / "panels.yml")
    assert said.returncode == 0, said.stdout + said.stderr


def test_each_alert_comes_when_it_should_and_stays_away_otherwise() -> None:
    said = promtool("test", "rules", UNIT_TESTS)
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_start_that_takes_long_is_told_before_it_is_given_up() -> None:
    (waits,) = [rule["for"] for rule in rules() if rule["alert"] == "MoeEngineStartsForLong"]
    limit_s = CommandSettings.model_fields["start_timeout_s"].default
    assert 0.5 * limit_s < int(waits.removesuffix("m")) * 60 < limit_s


def test_an_engine_that_is_never_ready_is_told_once_no_ordinary_start_takes_longer() -> None:
    (waits,) = [rule["for"] for rule in rules() if rule["alert"] == "MoeEngineNeverReady"]
    limits_s = [kind.model_fields["start_timeout_s"].default for kind in (CommandSettings, VllmSettings)]
    assert max(limits_s) < int(waits.removesuffix("m")) * 60 < 1.5 * max(limits_s)


def test_rules_name_only_phases_that_exist() -> None:
    named = re.findall(r'phase(?:=|!=|=~|!~)"([^"]*)"', " ".join(asked for _, asked in expressions()))
    assert {phase for one in named for phase in one.split("|")} - {str(phase) for phase in Phase} == set()


def test_each_alert_is_tested() -> None:
    told = UNIT_TESTS.read_text()
    assert [rule["alert"] for rule in rules() if rule["alert"] not in told] == []


def test_names_are_found_in_an_expression() -> None:
    asked = 'sum by (job, seat) (rate(a_total{job="x", le=~"b"}[5m])) / on (c) d > 0.5 unless on (e) f{g="h"} == 1'
    assert names_in(asked) == {"a_total", "d", "f"}


def test_rules_and_panels_name_only_figures_that_exist() -> None:
    exist = known() | OF_OTHERS
    missing = {where: names_in(asked) - exist for where, asked in expressions()}
    assert {where: names for where, names in missing.items() if names} == {}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_so_what_it_means_and_where_to_read_on(rule: dict[str, Any]) -> None:
    said = rule["annotations"]
    assert re.fullmatch(r"Moe[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in SEVERITIES
    assert "$labels.instance" in said["summary"]
    assert len(said["description"]) > 40
    assert re.fullmatch(r"docs/operations\.md#[a-z0-9-]+", said["runbook_url"])


def test_every_runbook_is_there() -> None:
    titles = re.findall(r"(?m)^#+ (.+)$", OPERATIONS.read_text())
    anchors = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    asked = {rule["annotations"]["runbook_url"].partition("#")[2] for rule in rules()}
    assert asked - anchors == set()


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_has_a_title_a_unit_words_and_one_box(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"]["uid"] == "${source}"
    assert panel["targets"]
    for target in panel["targets"]:
        assert target["expr"].count("moe_") == target["expr"].count('instance=~"$box"')


def test_panels_neither_overlap_nor_share_an_id() -> None:
    every = json.loads(DASHBOARD.read_text())["panels"]
    places = [
        (x, y)
        for place in (panel["gridPos"] for panel in every)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(places) == len(set(places))
    assert all(x < 24 for x, _ in places)
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
