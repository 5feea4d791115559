# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a test run at a glance: what ran, what was skipped and why, and which marks `slow` are wrong."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from xdist.workermanage import WorkerController

LONG_S = 2.0
"""A test that takes longer is no part of `make test-fast`: it is marked `slow`."""
SHORT_S = 1.0
"""A file whose tests marked `slow` take less in all needs no mark."""
MOST_LINES = 15
"""of one list"""
OUTCOMES = ("passed", "failed", "skipped")
DESELECTED = "deselected"


@dataclass(slots=True)
class Result:
    """What became of one test: its worst outcome, and the seconds of its three phases."""

    outcome: str = "passed"
    seconds: float = 0.0
    is_slow: bool = False
    why_skipped: str = ""

    def add(self, report: pytest.TestReport) -> None:
        self.outcome = max(self.outcome, report.outcome, key=("passed", "skipped", "failed").index)
        self.seconds += report.duration
        self.is_slow |= "slow" in report.keywords
        if report.skipped:
            self.why_skipped = _reason(report)


@dataclass(slots=True, eq=False)  # pytest needs plugins that can be hashed
class Summary:
    """A plugin of pytest. Test processes tell the first process what they have deselected; it prints the summary."""

    results: defaultdict[str, Result] = field(default_factory=lambda: defaultdict(Result))
    deselected: int = 0

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.deselected += len(items)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[DESELECTED] = self.deselected

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Each test process collects all tests, so all have deselected the same ones."""
        self.deselected = max(self.deselected, getattr(node, "workeroutput", {}).get(DESELECTED, 0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.results[report.nodeid].add(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        some_skipped = any(one.why_skipped for one in self.results.values())
        if some_skipped or len({_folder(test) for test in self.results}) > 1:
            terminalreporter.section("summary")
            for line in lines(self.results, self.deselected):
                terminalreporter.write_line(line)


def lines(results: Mapping[str, Result], deselected: int) -> Iterator[str]:
    """The lines of a summary."""
    yield f"{'folder':<20}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}"
    folders: dict[str, list[Result]] = {}
    for test, result in sorted(results.items()):
        folders.setdefault(_folder(test), []).append(result)
    for folder, found in (*folders.items(), ("all", list(results.values()))):
        counts = Counter(one.outcome for one in found)
        amounts = "".join(f"{counts[outcome]:>8}" for outcome in OUTCOMES)
        yield f"{folder:<20}{amounts}{sum(one.seconds for one in found):>9.0f}"
    reasons = Counter(one.why_skipped for one in results.values() if one.why_skipped)
    yield from _listed("skipped, because:", (f"{count:>5}  {reason}" for reason, count in reasons.most_common()))
    if deselected:
        yield f"not run: {deselected} tests, which the options leave out; `make test` runs everything"
    long = sorted(
        ((one.seconds, test) for test, one in results.items() if one.seconds > LONG_S and not one.is_slow), reverse=True
    )
    yield from _listed(
        f"longer than {LONG_S:g} s; if they are on a quiet machine, too, mark them `slow`:",
        (f"{seconds:>5.1f}  {test}" for seconds, test in long),
    )
    marked: defaultdict[str, float] = defaultdict(float)
    for test, one in results.items():
        if one.is_slow and one.outcome == "passed":
            marked[test.partition("::")[0]] += one.seconds
    short = sorted((seconds, file) for file, seconds in marked.items() if seconds < SHORT_S)
    yield from _listed(
        f"marked `slow`, but shorter than {SHORT_S:g} s in all:",
        (f"{seconds:>5.1f}  {file}" for seconds, file in short),
    )


def _listed(title: str, entries: Iterable[str]) -> Iterator[str]:
    found = list(entries)
    if found:
        yield title
        yield from found[:MOST_LINES]
        if len(found) > MOST_LINES:
            yield f"       and {len(found) - MOST_LINES} more"


def _folder(test: str) -> str:
    file = test.partition("::")[0]
    return "/".join(file.split("/")[:2])


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(getattr(report, "wasxfail", ""))
    return " ".join(text.removeprefix("Skipped: ").split())[:150]
