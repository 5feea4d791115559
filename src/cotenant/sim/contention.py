# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Neighbours on one card: how fast a world lets them run, and what is measured of it a while after they have met.

The truth goes into rates of progress at once; a belief hears of it only by measurement, and only if they stay together.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from random import Random

from cotenant.core.cluster import Cluster
from cotenant.core.model import Placement
from cotenant.core.sharing.orders import company, demands_on, tenants_on
from cotenant.core.sharing.speeds import Belief
from cotenant.core.units import Seconds
from cotenant.sim.worlds import World

Jobs = tuple[str, ...]


class Contention:
    """What a world does to those who share cards, and what a belief gets to see of it."""

    def __init__(self, world: World, belief: Belief, look: Seconds, noise: float, random: Random) -> None:
        self._world, self._belief = world, belief
        self._look, self._noise, self._random = look, noise, random
        self._looks: list[tuple[float, int, str, int, Jobs]] = []
        self._sequence = 0

    @property
    def next_look(self) -> float:
        return self._looks[0][0] if self._looks else float("inf")

    def tenants(self, cluster: Cluster, placements: Iterable[Placement]) -> dict[tuple[str, int], Jobs]:
        """Who is on each of the cards of these placements."""
        return {
            (one.slot.node, gpu): tuple(tenant.job for tenant in tenants_on(cluster.node(one.slot.node), gpu))
            for one in placements
            for gpu in one.slot.gpus
        }

    def rate(self, cluster: Cluster, placements: Sequence[Placement]) -> float:
        """How fast a job runs on its cards: as the slowest of them lets it."""
        return min((self._rate(cluster, one, gpu) for one in placements for gpu in one.slot.gpus), default=1.0)

    def will_look(self, met: dict[tuple[str, int], Jobs], now: float) -> None:
        """Those who share a card from now on are measured once they have run side by side for a while."""
        for (node, gpu), jobs in met.items():
            if len(jobs) > 1:
                self._sequence += 1
                heappush(self._looks, (now + self._look, self._sequence, node, gpu, jobs))

    def looked_at(self, cluster: Cluster, now: float) -> Jobs | None:
        """The next company whose look is due and that is still together, after the belief was told."""
        while self._looks and self._looks[0][0] <= now:
            _, _, name, gpu, jobs = heappop(self._looks)
            node = cluster.node(name)
            if tuple(tenant.job for tenant in tenants_on(node, gpu)) != jobs:
                continue  # one came or went; another look is due for those who are there now
            together = company(node, gpu, demands_on(node, gpu))
            measured = [speed * self._random.lognormvariate(0.0, self._noise) for speed in self._world.speeds(together)]
            self._belief.observe(together, measured)
            return jobs
        return None

    def _rate(self, cluster: Cluster, placement: Placement, gpu: int) -> float:
        node, workload = cluster.node(placement.slot.node), placement.job.demand.workload
        together = company(node, gpu, demands_on(node, gpu))
        return (
            self._world.alone(together.card, workload)
            * self._world.speeds(together)[together.workloads.index(workload)]
        )
