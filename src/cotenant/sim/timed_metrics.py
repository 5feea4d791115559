# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics of a timed run: counters and samples of jobs, and averages over the simulated time."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Mix
from cotenant.core.model import Placement
from cotenant.sim.metrics import FragmentationMeter, GpuRows, TimeAverages, quantiles
from cotenant.sim.results import HeatMap, RunResult

ALLOCATED, QUEUED, FRAGMENTED = range(3)
CHANNELS = 3

Floats: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"


@dataclass(slots=True)
class Tally:
    """Counters and samples of the whole run."""

    waits: list[float] = field(default_factory=list)
    completions: list[float] = field(default_factory=list)
    wide_wait: float = 0.0
    """sum of the waits of jobs on several GPUs"""
    unplaceable: int = 0
    preemptions: int = 0
    shared: int = 0
    """starts on a GPU that already had a tenant"""
    trials: int = 0
    reverted: int = 0
    moved: int = 0
    tuned: int = 0


class TimedMetrics:
    """Allocation, queue and fragmentation are constant between two event times; `advance` integrates them."""

    def __init__(self, cluster: Cluster, mix: Mix, *, fragmentation: bool, heat: bool, sharing: bool) -> None:
        """The cluster is empty. With `sharing`, jobs may slow each other down, and the result has figures of it."""
        self.tally = Tally()
        self.now = 0.0
        self._start = 0.0
        self._heat, self._sharing = heat, sharing
        self._meter = FragmentationMeter(mix, cluster) if fragmentation else None
        self._rows = GpuRows(cluster)
        self._capacity = float(self._rows.capacity.sum())
        self._levels = np.zeros(CHANNELS + (self._rows.rows if heat else 0))

    def begin(self, start: float) -> None:
        """Starts the clock."""
        self.now = self._start = start
        self._averages = TimeAverages(len(self._levels), start)

    def advance(self, now: float) -> None:
        """Moves the clock."""
        self._averages.hold(self._levels, now)
        self.now = now

    def set_queued(self, jobs: int) -> None:
        self._levels[QUEUED] = jobs

    def count(self, placements: Sequence[Placement], sign: int, cluster: Cluster) -> None:
        """Updates allocation and fragmentation after these placements were added (+1) or removed (-1)."""
        demand = placements[0].job.demand
        for placement in placements:
            slot = placement.slot
            compute = sign * demand.compute
            if self._heat:
                self._rows.add(self._levels[CHANNELS:], slot.node, slot.gpus, compute)
            self._levels[ALLOCATED] += 100.0 * compute * len(slot.gpus) / self._capacity
            if self._meter is not None:
                self._meter.update(cluster.index[slot.node], cluster.node(slot.node))
        if self._meter is not None:
            self._levels[FRAGMENTED] = 100.0 * self._meter.read()[0] / self._capacity

    def result(self, policy: str, seed: int) -> RunResult:
        edges, rows = self._averages.series()
        series = {
            "time": edges,
            "allocated": rows[:, ALLOCATED].round(3).tolist(),
            "queued": rows[:, QUEUED].round(3).tolist(),
        }
        if self._meter is not None:
            series["fragmented"] = rows[:, FRAGMENTED].round(3).tolist()
        waits, completions = quantiles(self.tally.waits), quantiles(self.tally.completions)
        return RunResult(
            policy=policy,
            seed=seed,
            summary={name: round(value, 6) for name, value in self._summary(waits, completions).items()},
            series=series,
            quantiles={"wait": waits, "jct": completions} if self.tally.completions else {},
            heat=self._heat_map(edges, rows[:, CHANNELS:]) if self._heat else None,
        )

    def _summary(self, waits: Sequence[float], completions: Sequence[float]) -> dict[str, float]:
        tally, mean = self.tally, self._averages.mean()
        summary = {
            "jobs": float(len(tally.completions)),
            "unplaceable": float(tally.unplaceable),
            "makespan": self.now - self._start,
            "utilisation": float(mean[ALLOCATED]),
            "preemptions": float(tally.preemptions),
        }
        if self._sharing:
            summary |= {
                "shared": float(tally.shared),
                "trials": float(tally.trials),
                "reverted": float(tally.reverted),
                "moved": float(tally.moved),
                "tuned": float(tally.tuned),
            }
        if tally.completions:
            summary |= {
                "mean_wait": float(np.mean(tally.waits)),
                "wide_wait": tally.wide_wait / len(tally.waits),
                "p95_wait": waits[95],
                "mean_jct": float(np.mean(tally.completions)),
                "median_jct": completions[50],
                "p95_jct": completions[95],
            }
        if self._meter is not None:
            summary["fragmented"] = float(mean[FRAGMENTED])
        return summary

    def _heat_map(self, edges: list[float], used: Floats) -> HeatMap:
        every = max(1, len(edges) // 128)
        percent = (100 * used[::every] / self._rows.capacity).round(1)
        return HeatMap(columns=edges[::every], rows=self._rows.labels, values=percent.T.tolist())
