# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Timed mode: jobs arrive, wait in the queue, run and end, on a simulated clock.

The simulator makes no scheduling decision itself: it calls `decide` with the queue and the cluster, and schedules the
end of every job that was placed. The same trace and seed give the same report, byte for byte.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from random import Random

import numpy as np

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, Mix, inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Demand, Job, Machine, Placement
from cotenant.core.placement.deciding import Decision, Queue, decide, judge_again, place_gang, queue_position
from cotenant.core.placement.policies import PREEMPTIVE, build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.queueing.backfill import Ends, Reservation
from cotenant.core.queueing.preemption import find_preemptions
from cotenant.core.sharing.gates import find_move
from cotenant.core.sharing.speeds import Belief, Predicted
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival
from cotenant.sim.contention import Contention, Jobs, World
from cotenant.sim.fill import ONLINE, Watch
from cotenant.sim.metrics import FragmentationMeter, GpuRows, TimeAverages, quantiles
from cotenant.sim.results import HeatMap, RunResult

ALLOCATED, QUEUED, FRAGMENTED = range(3)
CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The settings of a timed run, besides the trace and the machines."""

    queue: str = "fifo"
    backfill: bool = True
    """whether GPUs are reserved for the first job that does not fit, so that later jobs do not delay it"""
    round: Seconds = Seconds(300.0)
    """time between rounds of preemption, for the queue orders that preempt"""
    restart: Seconds = Seconds(30.0)
    """work that a preempted job loses"""
    startup: Seconds = Seconds(0.0)
    """time from the start of a job until it works; it holds its GPUs meanwhile, and slows no other job"""
    look: Seconds = Seconds(120.0)
    """time that new neighbours run together until their speeds are measured and a trial placement is judged"""
    noise: float = 0.0
    """standard deviation of the logarithm of measured speeds"""
    tick: Seconds = Seconds(0.0)
    """jobs start only at multiples of this time; 0: as soon as they fit"""
    rest: Seconds = Seconds(0.0)
    """with a tick, the least time between two decisions; one is due after a job arrived or ended"""
    repair: bool = False
    """whether jobs that share a GPU move to GPUs that become idle, at the cost of a restart"""
    fragmentation: bool = True
    """whether fragmentation is measured after every event, which takes time on large clusters"""
    heat: bool = True
    """whether the data of the heat map is recorded"""


@dataclass(slots=True)
class _Running:
    """A running job, its placements and its true progress."""

    job: Job
    placements: tuple[Placement, ...]
    arrival: Arrival
    started: float
    ends: float
    crowding: float
    """of the cluster when the job started"""
    unjudged: bool = True
    """whether its effect on its neighbours has not been measured yet"""
    rate: float = 1.0
    """progress per second, relative to the speed at which the trace's durations were taken"""
    done: float = 0.0
    """seconds of its work completed in this start, up to `since`"""
    since: float = 0.0
    """in the future while the job starts up"""

    def update_progress(self, now: float) -> None:
        """Adds the work done since the last update; must be called before `rate` changes."""
        self.done += max(0.0, now - self.since) * self.rate
        self.since = max(self.since, now)


@dataclass(slots=True)
class _Progress:
    """The remaining work and the waiting time of a job, over all its starts."""

    arrival: Arrival
    left: float
    waiting_since: float
    waited: float = 0.0


@dataclass(slots=True)
class _Tally:
    """Counters and samples of the whole run."""

    waits: list[float] = field(default_factory=list)
    completions: list[float] = field(default_factory=list)
    unplaceable: int = 0
    preemptions: int = 0
    shared: int = 0
    """starts on a GPU that already had a tenant"""
    trials: int = 0
    reverted: int = 0
    moved: int = 0


