# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Executes a plan of jobs: submits each job when it is due, and reports its start and end.

The caller passes two functions, one that submits a job and one that reads the state of jobs, so the same plan can run
on one machine or on a cluster.
"""

import csv
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cotenant.errors import InputError
from cotenant.workloads.generator import PlannedJob

LOOK_EVERY_S = 0.5
COLUMNS = ("event", "job", "name", "task", "submit", "start", "finish", "jct_s", "state")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The times and the state of a submitted job; times are seconds since 1970 on the clock of its engine."""

    job: str
    """its id in the engine"""
    submit: float
    start: float | None = None
    finish: float | None = None
    state: str = ""
    """as the engine names it"""

    @property
    def jct(self) -> float | None:
        """Job completion time: from the submission to the end, including the wait."""
        return None if self.finish is None else self.finish - self.submit

    @property
    def ran(self) -> float | None:
        """The time from its start to its end."""
        return None if self.finish is None or self.start is None else self.finish - self.start


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a job of the plan."""

    event: str
    """submitted, started or finished"""
    planned: PlannedJob
    life: Life


Submit = Callable[[PlannedJob], Life]
Look = Callable[[Sequence[str]], Mapping[str, Life]]
"""from ids of jobs to their present states; a job may be left out if it has not changed"""


def drive(
    plan: Sequence[PlannedJob],
    submit: Submit,
    look: Look,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[list[Change]]:
    """Submits and watches jobs until all have ended; yields the changes since the last look."""
    began = clock()
    waiting = list(plan)
    alive: dict[str, tuple[PlannedJob, Life]] = {}
    while waiting or alive:
        changes = []
        while waiting and waiting[0].at <= clock() - began:
            planned = waiting.pop(0)
            life = submit(planned)
            alive[life.job] = planned, life
            changes.append(Change("submitted", planned, life))
        for job, life in look(list(alive)).items() if alive else ():
            planned, before = alive[job]
            alive[job] = planned, life
            if before.start is None and life.start is not None:
                changes.append(Change("started", planned, life))
            if life.finish is not None:
                del alive[job]
                changes.append(Change("finished", planned, life))
        yield changes
        if waiting or alive:
            due = waiting[0].at - (clock() - began) if waiting else LOOK_EVERY_S
            sleep(max(0.0, min(due, LOOK_EVERY_S)))


class Ledger:
    """A CSV file of changes. Each row is written at once, so a kill leaves only complete rows."""

    def __init__(self, path: Path) -> None:
        """Appends to a file of an earlier run; any other file is refused."""
        heading = _row(COLUMNS)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            size = os.fstat(self._file).st_size
            start, end = os.pread(self._file, len(heading), 0), os.pread(self._file, 1, max(0, size - 1))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        if size == 0:
            self._write(heading)
        elif start != heading or end != b"\n":
            os.close(self._file)
            raise InputError(f"{path}: not written by the generator; expected the columns {','.join(COLUMNS)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def add(self, change: Change) -> None:
        life = change.life
        times = [_second(time) for time in (life.submit, life.start, life.finish, life.jct)]
        self._write(_row((change.event, life.job, change.planned.name, change.planned.task, *times, life.state)))

    def _write(self, row: bytes) -> None:
        os.write(self._file, row)


def _row(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _second(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f}"
