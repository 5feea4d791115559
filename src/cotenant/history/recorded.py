# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a recording as a whole: the jobs with their waits and runs, and the machines that they ran on."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from cotenant.core.model import Job, Machine, Slot
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.wire.decision import RecordedDecision
from cotenant.wire.recording import LONGEST_LINE, Arrived, Begin, Decided, Ended, Follower, Line, decode_lines
from cotenant.wire.text import counted

LARGEST_FILE = 2 * 1024**3
QUEUED = "queued"


class Stay(NamedTuple):
    """A time that a job spent on its GPUs."""

    begin: float
    end: float
    slots: tuple[Slot, ...]


@dataclass(slots=True)
class JobRun:
    """A job of a recording: when it came, started and ended."""

    job: Job
    arrived: float
    name: str = ""
    user: str = ""
    team: str = ""
    namespace: str = ""
    first_started: float | None = None
    started: float | None = None
    """of its last run"""
    ended: float | None = None
    outcome: str = ""
    speed: float | None = None
    """mean measured speed of its last run, as a part of its speed alone"""
    slots: tuple[Slot, ...] = ()
    requeued: int = 0
    """how often it was stopped and queued again"""
    before: bool = False
    """it already ran when the recording began"""
    earlier: tuple["Stay", ...] = ()
    """its runs before the last one"""

    def seconds(self, until: float) -> float:
        """How long its last run took, or takes so far."""
        if self.started is None:
            return 0.0
        return max(0.0, (until if self.ended is None else self.ended) - self.started)

    def stays(self, until: float) -> list[Stay]:
        """All of its runs."""
        if self.started is None:
            return list(self.earlier)
        end = until if self.ended is None else self.ended
        return [*self.earlier, Stay(self.started, max(self.started, end), self.slots)]


@dataclass(slots=True)
class Recording:
    """Everything that a recording says."""

    source: str
    begin: Begin | None = None
    """the first one"""
    start: float = 0.0
    end: float = 0.0
    jobs: dict[str, JobRun] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    decisions: int = 0
    """placements"""
    refusals: int = 0
    parts: int = 0
    """how often recording began: once, and again after each restart or gap"""

    def notes(self) -> list[str]:
        """What a reader should know about jobs of which not everything was recorded."""
        jobs = self.jobs.values()
        found = {
            "already ran when the recording began, and {count} from then on": sum(one.before for one in jobs),
            "had not ended when the recording ended, and {count} until then": sum(
                one.started is not None and one.ended is None for one in jobs
            ),
            "never started, and {are} left out": sum(one.started is None for one in jobs),
        }
        words = {"count": ("counts", "count"), "are": ("is", "are")}
        return [
            f"{counted(count, 'job')} " + text.format(**{name: forms[count != 1] for name, forms in words.items()})
            for text, count in found.items()
            if count
        ]


def read_recording(lines: Iterable[bytes], source: str) -> Recording:
    """Reads all lines; InputError names the line that is wrong."""
    found = Recording(source)
    for _, line in decode_lines(lines, source):
        found.end = max(found.end, float(line.at))
        if isinstance(line, Begin):
            _begin(found, line)
        elif isinstance(line, Arrived):
            _arrived(found, line)
        elif isinstance(line, Decided):
            _decided(found, line)
        else:
            _ended(found, line)
    if found.begin is None:
        raise InputError(f"{source}: no line of type begin; expected a whole recording of `cotenant decisions`")
    return found


def open_recording(path: Path) -> Iterator[bytes]:
    """The lines of a file; InputError if it cannot be read or is too large."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path}: larger than {LARGEST_FILE // 1024**3} GiB; expected a recording")
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE + 2):
                yield line
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a recording") from None


def recorded_decisions(lines: Iterable[bytes], source: str) -> Iterator[tuple[int, RecordedDecision, bool]]:
    """Each decision with its line number, and whether its predictions were recorded in full."""
    follower = Follower()
    for number, line in decode_lines(lines, source):
        follower.apply(line)
        if isinstance(line, Decided):
            yield number, follower.decision(line, f"{source}:{number}"), not line.partial


def _begin(found: Recording, line: Begin) -> None:
    at = float(line.at)
    if found.begin is None:
        found.begin, found.start = line, at
    found.parts += 1
    running = {tenant.job: (node, tenant) for node in line.nodes for tenant in node.tenants}
    for name, run in found.jobs.items():
        if run.started is not None and run.ended is None and name not in running:
            run.ended, run.outcome = at, "lost"  # it ended while nothing was recorded
    for name, (node, tenant) in running.items():
        if name not in found.jobs:
            job = Job(id=name, demand=tenant.demand, submitted=Seconds(at))
            slots = (Slot(node.machine.name, tenant.gpus),)
            found.jobs[name] = JobRun(job, at, first_started=at, started=at, slots=slots, before=True)
    _note_machines(found, line)


def _arrived(found: Recording, line: Arrived) -> None:
    known = found.jobs.get(line.job.id)
    if known is None or (known.ended is not None and known.outcome != QUEUED):
        found.jobs[line.job.id] = JobRun(line.job, float(line.at), line.name, line.user, line.team, line.namespace)
    elif known.before and not known.user:
        known.name, known.user, known.team, known.namespace = line.name, line.user, line.team, line.namespace


def _decided(found: Recording, line: Decided) -> None:
    run = found.jobs.setdefault(line.job.id, JobRun(line.job, float(line.at)))
    _note_machines(found, line)
    if not line.slots:
        found.refusals += 1
        return
    found.decisions += 1
    run.started, run.slots, run.ended, run.speed = float(line.at), line.slots, None, None
    run.first_started = run.started if run.first_started is None else run.first_started


def _ended(found: Recording, line: Ended) -> None:
    run = found.jobs.get(line.job)
    if run is None or run.started is None:
        return
    run.speed = line.speed
    if line.outcome == QUEUED:
        run.earlier = (*run.earlier, Stay(run.started, max(run.started, float(line.at)), run.slots))
        run.started, run.requeued = None, run.requeued + 1
    else:
        run.ended, run.outcome = max(run.started, float(line.at)), line.outcome


def _note_machines(found: Recording, line: Line) -> None:
    """Machines as they were last, but healthy and open: jobs ran on them before."""
    assert isinstance(line, Begin | Decided)
    for node in line.nodes:
        gpus = tuple(replace(gpu, healthy=True, cordoned=False) for gpu in node.machine.gpus)
        found.machines[node.machine.name] = replace(node.machine, gpus=gpus)
