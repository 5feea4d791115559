# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""After a run with failures: a few of them once more, by themselves. `python -m tests.again REPORT`.

On a busy machine a real process is now and then too slow for a test. Such a test passes alone; a defect fails again.
What only passed the second time is named, so that somebody looks at it. Nothing is run again where many failed, where
the run itself broke off, or where a test is marked `final`: one failure in fifty is what it looks for.
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

MOST = 3


class Results:
    """What became of each test of a run."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.final: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.final = [item.nodeid for item in items if item.get_closest_marker("final")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def failures_in(report: Path) -> int:
    """How many tests failed; none where the run broke off before it could say."""
    if not report.exists():
        return 0
    cases = ET.parse(report).iter("testcase")
    return sum(1 for case in cases if case.find("failure") is not None or case.find("error") is not None)


def main(report: Path) -> int:
    """0 where all that failed passed now."""
    failed = failures_in(report)
    if not 1 <= failed <= MOST:
        print(f"again: {failed} tests failed in the report: nothing is run again")
        return 1
    print(f"again: running {failed} that failed once more, alone")
    results = Results()
    code = pytest.main(["-q", "-rsfE", "--last-failed", "--last-failed-no-failures=none"], plugins=[results])
    if results.final:
        print(f"again: FAILED: {', '.join(results.final)} must never fail")
        return 1
    if code != 0 or len(results.passed) != failed:
        return 1
    print("".join(f"again: UNSTABLE: {name} failed beside the others and passed alone\n" for name in results.passed))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
