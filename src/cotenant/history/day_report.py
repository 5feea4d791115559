# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a machine or cluster did in a period: use, sharing, waits, slowdowns, and GPU-hours saved; version 1.

The GPU-hours saved compare what was occupied with what the same jobs would have occupied with GPUs of their own. How
long a job would have run alone is known if its speed was measured, or if it had no neighbour. For the others it lies
between two bounds, and so does the sum.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from cotenant import __version__
from cotenant.history.occupancy import Occupancy, occupancy
from cotenant.history.recorded import JobRun, Recording

VERSION = 1
HOUR_S = 3600.0
METHOD = (
    "GPU-hours that the same jobs would have occupied with GPUs of their own, minus the GPU-hours in which a GPU had "
    "at least one job. Time alone = time measured × mean measured speed. If the speed of a job that shared was not "
    "measured: at most the time measured (no slowdown), at least that divided by the most tenants that its GPU had; "
    "the estimate uses the mean of the measured speeds, or the middle. Measured speeds are taken as exact."
)


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Values of several jobs."""

    count: int = 0
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    highest: float | None = None


class GpuHours(msgspec.Struct, frozen=True, kw_only=True):
    """Hours of GPUs in the period."""

    capacity: float
    occupied: float
    """with at least one job"""
    shared: float
    """with at least two jobs"""
    jobs: float
    """summed over jobs: an hour of a GPU with two jobs counts twice"""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours saved by sharing, against GPUs of its own for each job."""

    estimate: float
    low: float
    high: float
    alone: float
    """GPU-hours that the jobs would have occupied alone (estimate)"""
    measured: int
    """jobs that shared and whose speed was measured"""
    unmeasured: int
    """jobs that shared and whose speed was not: they make the interval"""
    method: str = METHOD


class Exclusive(msgspec.Struct, frozen=True, kw_only=True):
    """The same jobs, replayed by the simulator with one job on each GPU."""

    jobs: int
    unplaceable: int
    mean_wait_s: float | None = None
    p95_wait_s: float | None = None
    mean_completion_s: float | None = None
    hours: float = 0.0
    """from the first arrival to the last end"""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs, or those of one user, team or namespace."""

    by: str
    name: str
    jobs: int
    finished: int
    failed: int
    requeued: int
    gpu_hours: float
    """its part of the occupied GPU-hours; an hour of a shared GPU is divided equally among its tenants"""
    shared_percent: float
    """of the time that its jobs spent on GPUs"""
    mean_wait_s: float | None
    p95_wait_s: float | None
    mean_slowdown: float | None
    """of the jobs whose speed was measured; 1: as fast as alone"""


class DayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report."""

    version: int
    cotenant: str
    engine: str
    policy: str
    since: float
    until: float
    nodes: int
    gpus: int
    came: int
    started: int
    outcomes: dict[str, int]
    gpu_hours: GpuHours
    utilisation: float | None
    """mean percent of the time in which GPUs computed; null: not recorded"""
    memory_percent: float | None
    """mean percent of the memory of GPUs in use; null: not recorded"""
    waits_s: Distribution
    slowdowns: Distribution
    saved: Saved
    groups: tuple[Group, ...] = ()
    exclusive: Exclusive | None = None
    notes: tuple[str, ...] = ()


class Use(NamedTuple):
    """What all GPUs did in a period, as it was measured; None: not known."""

    utilisation: float | None = None
    """mean percent of the time in which they computed"""
    memory_percent: float | None = None
    """mean percent of their memory in use"""


def make_report(
    recording: Recording,
    since: float,
    until: float,
    *,
    use: Use = Use(),  # noqa: B008 -- immutable
    exclusive: Exclusive | None = None,
    namespaces: frozenset[str] | None = None,
    notes: Iterable[str] = (),
) -> DayReport:
    """The report of a period; with `namespaces`, only about their jobs. `notes` are added to those of the recording."""
    begin = recording.begin
    assert begin is not None
    since, until = max(since, recording.start), max(until, recording.start)
    runs = [
        run
        for run in recording.jobs.values()
        if _concerns(run, since, until, recording.end) and (namespaces is None or run.namespace in namespaces)
    ]
    held = occupancy(runs, since, until, recording.end)
    gpus = sum(len(machine.gpus) for machine in recording.machines.values())
    started = [run for run in runs if run.first_started is not None]
    measured = [1 / run.speed for run in started if run.speed]
    return DayReport(
        version=VERSION,
        cotenant=__version__,
        engine=begin.engine,
        policy=begin.policy,
        since=since,
        until=until,
        nodes=len(recording.machines),
        gpus=gpus,
        came=sum(since <= run.arrived < until and not run.before for run in runs),
        started=len(started),
        outcomes=_outcomes(runs),
        gpu_hours=GpuHours(
            capacity=gpus * (until - since) / HOUR_S,
            occupied=held.occupied / HOUR_S,
            shared=held.shared / HOUR_S,
            jobs=held.tenants / HOUR_S,
        ),
        utilisation=use.utilisation,
        memory_percent=use.memory_percent,
        waits_s=distribution(map(_wait, started)),
        slowdowns=distribution(measured),
        saved=_saved(started, held, since, until, recording.end),
        groups=tuple(_groups(runs, held)),
        exclusive=exclusive,
        notes=(*recording.notes(), *(_cluster_notes(runs) if begin.engine == "kubernetes" else ()), *notes),
    )


