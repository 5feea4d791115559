# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Contention: how fast jobs that share a GPU run, and when their speeds are measured.

The true speeds of the world take effect at once. A policy's belief learns them only by measurement, and only if the
same jobs still share the GPU when the measurement is due.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple, Protocol

from cotenant.core.cluster import Cluster
from cotenant.core.model import Placement
from cotenant.core.sharing.orders import company, demands_on, tenants_on
from cotenant.core.sharing.speeds import Belief, TenantSet
from cotenant.core.units import Seconds

Jobs = tuple[str, ...]


class World(Protocol):
    """The true speeds of workloads on a GPU type, alone and beside others, which no policy may see."""

    def alone(self, gpu_type: str, workload: str | None) -> float:
        """Speed alone, relative to the speed at which the trace's durations were taken."""
        ...

    def speeds(self, company: TenantSet) -> tuple[float, ...]:
        """Speed of each tenant, relative to its speed alone on that GPU type."""
        ...


class Episode(NamedTuple):
    """The joint tuning of the batch sizes of two tenants. Speeds are those of training (goodput), relative to that of
    each tenant alone at the size that its owner chose."""

    seconds: float
    during: tuple[float, ...]
    """mean speed while sizes are tried, of each tenant"""
    after: tuple[float, ...]
    """speed at the sizes that were chosen"""


class Tuning(Protocol):
    """A simulated tuner."""

    def episode(self, company: TenantSet) -> Episode | None:
        """What happens if these tenants are tuned; None: their batch sizes cannot be changed."""
        ...


class Contention:
    """The true rates of running jobs, the queue of measurements that are reported to a belief, and the tuning of
    tenants that share a GPU."""

    def __init__(
        self,
        world: World,
        belief: Belief,
        look: Seconds,
        noise: float,
        random: Random,
        startup: Seconds = Seconds(0.0),
        tuning: Tuning | None = None,
    ) -> None:
        self._world, self._belief = world, belief
        self._look, self._noise, self._random = look, noise, random
        self._startup = startup
        self._starting: dict[str, float] = {}
        self._waking: list[tuple[float, str]] = []
        self._due: list[tuple[float, int, str, int, Jobs]] = []
        self._sequence = 0
        self.episodes = 0
        """number of completed episodes"""
        self._tuning = tuning
        self._tuned: dict[tuple[str, int], dict[str, float]] = {}
        """for each GPU whose tenants are being tuned or were tuned, the current speed of each job"""
        self._episodes: list[tuple[float, int, tuple[str, int], dict[str, float]]] = []
        """for each episode: its end, a sequence number, the GPU, and the speeds after the end"""

    @property
    def next_measurement(self) -> float:
        return self._due[0][0] if self._due else float("inf")

    @property
    def next_wake(self) -> float:
        """The time at which the next job has started up or the next tenants are tuned, or infinity."""
        return min(queue[0][0] if queue else float("inf") for queue in (self._waking, self._episodes))

    def begin(self, job: str, now: float) -> None:
        """Lets a job start up: until then it makes no progress and slows no other job."""
        if self._startup:
            self._starting[job] = now + self._startup
            heappush(self._waking, (now + self._startup, job))

    def wake(self, cluster: Cluster, now: float) -> list[str]:
        """Returns the jobs that have started up by now, and one job of each GPU on which an episode has ended."""
        found = self._end_episodes(cluster, now)
        while self._waking and self._waking[0][0] <= now:
            due, job = heappop(self._waking)
            if self._starting.get(job) == due:  # otherwise it was evicted and has begun again
                del self._starting[job]
                found.append(job)
        return found

    def tenants(self, cluster: Cluster, placements: Iterable[Placement]) -> dict[tuple[str, int], Jobs]:
        """The jobs on each GPU of these placements, by (node, GPU index)."""
        return {
            (one.slot.node, gpu): tuple(tenant.job for tenant in tenants_on(cluster.node(one.slot.node), gpu))
            for one in placements
            for gpu in one.slot.gpus
        }

    def rate(self, cluster: Cluster, placements: Sequence[Placement]) -> float:
        """The rate of a job: the minimum over its GPUs, because its slowest GPU holds up the others."""
        return min((self._rate(cluster, one, gpu) for one in placements for gpu in one.slot.gpus), default=1.0)

    def schedule_measurements(self, met: dict[tuple[str, int], Jobs], now: float) -> None:
        """Schedules a measurement of every GPU that now has more than one tenant."""
        for (node, gpu), jobs in met.items():
            if len(jobs) > 1:
                self._sequence += 1
                heappush(self._due, (now + self._look, self._sequence, node, gpu, jobs))

    def tune(self, cluster: Cluster, placements: Iterable[Placement], now: float) -> None:
        """Begins an episode on every GPU of these placements that has two tenants."""
        if self._tuning is None:
            return
        for place in self.tenants(cluster, placements):
            node = cluster.node(place[0])
            tenants = sorted(tenants_on(node, place[1]), key=lambda one: str(one.demand.workload))
            together = company(node, place[1], (one.demand for one in tenants))
            episode = self._tuning.episode(together) if len(tenants) == 2 else None
            if episode is not None:
                jobs = [one.job for one in tenants]
                self._tuned[place] = dict(zip(jobs, episode.during, strict=True))
                self._sequence += 1
                ends = now + self._startup + episode.seconds
                after = dict(zip(jobs, episode.after, strict=True))
                heappush(self._episodes, (ends, self._sequence, place, after))

    def _end_episodes(self, cluster: Cluster, now: float) -> list[str]:
        found = []
        while self._episodes and self._episodes[0][0] <= now:
            _, _, place, after = heappop(self._episodes)
            if {one.job for one in tenants_on(cluster.node(place[0]), place[1])} == after.keys():
                self._tuned[place] = after
                self.episodes += 1
                found.append(min(after))
        return found

    def measure_next(self, cluster: Cluster, now: float) -> Jobs | None:
        """Takes the next due measurement whose jobs still share the GPU, reports it to the belief, and returns the
        jobs."""
        while self._due and self._due[0][0] <= now:
            _, _, name, gpu, jobs = heappop(self._due)
            node = cluster.node(name)
            if tuple(tenant.job for tenant in tenants_on(node, gpu)) != jobs:
                continue  # the tenants changed, so another measurement was scheduled for the current ones
            together = company(node, gpu, demands_on(node, gpu))
            measured = [speed * self._random.lognormvariate(0.0, self._noise) for speed in self._world.speeds(together)]
            self._belief.observe(together, measured)
            return jobs
        return None

    def _rate(self, cluster: Cluster, placement: Placement, gpu: int) -> float:
        if placement.job.id in self._starting:
            return 0.0
        node, workload = cluster.node(placement.slot.node), placement.job.demand.workload
        working = [tenant for tenant in tenants_on(node, gpu) if tenant.job not in self._starting]
        together = company(node, gpu, (tenant.demand for tenant in working))
        alone = self._world.alone(together.gpu_type, workload)
        tuned = self._tuned.get((node.name, gpu), {})
        if tuned.keys() == {tenant.job for tenant in working}:
            return alone * tuned[placement.job.id]
        return alone * self._world.speeds(together)[together.workloads.index(workload)]
