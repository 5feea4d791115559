# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The order of tests: its lists name files that exist, and a group is never torn apart."""

import os

import pytest

from tests.native.kit import ROOT
from tests.order import FIRST_CHAIN, LONG, SECOND_CHAIN, group_of, rank_of


@pytest.mark.parametrize("name", [*FIRST_CHAIN, *SECOND_CHAIN, *LONG])
def test_every_name_of_the_lists_exists(name: str) -> None:
    assert (ROOT / name).exists()


def test_tests_on_clusters_are_two_chains_before_all_others() -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    groups = [group_of(f"{name}::test") for name in sorted(files, key=lambda name: rank_of(f"{name}::test"))]
    first, second = (groups.count(f"{which} chain") for which in ("first", "second"))
    assert first > len(FIRST_CHAIN)
    assert second >= len(SECOND_CHAIN)
    assert groups[: first + second] == ["first chain"] * first + ["second chain"] * second


def test_a_test_that_runs_pytest_does_not_write_over_the_report_of_this_run() -> None:
    assert "PYTEST_ADDOPTS" not in os.environ