def _cluster_notes(runs: Iterable[JobRun]) -> Iterable[str]:
    """What a reader of a report on a Kubernetes cluster should know."""
    if any(run.user or run.team for run in runs):
        yield "users and teams are labels that the owners of pods set, and are not checked"


def distribution(values: Iterable[float]) -> Distribution:
    ordered = sorted(values)
    if not ordered:
        return Distribution()
    place = min(len(ordered) - 1, int(0.95 * len(ordered)))
    return Distribution(
        count=len(ordered),
        mean=fmean(ordered),
        median=median(ordered),
        p95=ordered[place],
        highest=ordered[-1],
    )


def _concerns(run: JobRun, since: float, until: float, end: float) -> bool:
    """Whether a job came, waited or ran in the period."""
    last = end if run.ended is None else run.ended
    return run.arrived < until and last >= since


def _wait(run: JobRun) -> float:
    return 0.0 if run.before or run.first_started is None else max(0.0, run.first_started - run.arrived)


def _outcomes(runs: Iterable[JobRun]) -> dict[str, int]:
    found: dict[str, int] = {}
    for run in runs:
        word = run.outcome or ("waiting" if run.started is None else "running")
        found[word] = found.get(word, 0) + 1
    return dict(sorted(found.items()))


def _saved(runs: Sequence[JobRun], use: Occupancy, since: float, until: float, end: float) -> Saved:
    known = [run.speed for run in runs if run.speed and use.crowd.get(run.job.id, 1) > 1]
    typical = fmean(min(1.0, speed) for speed in known) if known else None
    low = estimate = high = 0.0
    unmeasured = 0
    for run in runs:
        seconds = sum(
            max(0.0, min(stay.end, until) - max(stay.begin, since)) * sum(len(slot.gpus) for slot in stay.slots)
            for stay in run.stays(end)
        )
        crowd = use.crowd.get(run.job.id, 1)
        least, usual, most = 1.0, 1.0, 1.0
        if crowd > 1 and run.speed:
            least = usual = most = min(1.0, run.speed)
        elif crowd > 1:
            unmeasured += 1
            least = 1 / crowd
            usual = (least + 1) / 2 if typical is None else max(least, typical)
        low, estimate, high = low + seconds * least, estimate + seconds * usual, high + seconds * most
    occupied = use.occupied
    return Saved(
        estimate=(estimate - occupied) / HOUR_S,
        low=(low - occupied) / HOUR_S,
        high=(high - occupied) / HOUR_S,
        alone=estimate / HOUR_S,
        measured=len(known),
        unmeasured=unmeasured,
    )


GROUPINGS: Mapping[str, Callable[[JobRun], str]] = {
    "user": lambda run: run.user,
    "team": lambda run: run.team,
    "namespace": lambda run: run.namespace,
}


def _groups(runs: Sequence[JobRun], use: Occupancy) -> Iterable[Group]:
    yield _group("all", "all", runs, use)
    for by, name_of in GROUPINGS.items():
        names = sorted({name_of(run) for run in runs})
        for name in names if names != [""] else ():
            own = [run for run in runs if name_of(run) == name]
            yield _group(by, name or "(none)", own, use)


def _group(by: str, name: str, runs: Sequence[JobRun], use: Occupancy) -> Group:
    waits = distribution(_wait(run) for run in runs if run.first_started is not None)
    slow = [1 / run.speed for run in runs if run.speed]
    held = sum(use.by_job.get(run.job.id, 0.0) for run in runs)
    beside = sum(use.beside.get(run.job.id, 0.0) for run in runs)
    seconds = sum(use.seconds.get(run.job.id, 0.0) for run in runs)
    return Group(
        by=by,
        name=name,
        jobs=len(runs),
        finished=sum(run.outcome == "finished" for run in runs),
        failed=sum(run.outcome in ("failed", "lost") for run in runs),
        requeued=sum(run.requeued for run in runs),
        gpu_hours=held / HOUR_S,
        shared_percent=100 * beside / seconds if seconds else 0.0,
        mean_wait_s=waits.mean,
        p95_wait_s=waits.p95,
        mean_slowdown=fmean(slow) if slow else None,
    )