class TimedRun:
    """One policy on one trace. `run` consumes the arrivals once, and keeps no state of jobs that have ended."""

    def __init__(
        self,
        machines: Iterable[Machine],
        policy: str,
        mix: Mix,
        seed: int,
        timing: Timing,
        watches: Sequence[Watch] = (),
        world: World | None = None,
        belief: Belief | None = None,
    ) -> None:
        machines = list(machines)
        belief = Predicted() if belief is None else belief
        self._watches = watches
        self._timing = timing
        self._empty = self._cluster = Cluster.of(machines)
        inventory = inventory_of(machines)
        spec = policy.removesuffix(ONLINE)
        self._learner = Learner(spec, inventory, timing.queue, (), belief) if policy.endswith(ONLINE) else None
        known = Knowledge(mix, inventory, belief)
        self._ranker = self._learner.ranker if self._learner else Ranker(build_policy(spec, known, timing.queue))
        self._queue = Queue(self._ranker.policy)
        self._ends = Ends()
        self._reservation: Reservation | None = None
        random = Random(seed)
        self._draw = random.randrange
        self._contention = (
            None if world is None else Contention(world, belief, timing.look, timing.noise, random, timing.startup)
        )
        self._meter = FragmentationMeter(mix, self._cluster) if timing.fragmentation else None
        self._rows = GpuRows(self._cluster)
        self._capacity = float(self._rows.capacity.sum())
        self._levels = np.zeros(CHANNELS + (self._rows.rows if timing.heat else 0))
        self._finishes: list[tuple[float, int, str]] = []
        self._sequence = 0
        self._running: dict[str, _Running] = {}
        self._progress: dict[str, _Progress] = {}
        self._placeable: dict[tuple[Demand, int], bool] = {}
        self._tally = _Tally()

    def run(self, arrivals: Iterator[Arrival]) -> "TimedRun":
        upcoming = next(arrivals, None)
        start = self._now = float(upcoming.job.submitted) if upcoming is not None else 0.0
        self._averages = TimeAverages(len(self._levels), start)
        self._start, self._next_round = start, math.inf
        self._next_start, self._last_start = math.inf, -math.inf
        # The loop jumps from one event time to the next: an arrival, the end of a job or of its start-up, a
        # measurement, a preemption round, and with a tick the next time at which jobs may start.
        # Invariants at the top of each iteration:
        # - `self._cluster` holds exactly the placements of `self._running`; every waiting job is in `self._queue`, and
        #   `self._progress` has an entry for exactly the jobs that wait or run.
        # - `self._finishes` has an entry (ends, sequence, job) with the current `ends` of every running job. Entries
        #   whose `ends` differs from the job's are stale (the job was preempted, or its rate changed) and are skipped
        #   when they reach the top; deleting them from the heap at once would cost a search.
        # - `self._levels` are the values of the metrics since `self._now`; `_advance` integrates them before any event
        #   of the new time changes them.
        # At one time, ends come before arrivals, so that a new job sees the freed GPUs; ties between ends are broken
        # by the sequence number, never by job ID or by hash order. This makes runs reproducible.
        while upcoming is not None or self._running or (len(self._queue) and self._next_start < math.inf):
            arrives = float(upcoming.job.submitted) if upcoming is not None else math.inf
            now = min(arrives, self._next_finish(), self._next_round, self._next_start)
            if self._contention is not None:
                now = min(now, self._contention.next_measurement, self._contention.next_wake)
            self._advance(now)
            freed = self._finish_due(now)
            if self._contention is not None:
                for job_id in self._contention.wake(now):
                    if job_id in self._running:
                        self._update_rates(self._contention, self._running[job_id].placements, now)
                while (jobs := self._contention.measure_next(self._cluster, now)) is not None:
                    freed |= self._judge_newest(jobs, now)
            new_jobs: list[Job] = []
            while upcoming is not None and upcoming.job.submitted <= now:
                new_jobs += self._admit(upcoming, now)
                upcoming = next(arrivals, None)
            if self._timing.tick:
                self._place_at_ticks(freed or bool(new_jobs), now)
            else:
                # If nothing was freed, no job of the queue fits now that did not fit before, so only new jobs are
                # tried. There are two exceptions: a policy with a sharing gate, whose answer may change with time and
                # measurements, and a new job before the one with the reservation, which may end that reservation.
                every = freed or self._ranker.policy.gate is not None or self._comes_first(new_jobs)
                self._place(self._queue if every else new_jobs, now)
            if self._timing.repair:
                self._repair(now)
            if now >= self._next_round:
                self._preempt(now)
            if self._timing.queue in PREEMPTIVE:
                self._next_round = self._next_round_after(now) if len(self._queue) and self._running else math.inf
            self._levels[QUEUED] = len(self._queue)
        return self

    @property
    def now(self) -> float:
        """The simulated time."""
        return self._now

    def result(self, policy: str, seed: int) -> RunResult:
        tally, mean = self._tally, self._averages.mean()
        edges, rows = self._averages.series()
        jobs = len(tally.completions)
        waits, completions = quantiles(tally.waits), quantiles(tally.completions)
        summary = {
            "jobs": float(jobs),
            "unplaceable": float(tally.unplaceable),
            "makespan": self._now - self._start,
            "utilisation": float(mean[ALLOCATED]),
            "preemptions": float(tally.preemptions),
        }
        if self._contention is not None:
            summary |= {
                "shared": float(tally.shared),
                "trials": float(tally.trials),
                "reverted": float(tally.reverted),
                "moved": float(tally.moved),
            }
        if jobs:
            summary |= {
                "mean_wait": float(np.mean(tally.waits)),
                "p95_wait": waits[95],
                "mean_jct": float(np.mean(tally.completions)),
                "median_jct": completions[50],
                "p95_jct": completions[95],
            }
        series = {
            "time": edges,
            "allocated": rows[:, ALLOCATED].round(3).tolist(),
            "queued": rows[:, QUEUED].round(3).tolist(),
        }
        if self._meter is not None:
            summary["fragmented"] = float(mean[FRAGMENTED])
            series["fragmented"] = rows[:, FRAGMENTED].round(3).tolist()
        return RunResult(
            policy=policy,
            seed=seed,
            summary={name: round(value, 6) for name, value in summary.items()},
            series=series,
            quantiles={"wait": waits, "jct": completions} if jobs else {},
            heat=self._heat(edges, rows[:, CHANNELS:]) if self._timing.heat else None,
        )

    def _heat(self, edges: list[float], used: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> HeatMap:
        every = max(1, len(edges) // 128)
        percent = (100 * used[::every] / self._rows.capacity).round(1)
        return HeatMap(columns=edges[::every], rows=self._rows.labels, values=percent.T.tolist())

    def _advance(self, now: float) -> None:
        self._averages.hold(self._levels, now)
        self._now = now

    def _admit(self, arrival: Arrival, now: float) -> list[Job]:
        """Adds a new job to the queue; a job that does not fit even the empty cluster is counted and dropped."""
        job = arrival.job
        if self._learner is not None and self._learner.observe(job.demand):
            self._ranker = self._learner.ranker
        shape = (job.demand, job.replicas)
        if shape not in self._placeable:
            self._placeable[shape] = place_gang(self._ranker, job, self._empty) is not None
        if not self._placeable[shape]:
            self._tally.unplaceable += 1
            self._report_refused([job])
            return []
        if job.id in self._progress:  # parsers find duplicates only among the first IDs
            raise InputError(
                f"job {job.id!r} appears twice in the trace while it waits or runs; expected unique job IDs"
            )
        self._progress[job.id] = _Progress(arrival, float(arrival.duration or 0.0), now)
        self._queue.add(job, Seconds(now))
        return [job]

    def _place_at_ticks(self, changed: bool, now: float) -> None:
        """Places the queue if it is time for that; if a job came or ended since, sets the time of the next decision."""
        if now >= self._next_start:
            self._place(self._queue, now)
            self._last_start, self._next_start = now, math.inf
        elif changed and self._next_start == math.inf:
            earliest = max(now, self._last_start + self._timing.rest) - self._start
            self._next_start = self._start + math.ceil(earliest / self._timing.tick) * self._timing.tick

    def _place(self, waiting: Iterable[Job], now: float) -> None:
        if not len(self._queue):  # as after the end of most jobs
            self._reservation = None
            return
        decision = decide(
            self._ranker.policy,
            waiting,
            self._cluster,
            Seconds(now),
            ranker=self._ranker,
            draw=self._draw,
            ends=self._ends if self._timing.backfill else None,
            reservation=self._reservation,
        )
        self._reservation = decision.reservation
        by_job: dict[str, list[Placement]] = {}
        for placement in decision.placements:
            by_job.setdefault(placement.job.id, []).append(placement)
        if self._watches:
            self._report_placed(by_job, decision)
        self._cluster = decision.cluster
        if self._watches and not isinstance(waiting, Queue):
            self._report_refused([job for job in waiting if job.id not in by_job])
        for placements in by_job.values():
            self._start_job(tuple(placements), now, decision.crowding)
        if self._contention is not None:
            for placements in by_job.values():
                sharing = self._update_rates(self._contention, placements, now)
                self._contention.schedule_measurements(sharing, now)
                self._tally.shared += any(len(jobs) > 1 for jobs in sharing.values())

    def _comes_first(self, new_jobs: Sequence[Job]) -> bool:
        """Whether one of these jobs is before the job with the reservation."""
        if self._reservation is None:
            return False
        return any(self._queue.position(job.id) < self._reservation.position for job in new_jobs)

    def _report_refused(self, jobs: Sequence[Job]) -> None:
        """Reports to the watches the new jobs that were not placed."""
        for job in jobs:
            for watch in self._watches:
                watch(job, self._cluster, self._ranker.policy, None)

    def _report_placed(self, by_job: dict[str, list[Placement]], decision: Decision) -> None:
        """Reports to the watches each placed job, with the cluster before and after its own placements."""
        cluster = self._cluster
        for placements in by_job.values():
            after = cluster
            for placement in placements:
                after = after.place(placement)
            job, seen = placements[0].job, cluster
            if decision.reservation is not None and not decision.overtaking.get(job.id, True):
                seen = decision.reservation.without_reserved(cluster)
            for watch in self._watches:
                own = Decision(tuple(placements), after, decision.crowding, decision.kept)
                watch(job, seen, self._ranker.policy, own)
            cluster = after

    def _start_job(self, placements: tuple[Placement, ...], now: float, crowding: float) -> None:
        job = placements[0].job
        progress = self._progress[job.id]
        progress.waited += now - progress.waiting_since
        self._queue.remove(job)
        self._ends.add(placements, Seconds(now))
        works_from = now + self._timing.startup
        running = _Running(
            job, placements, progress.arrival, now, works_from + progress.left, crowding, since=works_from
        )
        self._running[job.id] = running
        self._count(placements, +1)
        self._tally.trials += any(placement.trial for placement in placements)
        if self._contention is None:  # otherwise its rate depends on the other jobs that start now; `_place` sets it
            self._push_finish(running)
        else:
            self._contention.begin(job.id, now)

    def _push_finish(self, running: _Running) -> None:
        self._sequence += 1
        heappush(self._finishes, (running.ends, self._sequence, running.job.id))

    def _next_finish(self) -> float:
        """The time at which the next job ends, or infinity; drops stale entries from the heap."""
        finishes = self._finishes
        while finishes:
            ends, _, job_id = finishes[0]
            running = self._running.get(job_id)
            if running is not None and running.ends == ends:
                return ends
            heappop(finishes)
        return math.inf

    def _finish_due(self, now: float) -> bool:
        freed = False
        while self._next_finish() <= now:
            _, _, job_id = heappop(self._finishes)
            running = self._running.pop(job_id)
            progress = self._progress.pop(job_id)
            self._release(running, now)
            self._tally.waits.append(progress.waited)
            self._tally.completions.append(now - float(running.job.submitted))
            freed = True
        return freed

    def _release(self, running: _Running, now: float) -> None:
        self._ends.remove(running.job.id)
        for placement in running.placements:
            self._cluster = self._cluster.finish(placement)
        self._count(running.placements, -1)
        if self._contention is not None:
            self._update_rates(self._contention, running.placements, now)

    def _update_rates(
        self, contention: Contention, placements: Sequence[Placement], now: float
    ) -> dict[tuple[str, int], Jobs]:
        """Recomputes the rate and the end of every job on the GPUs of these placements; returns the jobs of each
        GPU."""
        sharing = contention.tenants(self._cluster, placements)
        for job_id in dict.fromkeys(job_id for jobs in sharing.values() for job_id in jobs):
            running = self._running[job_id]
            running.update_progress(now)
            running.rate = contention.rate(self._cluster, running.placements)
            left = max(0.0, self._progress[job_id].left - running.done)
            running.ends = now + left / running.rate if running.rate else math.inf  # infinite until it has started up
            self._push_finish(running)
        return sharing

    def _judge_newest(self, jobs: Jobs, now: float) -> bool:
        """Judges the job that started last by the measured speeds: if the policy would no longer place it there, it
        goes back to the queue. Jobs that were there before stay. Returns whether GPUs were freed."""
        newest = max(reversed(jobs), key=lambda job_id: self._running[job_id].started)
        running = self._running[newest]
        if not running.unjudged:
            return False
        running.unjudged = False
        verdicts = [
            judge_again(self._ranker.policy, placement, self._cluster, running.crowding)
            for placement in running.placements
        ]
        if all(verdict.reason is None for verdict in verdicts):
            return False
        del self._running[newest]
        self._requeue(running, self._attained(running, now), now)
        self._tally.reverted += 1
        return True

    def _count(self, placements: tuple[Placement, ...], sign: int) -> None:
        """Updates allocation and fragmentation after these placements were added (+1) or removed (-1)."""
        demand = placements[0].job.demand
        for placement in placements:
            slot = placement.slot
            compute = sign * demand.compute
            if self._timing.heat:
                self._rows.add(self._levels[CHANNELS:], slot.node, slot.gpus, compute)
            self._levels[ALLOCATED] += 100.0 * compute * len(slot.gpus) / self._capacity
            if self._meter is not None:
                self._meter.update(self._cluster.index[slot.node], self._cluster.node(slot.node))
        if self._meter is not None:
            self._levels[FRAGMENTED] = 100.0 * self._meter.read()[0] / self._capacity

    def _repair(self, now: float) -> None:
        """While GPUs are idle and the queue is empty, moves the jobs that gain most to an idle GPU."""
        while not len(self._queue):
            holders = ((self._attained(one, now), one.placements[0]) for one in self._running.values())
            belief = self._ranker.policy.known.belief
            mover = find_move(belief, holders, self._cluster, self._timing.restart)
            if mover is None:
                return
            self._requeue(self._running.pop(mover.id), mover, now)
            self._tally.moved += 1
            self._place(self._queue, now)

    def _next_round_after(self, now: float) -> float:
        rounds = math.floor((now - self._start) / self._timing.round) + 1
        while self._start + rounds * self._timing.round <= now:  # the division may have been rounded down
            rounds += 1
        return self._start + rounds * self._timing.round

    def _preempt(self, now: float) -> None:
        """Preempts the fewest running jobs that make room for waiting jobs that come before them in the queue order."""
        running = {one.job.id: self._attained(one, now) for one in self._running.values()}
        holders = [(job, self._running[job.id].placements) for job in running.values()]
        turn = partial(queue_position, self._ranker.policy, now=Seconds(now))
        for victims in find_preemptions(self._ranker, self._queue, holders, self._cluster, turn):
            for victim in victims:
                self._requeue(self._running.pop(victim.id), running[victim.id], now)
                self._tally.preemptions += 1
        self._place(self._queue, now)

    def _attained(self, running: _Running, now: float) -> Job:
        running.update_progress(now)
        gpus = running.job.demand.gpus * running.job.replicas
        return replace(running.job, attained=Seconds(running.job.attained + running.done * gpus))

    def _requeue(self, running: _Running, job: Job, now: float) -> None:
        progress = self._progress[job.id]
        running.update_progress(now)
        progress.left -= max(0.0, running.done - self._timing.restart)
        progress.waiting_since = now
        self._release(running, now)
        self._queue.add(job, Seconds(now))
