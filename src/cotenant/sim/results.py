# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The results of a simulation as plain values: the schema behind the table, the JSON, the CSV and the HTML report."""

from dataclasses import dataclass, field

from cotenant import __version__

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Allocation of groups of GPUs over the run: `values[row][column]` is the percentage of compute allocated."""

    columns: list[float]
    """left edge of each column: seconds (timed) or percent of capacity arrived (fill)"""
    rows: list[str]
    """a GPU, or a range of neighbouring GPUs if there are too many to draw each"""
    values: list[list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One policy on one seed. Metrics that a mode does not have are absent from `summary` and `series`."""

    policy: str
    seed: int
    summary: dict[str, float]
    """fill: allocated_at_100, fragmented_at_100, allocated, fragmented, placed, rejected (percent or counts);
    timed: jobs, unplaceable, mean_wait, p95_wait, mean_jct, median_jct, p95_jct, makespan (seconds), utilisation,
    fragmented (percent, time average), preemptions"""
    series: dict[str, list[float]]
    """fill: arrived, allocated, fragmented (percent of all GPUs), fragmented_idle (percent of idle);
    timed: time (s), allocated (percent), queued (jobs), fragmented (percent)"""
    quantiles: dict[str, list[float]] = field(default_factory=dict)
    """timed: wait and jct, 101 values each: the 0th to the 100th percentile, in seconds"""
    heat: HeatMap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All runs of one invocation."""

    command: str
    mode: str
    """fill or timed"""
    trace: str
    nodes: int
    gpus: int
    runs: list[RunResult]
    complete: bool = True
    """False if the simulation was interrupted and some (policy, seed) are missing"""
    schema: int = SCHEMA_VERSION
    cotenant: str = __version__
    """version of the program"""
