# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of a running simulation: fragmentation after every event, and averages over time in bounded memory."""

import numpy as np
from numpy.typing import NDArray

from cotenant.core.cluster import Cluster, Node
from cotenant.core.fragmentation.fgd import FRAGMENTED, Fragmentation
from cotenant.core.fragmentation.mix import Mix

Floats = NDArray[np.float64]


class FragmentationMeter:
    """FGD's fragmentation of a whole cluster, updated node by node."""

    def __init__(self, mix: Mix, cluster: Cluster) -> None:
        self._measure = Fragmentation(mix)
        self._amounts: Floats = np.array([self._measure.amounts(node) for node in cluster]).T.copy()

    def update(self, i: int, node: Node) -> None:
        self._amounts[:, i] = self._measure.amounts(node)

    def read(self) -> tuple[float, float]:
        """Fragmented and free compute of the cluster, in milli-GPU."""
        total = self._amounts.sum(axis=1).tolist()
        # Added in the published order; `fgd.fragmented` explains why.
        fragmented = 0.0
        for case in FRAGMENTED:
            fragmented += total[case]
        return fragmented, sum(total)


class TimeAverages:
    """Averages several quantities over equal spans of time; if there are too many spans, neighbouring pairs merge."""

    def __init__(self, channels: int, start: float, most_spans: int = 512) -> None:
        self._most = most_spans
        self._integral = np.zeros((most_spans, channels))
        self._start = self._now = start
        self._width = 1.0
        self._span = 0
        """index of the span that contains `now`; it is counted, because dividing by the width may round to a
        neighbour"""

    def hold(self, values: Floats, until: float) -> None:
        """Records that the quantities had these values from the last call until `until`."""
        while until > self._start + self._width * self._most:
            self._merge()
        while self._now < until:
            edge = self._start + self._width * (self._span + 1)
            end = min(until, edge)
            self._integral[self._span] += values * (end - self._now)
            self._now = end
            if end == edge:
                self._span += 1

    def _merge(self) -> None:
        pairs = self._integral.reshape(self._most // 2, 2, -1).sum(axis=1)
        self._integral[:] = 0.0
        self._integral[: self._most // 2] = pairs
        self._width *= 2
        self._span //= 2

    def series(self) -> tuple[list[float], Floats]:
        """The left edge of each span in seconds, and the averages, one row per span."""
        spans = max(1, self._span + (self._now > self._start + self._width * self._span))
        widths = np.full(spans, self._width)
        widths[-1] = max(self._now - self._start - self._width * (spans - 1), 1e-9)
        return [self._width * i for i in range(spans)], self._integral[:spans] / widths[:, None]

    def mean(self) -> Floats:
        """The averages over the whole run."""
        whole: Floats = self._integral.sum(axis=0) / max(self._now - self._start, 1e-9)
        return whole


def quantiles(values: list[float]) -> list[float]:
    """The 0th to the 100th percentile."""
    if not values:
        return []
    return [round(float(one), 6) for one in np.percentile(np.array(values), np.arange(101))]


class GpuRows:
    """Assigns each GPU to one row of a heat map; neighbouring GPUs share a row if there are more than `most`."""

    def __init__(self, cluster: Cluster, most: int = 64) -> None:
        self.first: dict[str, int] = {}
        capacity: list[int] = []
        for node in cluster:
            self.first[node.name] = len(capacity)
            capacity.extend(gpu.compute_capacity for gpu in node.machine.gpus)
        gpus = len(capacity)
        self.rows = min(most, max(gpus, 1))
        self.row_of: NDArray[np.int64] = np.arange(gpus, dtype=np.int64) * self.rows // max(gpus, 1)
        self.capacity: Floats = np.zeros(self.rows)
        np.add.at(self.capacity, self.row_of, capacity)
        edges = np.flatnonzero(np.diff(self.row_of, prepend=-1)).tolist()
        ends = [*edges[1:], gpus]
        self.labels = [f"GPU {a}" if b - a == 1 else f"GPUs {a}-{b - 1}" for a, b in zip(edges, ends, strict=True)]

    def add(self, used: Floats, node: str, gpus: tuple[int, ...], compute: int) -> None:
        """Adds the compute of a tenant to the rows of its GPUs; negative if the tenant leaves."""
        start = self.first[node]
        for gpu in gpus:
            used[self.row_of[start + gpu]] += compute
