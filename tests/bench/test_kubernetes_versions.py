# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Versions of Kubernetes pass only if every test passed that ran."""

from pathlib import Path

import pytest

from bench.kubernetes_versions import FILES, PAIRS, USUAL, Count, counted, figure
from tests.cluster import binaries
from tests.native.kit import ROOT

REPORT = """<testsuites><testsuite>
  <testcase name="a"/>
  <testcase name="b"><failure/></testcase>
  <testcase name="c"><error/></testcase>
  <testcase name="d"><skipped/></testcase>
</testsuite></testsuites>"""


def test_failures_errors_and_skipped_tests_are_not_passed(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    assert counted(tmp_path / "report.xml", pytest.ExitCode.TESTS_FAILED) == Count(passed=1, run=3, skipped=1)


@pytest.mark.parametrize("code", [pytest.ExitCode.INTERRUPTED, -9])
def test_a_run_that_was_stopped_counts_nothing(tmp_path: Path, code: int) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    with pytest.raises(RuntimeError, match=f"exit code {int(code)} of pytest"):
        counted(tmp_path / "report.xml", code)


def test_a_version_needs_all_tests_that_ran_and_at_least_one() -> None:
    met = {count: figure("1.36.3", "2.2.9", count).met for count in (Count(3, 3, 1), Count(2, 3, 0), Count(0, 0, 9))}
    assert list(met.values()) == [True, False, False]


def test_the_versions_are_those_whose_checksums_are_stored_and_the_tests_exist() -> None:
    for kubernetes, containerd in PAIRS:
        assert (binaries.MODULES / f"kubernetes-{kubernetes}").is_dir()
        assert (binaries.MODULES / f"containerd-{containerd}").is_dir()
    source = (ROOT / "tests/cluster/binaries.py").read_text()
    assert all(f'or "{version}"' in source for version in USUAL)
    assert all((ROOT / "tests" / "cluster" / f"test_{name}.py").exists() for name in FILES)
