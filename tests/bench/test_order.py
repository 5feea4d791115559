# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The order of tests: its lists name files that exist, and a group is never torn apart."""

import os

import pytest

from tests.conftest import next_group
from tests.native.kit import ROOT
from tests.order import (
    BARE,
    LONG,
    OWN_CLUSTERS,
    SHARING,
    cluster_processes,
    group_of,
    is_on_cluster,
    rank_of,
    shares_cluster,
)


@pytest.mark.parametrize("name", [*OWN_CLUSTERS, *BARE, *SHARING, *LONG])
def test_every_name_of_the_lists_exists(name: str) -> None:
    assert any(ROOT.glob(f"{name}*"))


def test_groups_on_clusters_come_first_and_those_that_share_one_after_those_with_their_own() -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    groups = [group_of(f"{name}::test") for name in sorted(files, key=lambda name: rank_of(f"{name}::test"))]
    bare = "tests/cluster/bare"
    assert list(dict.fromkeys(groups))[: len(OWN_CLUSTERS) + 1] == [*OWN_CLUSTERS, bare]
    assert groups.count(bare) == len(BARE)
    on_clusters = [is_on_cluster(group) for group in groups]
    assert on_clusters == sorted(on_clusters, reverse=True)
    sharing = {group for group in groups if shares_cluster(group)}
    assert {bare, "tests/cluster/test_engine.py"} <= sharing
    assert sharing.isdisjoint(OWN_CLUSTERS)


def test_most_processes_draw_the_groups_on_clusters_and_others_help_when_nothing_else_is_left() -> None:
    assert [cluster_processes(number) for number in (1, 2, 3, 4)] == [2, 2, 2, 3]
    groups = ["tests/cluster/bare", "tests/cluster/test_chaos.py", "tests/wire/test_decision.py"]
    assert next_group(groups, has_clusters=True) == "tests/cluster/bare"
    assert next_group(groups, has_clusters=False) == "tests/wire/test_decision.py"
    assert next_group(groups[2:], has_clusters=True) == "tests/wire/test_decision.py"
    assert next_group(groups[1:2], has_clusters=False) == "tests/cluster/test_chaos.py"


def test_a_test_that_runs_pytest_does_not_write_over_the_report_of_this_run() -> None:
    assert "PYTEST_ADDOPTS" not in os.environ
