# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which test files call which functions, and how long they take: `make mutants` runs only tests that can notice it.

This module is a pytest plugin. Every other process that the tests start calls `start` too, since the code under test
often runs in a daemon or a job. All append to the same files, so a process that is killed loses nothing.

pytest would warn that it cannot rewrite the assertions of a module that is imported already, but for this word:
PYTEST_DONT_REWRITE
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # processes of the code under test import this module, and no pytest
    import pytest
    from _typeshed import TraceFunction

CURRENT, CALLS, TIMES, FAILED = "current", "calls", "times", "failed"

Function: TypeAlias = tuple[str, int]
"""a file, and the line on which a function begins, decorators included"""

_seen: set[int] = set()
_folder: Path | None = None
_trace: "TraceFunction | None" = None


@dataclass(frozen=True, slots=True)
class Recording:
    """What a run of the unchanged code showed."""

    calls: Mapping[Function, frozenset[str]]
    """test files that call each function"""
    seconds: Mapping[str, float]
    """time of each test file"""
    failed: tuple[str, ...]
    """tests that fail although nothing was changed"""


def start(folder: str, sources: str) -> None:
    """Records in a folder which functions below the folder `sources` this process calls."""
    global _folder, _trace
    _folder = Path(folder)

    def called(frame: FrameType, _event: str, _argument: object) -> None:  # returns None: lines are not of interest
        code = frame.f_code
        if id(code) not in _seen:
            _seen.add(id(code))
            if code.co_filename.startswith(sources):
                _append(CALLS, f"{code.co_filename}\t{code.co_firstlineno}")

    _trace = called
    sys.settrace(called)
    threading.settrace(called)


def read(folder: Path) -> Recording:
    """What all processes recorded."""
    calls: dict[Function, set[str]] = defaultdict(set)
    seconds: dict[str, float] = defaultdict(float)
    for test, file, line in _lines(folder / CALLS):
        calls[file, int(line)].add(test)
    for test, time in _lines(folder / TIMES):
        seconds[test] += float(time)
    failed = tuple(one for _, one in _lines(folder / FAILED))
    return Recording({function: frozenset(tests) for function, tests in calls.items()}, seconds, failed)


def pytest_runtest_logstart(nodeid: str) -> None:
    if _folder is not None:
        _seen.clear()
        (_folder / CURRENT).write_text(_file_of(nodeid))
        # Python ends tracing if the function raises, as it does at the end of the stack in a test of deep recursion.
        sys.settrace(_trace)


def pytest_runtest_logreport(report: "pytest.TestReport") -> None:
    _append(TIMES, f"{report.duration}")
    if report.failed:
        _append(FAILED, report.nodeid)


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _append(name: str, text: str) -> None:
    """Appends a line with the test file that runs. Nothing is kept open, since a daemon closes what it inherits."""
    if _folder is None:
        return
    with suppress(OSError), open(_folder / name, "a") as file:
        current = _folder / CURRENT
        file.write(f"{current.read_text() if current.exists() else ''}\t{text}\n")


def _lines(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
