# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dashboards are what Grafana accepts and draws: the rules of its JSON model that a file can break unnoticed."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from cotenant.metrics.table import METRICS

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARDS = sorted(FOLDER.glob("*.json"))
COLUMNS = 24
"""Width of Grafana's grid."""
PANELS = {"timeseries", "stat", "table", "gauge", "bargauge", "heatmap", "row", "text"}
"""Panels that every Grafana has; graph and singlestat were removed in Grafana 11."""
UNITS = {"none", "short", "ops", "s", "ms", "bytes", "percent", "percentunit", "celsius", "watt"}
"""Those of Grafana's units that we use: an unknown one is shown as text behind the number."""
CALCULATIONS = {"lastNotNull", "last", "mean", "max", "min", "sum"}
BUILT_IN = {"__rate_interval", "__interval", "__range", "datasource"}
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds to every series."""


def board(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    return board(request.param)


def test_a_dashboard_can_be_provisioned(dashboard: dict[str, Any]) -> None:
    assert dashboard["schemaVersion"] >= 36, "older ones are migrated when they are opened, which can lose settings"
    assert "id" not in dashboard, "an ID of another installation would replace a dashboard there"
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", dashboard["uid"])
    assert dashboard["title"]
    assert set(dashboard["time"]) == {"from", "to"}
    assert isinstance(dashboard["tags"], list)


def test_panels_have_numbers_of_their_own_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(one["x"] >= 0 and one["x"] + one["w"] <= COLUMNS and one["h"] > 0 < one["w"] for one in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_panels_are_of_kinds_units_and_calculations_that_grafana_has(dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        assert panel["type"] in PANELS, panel["title"]
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["fieldConfig"]["overrides"] is not None
        options = panel.get("options", {})
        calculations = options.get("reduceOptions", {}).get("calcs", []) + options.get("legend", {}).get("calcs", [])
        assert set(calculations) <= CALCULATIONS, panel["title"]
        steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
        assert not steps or steps[0]["value"] is None, "the first threshold is the base"


def test_every_panel_and_variable_uses_the_chosen_data_source(dashboard: dict[str, Any]) -> None:
    variables = dashboard["templating"]["list"]
    assert [one["name"] for one in variables if one["type"] == "datasource"] == ["datasource"]
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    assert all(panel["datasource"] == chosen for panel in dashboard["panels"])
    assert all(one["datasource"] == chosen for one in variables if one["type"] == "query")
    assert all(one["query"]["query"] == one["definition"] for one in variables if one["type"] == "query")


def test_every_variable_that_is_used_exists_and_every_one_is_used(dashboard: dict[str, Any]) -> None:
    names = {one["name"] for one in dashboard["templating"]["list"]}
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [one["definition"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    used = {found for text in queries for found in re.findall(r"\$\{?(\w+)", text)}
    assert used - BUILT_IN <= names
    assert names - used <= {"datasource"}, "a variable without effect"


def test_legends_name_labels_that_the_series_have(dashboard: dict[str, Any]) -> None:
    labels = {row.name: set(row.labels) for row in METRICS}
    for panel in dashboard["panels"]:
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), panel["title"]
        for target in panel["targets"]:
            named = re.findall(r"\bcotenant_\w+", target["expr"])
            known = SCRAPED.union(*(labels[re.sub(r"_bucket$", "", name)] for name in named))
            wanted = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", "")))
            assert wanted <= known | {"le"}, (panel["title"], wanted - known)
            if grouped := re.match(r"\s*\w+ by \(([^)]*)\)", target["expr"]):
                assert wanted <= set(re.split(r"[,\s]+", grouped[1])), (panel["title"], "is not among the groups")
