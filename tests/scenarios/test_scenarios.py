# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every scenario table, decided by the core under every policy it names."""

from pathlib import Path

import pytest

from cotenant.core.placement.checks import CHECKS
from cotenant.core.placement.policies import ORDERS
from tests.properties.referee import overfull
from tests.scenarios.loader import Scenario, decided, load, load_all

SCENARIOS = load_all(Path(__file__).parent)
CASES = [(scenario, policy) for scenario in SCENARIOS for policy in scenario.expect]


@pytest.mark.parametrize(("scenario", "policy"), CASES, ids=[f"{one.name} ({policy})" for one, policy in CASES])
def test_scenario(scenario: Scenario, policy: str) -> None:
    assert decided(scenario, policy) == scenario.expect[policy]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[one.name for one in SCENARIOS])
def test_what_runs_in_a_scenario_fits(scenario: Scenario) -> None:
    assert overfull(scenario.cluster) == []


def test_names_are_unique() -> None:
    assert len({one.name for one in SCENARIOS}) == len(SCENARIOS)


def test_every_policy_is_in_some_scenario() -> None:
    named = {name for _, spec in CASES for part in spec.split("/") for name in part.split("+")}
    assert named == set(ORDERS)


def test_every_reason_is_in_some_scenario() -> None:
    answers = [answer for one in SCENARIOS for expected in one.expect.values() for answer in expected.values()]
    checks = {why.split()[0] for answer in answers if isinstance(answer, dict) for why in answer.values()}
    assert checks >= {"cpu", "host-memory", "count", "health", "type", "uuid", "affinity", "anti-affinity"}
    assert checks >= {"exclusive", "slots", "memory", "compute", "numa", "link", "container"}
    assert checks >= {"gain", "alone", "sharing-score", "measured-memory", "least-speed"}
    assert checks >= {check.name for check in CHECKS}


def test_an_unknown_word_in_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown gpu; there are: gpus"):
        load({"name": "x", "cluster": {"a": {"gpus": 1}}, "submit": [{"job": "j", "gpu": 1}], "expect": {}})


def test_a_label_that_no_check_reads_is_refused() -> None:
    labelled = {"a": {"gpus": 1, "labels": {"spot": "true"}}}
    with pytest.raises(ValueError, match="no check reads the label spot; name it in the check's `labels`"):
        load({"name": "x", "cluster": labelled, "submit": [], "expect": {}})
