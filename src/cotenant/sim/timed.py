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
from random import Random

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, Mix, inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Demand, Job, Machine, Placement
from cotenant.core.placement.deciding import Decision, decide, judge_again, place_gang
from cotenant.core.placement.policies import PREEMPTIVE, build_policy
from cotenant.core.placement.queue import Queue, account_of, queue_position
from cotenant.core.placement.ranking import Ranker
from cotenant.core.queueing.backfill import Ends, Reservation
from cotenant.core.queueing.fair import FairSettings, FairShares, gpus_taken
from cotenant.core.queueing.preemption import find_preemptions
from cotenant.core.sharing.gates import find_move
from cotenant.core.sharing.speeds import UNDISTURBED, Belief, Predicted
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival
from cotenant.sim.collector import rare_collections
from cotenant.sim.contention import Contention, Jobs, Tuning, World
from cotenant.sim.fill import ONLINE, Watch
from cotenant.sim.results import RunResult
from cotenant.sim.running import Finishes, Progress, Running
from cotenant.sim.timed_metrics import TimedMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The settings of a timed run, besides the trace and the machines."""

    queue: str = "fifo"
    fair: FairSettings = field(default_factory=FairSettings)
    """of the queue order `fair`"""
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
        tuning: Tuning | None = None,
    ) -> None:
        machines = list(machines)
        if belief is None:  # without a world no job slows another one down, and the policy may know that
            belief = Predicted() if world is not None else UNDISTURBED
        self._watches = watches
        self._timing = timing
        self._empty = self._cluster = Cluster.of(machines)
        inventory = inventory_of(machines)
        spec = policy.removesuffix(ONLINE)
        self._learner = Learner(spec, inventory, timing.queue, (), belief) if policy.endswith(ONLINE) else None
        known = Knowledge(mix, inventory, belief)
        self._ranker = self._learner.ranker if self._learner else Ranker(build_policy(spec, known, timing.queue))
        self._queue = Queue(self._ranker.policy)
        self.shares = FairShares(timing.fair, self._cluster.gpus) if self._ranker.policy.fair else None
        self._ends = Ends()
        self._reservation: Reservation | None = None
        random = Random(seed)
        self._draw = random.randrange
        self._contention = (
            None
            if world is None
            else Contention(world, belief, timing.look, timing.noise, random, timing.startup, tuning)
        )
        self._metrics = TimedMetrics(
            self._cluster,
            mix,
            fragmentation=timing.fragmentation,
            heat=timing.heat,
            sharing=self._contention is not None,
        )
        self._tally = self._metrics.tally
        self._running: dict[str, Running] = {}
        self._finishes = Finishes(self._running)
        self._progress: dict[str, Progress] = {}
        self._placeable: dict[tuple[Demand, int], bool] = {}

    def run(self, arrivals: Iterator[Arrival], until: float = math.inf) -> "TimedRun":
        """Simulates until all jobs have ended, or until the first event after that time."""
        with rare_collections():
            self._run(arrivals, until)
        return self

    def _run(self, arrivals: Iterator[Arrival], until: float) -> None:
        upcoming = next(arrivals, None)
        self._start = float(upcoming.job.submitted) if upcoming is not None else 0.0
        self._metrics.begin(self._start)
        self._next_round = math.inf
        self._next_start, self._last_start = math.inf, -math.inf
        # The loop jumps from one event time to the next: an arrival, the end of a job or of its start-up, a
        # measurement, a preemption round, and with a tick the next time at which jobs may start.
        # Invariants at the top of each iteration:
        # - `self._cluster` holds exactly the placements of `self._running`; every waiting job is in `self._queue`, and
        #   `self._progress` has an entry for exactly the jobs that wait or run.
        # - `self._finishes` has the current `ends` of every running job.
        # - `self._metrics` has the values since the last event time; `advance` integrates them before any event of the
        #   new time changes them.
        # At one time, ends come before arrivals, so that a new job sees the freed GPUs.
        while upcoming is not None or self._running or (len(self._queue) and self._next_start < math.inf):
            arrives = float(upcoming.job.submitted) if upcoming is not None else math.inf
            now = min(arrives, self._finishes.next(), self._next_round, self._next_start)
            if self._contention is not None:
                now = min(now, self._contention.next_measurement, self._contention.next_wake)
            if now > until:
                break
            self._metrics.advance(now)
            freed = self._finish_due(now)
            if self._contention is not None:
                freed |= self._measure_due(self._contention, now)
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
            self._metrics.set_queued(len(self._queue))

    @property
    def now(self) -> float:
        """The simulated time."""
        return self._metrics.now

    def result(self, policy: str, seed: int) -> RunResult:
        return self._metrics.result(policy, seed)

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
        self._progress[job.id] = Progress(arrival, float(arrival.duration or 0.0), now)
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

    def _place(self, waiting: Queue | list[Job], now: float) -> None:
        if not len(self._queue):  # as after the end of most jobs
            self._reservation = None
            return
        decision = decide(
            self._ranker.policy,
            self._queue if len(waiting) == len(self._queue) else waiting,
            self._cluster,
            Seconds(now),
            ranker=self._ranker,
            draw=self._draw,
            ends=self._ends if self._timing.backfill else None,
            reservation=self._reservation,
            shares=self.shares,
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
            self._contention.tune(self._cluster, decision.placements, now)
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
        if self.shares is not None:
            self.shares.start(job.id, account_of(job), gpus_taken(placements, self._cluster), Seconds(now))
        works_from = now + self._timing.startup
        running = Running(
            job, placements, progress.arrival, now, works_from + progress.left, crowding, since=works_from
        )
        self._running[job.id] = running
        self._metrics.count(placements, +1, self._cluster)
        self._tally.trials += any(placement.trial for placement in placements)
        if self._contention is None:  # otherwise its rate depends on the other jobs that start now; `_place` sets it
            self._finishes.push(running)
        else:
            self._contention.begin(job.id, now)

    def _finish_due(self, now: float) -> bool:
        freed = False
        while self._finishes.next() <= now:
            job_id = self._finishes.pop()
            running = self._running.pop(job_id)
            progress = self._progress.pop(job_id)
            self._release(running, now)
            self._tally.waits.append(progress.waited)
            self._tally.wide_wait += progress.waited * (running.job.demand.gpus * running.job.replicas > 1)
            self._tally.completions.append(now - float(running.job.submitted))
            freed = True
        return freed

    def _release(self, running: Running, now: float) -> None:
        self._ends.remove(running.job.id)
        if self.shares is not None:
            self.shares.end(running.job.id, Seconds(now))
        for placement in running.placements:
            self._cluster = self._cluster.finish(placement)
        self._metrics.count(running.placements, -1, self._cluster)
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
            self._finishes.push(running)
        return sharing

    def _measure_due(self, contention: Contention, now: float) -> bool:
        """Handles the ends of start-ups and of tuning, and the measurements that are due; whether GPUs were freed."""
        freed = False
        for job_id in contention.wake(self._cluster, now):
            if job_id in self._running:
                self._update_rates(contention, self._running[job_id].placements, now)
        self._tally.tuned = contention.episodes
        while (jobs := contention.measure_next(self._cluster, now)) is not None:
            freed |= self._judge_newest(jobs, now)
        return freed

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
        """Preempts the fewest running jobs so that waiting jobs before them in the queue order fit."""
        running = {one.job.id: self._attained(one, now) for one in self._running.values()}
        holders = [(job, self._running[job.id].placements) for job in running.values()]
        turn = partial(queue_position, self._ranker.policy, now=Seconds(now))
        for victims in find_preemptions(self._ranker, self._queue, holders, self._cluster, turn):
            for victim in victims:
                self._requeue(self._running.pop(victim.id), running[victim.id], now)
                self._tally.preemptions += 1
        self._place(self._queue, now)

    def _attained(self, running: Running, now: float) -> Job:
        running.update_progress(now)
        gpus = running.job.demand.gpus * running.job.replicas
        return replace(running.job, attained=Seconds(running.job.attained + running.done * gpus))

    def _requeue(self, running: Running, job: Job, now: float) -> None:
        progress = self._progress[job.id]
        running.update_progress(now)
        progress.left -= max(0.0, running.done - self._timing.restart)
        progress.waiting_since = now
        self._release(running, now)
        self._queue.add(job, Seconds(now))
