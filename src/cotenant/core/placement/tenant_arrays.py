# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who is on every card of a cluster, as numbers.

Thousands of cards have the same few kinds of tenants on them. What a sharing policy makes of a newcomer there is
computed once for each kind of crowd; arrays of these numbers then tell, for all nodes at once, which cannot be best.
"""

import numpy as np
from numpy.typing import NDArray

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand
from cotenant.core.sharing.orders import residents

Numbers = NDArray[np.int64]

NO_CARD = -1


class Crowds:
    """Cards of one type with the same tenants on them have the same number; remembered by the versions of nodes."""

    def __init__(self) -> None:
        self.examples: list[tuple[Node, int]] = []
        """of each number a card that has it, on its node as if nobody else were there"""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._names: tuple[str, ...] = ()
        self._seen = np.zeros(0, dtype=np.int64)
        self._cards = np.zeros((3, 0, 0), dtype=np.int64)
        """number, free memory and free compute of each card, a row for each place and a column for each node"""

    @property
    def worn_out(self) -> bool:
        """Whether most of what is known here is of crowds that are gone."""
        return len(self.examples) > 2 * int(self._cards[0].size) + 64

    def look(self, cluster: Cluster) -> None:
        """Takes in what is new in a cluster."""
        if self._names is not cluster.names:
            self._names, self._seen = cluster.names, np.zeros(len(cluster), dtype=np.int64)
            self._cards = np.zeros((3, 0, len(cluster)), dtype=np.int64)
        stale = (self._seen != cluster.versions).nonzero()[0]
        if len(stale) == 0:
            return
        self._seen[stale] = cluster.versions[stale]
        nodes = [cluster.at(i) for i in stale.tolist()]
        more = max(len(node.compute) for node in nodes) - self._cards.shape[1]
        if more > 0:
            self._cards = np.pad(self._cards, ((0, 0), (0, more), (0, 0)), constant_values=NO_CARD)
        none = [NO_CARD] * self._cards.shape[1]
        rows = [[(*own, *none[len(own) :]) for own in self._of_node(node)] for node in nodes]
        self._cards[:, :, stale] = np.array(rows, dtype=np.int64).transpose(1, 2, 0)

    def with_room(self, demand: Demand, at: NDArray[np.intp]) -> Numbers:
        """The numbers of these nodes' cards that have what is asked of each, and NO_CARD; a column for each node."""
        numbers, memory, compute = self._cards[:, :, at]
        least = demand.memory if demand.memory_percent is None else 0
        fits: Numbers = np.where((memory >= least) & (compute >= demand.compute), numbers, NO_CARD)
        return fits

    def _of_node(self, node: Node) -> tuple[list[int], list[int], tuple[int, ...]]:
        # All that orders and checks by card look at; the order of tenants does not matter, but sorting takes time.
        there: list[tuple[object, ...]] = [(gpu.type,) for gpu in node.machine.gpus]
        for tenant in node.tenants:
            one = (tenant.demand.workload, tenant.demand.least_speed)
            for i in tenant.gpus if len(tenant.gpus) < 2 else set(tenant.gpus):
                if i < len(there):  # a card may have been taken out under its tenant
                    there[i] += one
        numbers = []
        for i, crowd in enumerate(there):
            number = self._numbers.get(crowd)
            if number is None:
                number = self._numbers[crowd] = len(self.examples)
                self.examples.append((node._replace(tenants=tuple(residents(node, i))), i))
            numbers.append(number)
        free = [memory if slots > 0 else NO_CARD for memory, slots in zip(node.memory, node.slots, strict=True)]
        return numbers, free, node.compute
