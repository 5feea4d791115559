# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A plan is carried out at its times, and what happened is in the file, whenever one looks."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.workloads.driving import COLUMNS, Change, Ledger, Life, drive
from cotenant.workloads.generator import PlannedJob, plan


class OneAtATime:
    """A machine that runs jobs one after the other, in a time of its own."""

    def __init__(self, length: float) -> None:
        self.now = 100.0
        self._length = length
        self._free = 0.0
        self._jobs: dict[str, Life] = {}
        self.asked: list[Sequence[str]] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now

    def submit(self, planned: PlannedJob) -> Life:
        start = max(self.now, self._free)
        self._free = start + self._length
        life = Life(job=planned.name, submit=self.now, start=start, finish=self._free, state="done")
        self._jobs[life.job] = life
        return replace(life, start=None, finish=None, state="queued")

    def look(self, jobs: Sequence[str]) -> Mapping[str, Life]:
        self.asked.append(jobs)
        return {job: self._seen(self._jobs[job]) for job in jobs}

    def _seen(self, life: Life) -> Life:
        assert life.start is not None
        assert life.finish is not None
        return replace(
            life,
            start=life.start if life.start <= self.now else None,
            finish=life.finish if life.finish <= self.now else None,
        )


def carried_out(jobs: Sequence[PlannedJob], machine: OneAtATime) -> list[Change]:
    rounds = drive(jobs, machine.submit, machine.look, clock=machine.clock, sleep=machine.sleep)
    return [change for changes in rounds for change in changes]


def test_each_job_is_submitted_when_it_is_due_and_followed_to_its_end() -> None:
    jobs = plan(jobs=3, arrivals=[0.0, 2000.0, 3000.0])
    changes = carried_out(jobs, OneAtATime(length=5.0))
    submitted = [change for change in changes if change.event == "submitted"]
    assert [change.life.submit - 100 for change in submitted] == pytest.approx([0.0, 2.0, 3.0])
    for job in jobs:
        events = [change.event for change in changes if change.planned is job]
        assert events == ["submitted", "started", "finished"]
    ends = [change.life for change in changes if change.event == "finished"]
    assert [life.jct for life in ends] == pytest.approx([5.0, 8.0, 12.0])
    assert [life.ran for life in ends] == pytest.approx([5.0, 5.0, 5.0])


def test_a_job_that_ran_between_two_looks_is_told_whole() -> None:
    changes = carried_out(plan(jobs=1), OneAtATime(length=0.0))
    assert [change.event for change in changes] == ["submitted", "started", "finished"]


def test_jobs_that_have_ended_are_not_asked_for_again() -> None:
    machine = OneAtATime(length=1.0)
    carried_out(plan(jobs=3, scale=0), machine)
    assert [len(asked) for asked in machine.asked] == [3, 3, 3, 2, 2, 1, 1]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_file_says_what_is_known_at_each_event(tmp_path: Path) -> None:
    with Ledger(tmp_path / "jobs.csv") as ledger:
        for change in carried_out(plan(jobs=1, mix={"lstm": 1.0}), OneAtATime(length=2.5)):
            ledger.add(change)
    submitted, started, finished = rows(tmp_path / "jobs.csv")
    assert (submitted["event"], submitted["submit"], submitted["start"]) == ("submitted", "100.000", "")
    assert (started["event"], started["start"], started["finish"]) == ("started", "100.000", "")
    assert (finished["finish"], finished["jct_s"], finished["state"]) == ("102.500", "2.500", "done")
    assert (finished["job"], finished["name"], finished["task"]) == ("lstm-1", "lstm-1", "lstm")


def test_a_second_run_goes_on_behind_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        with Ledger(tmp_path / "jobs.csv") as ledger:
            ledger.add(Change("submitted", plan(jobs=1)[0], Life(job="j-1", submit=1.0)))
    assert [row["event"] for row in rows(tmp_path / "jobs.csv")] == ["submitted"] * 2


@pytest.mark.parametrize("content", ["a,b\n1,2\n", ",".join(COLUMNS), "\n"])
def test_a_file_of_somebody_else_is_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(content)
    with pytest.raises(InputError, match="not written by the generator; expected the columns event,job"):
        Ledger(path)
    assert path.read_text() == content


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        Ledger(tmp_path / "nowhere" / "jobs.csv")


WRITER = """
import sys
from pathlib import Path
from cotenant.workloads.driving import Change, Ledger, Life
from cotenant.workloads.generator import plan
job = plan(jobs=1)[0]
with Ledger(Path(sys.argv[1])) as ledger:
    while True:
        ledger.add(Change("finished", job, Life(job="j-000001", submit=1.0, start=2.0, finish=3.0, state="done")))
"""


def test_a_killed_generator_leaves_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    writing = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size > 100_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(writing.pid, signal.SIGKILL)
    writing.wait()
    assert path.read_bytes().endswith(b"\n")
    written = rows(path)
    assert len(written) > 100
    assert {row["jct_s"] for row in written} == {"2.000"}
