# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pollux's workloads: jobs with an application, a batch size and a number of GPUs; profiles give their duration.

A job has as many steps as the application's validation run with that batch size. The time of a step is interpolated in
the batch size of one GPU, on the fewest nodes that were measured with that number of GPUs. If one GPU cannot hold its
part of the batch, gradients are accumulated over equal passes, and only the last pass synchronises:

    passes = ceil(local / largest local measured);  step = passes * (pass - sync) + sync
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path

from cotenant.core.model import Job
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival
from cotenant.sim.traces import fields
from cotenant.sim.traces.rows import Row, arrivals, parsed, shown
from cotenant.sim.traces.source import Format, Source, companion

_LARGEST_BATCH = 1_000_000_000

Curve = tuple[tuple[float, float, float], ...]
"""(batch size of one GPU, seconds of a pass, seconds of synchronisation in it), in ascending order of batch size"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of an application's profile."""

    replicas: int
    nodes: int
    evenness: tuple[int, ...]
    point: tuple[float, float, float]


def read(source: Source) -> Iterator[Arrival]:
    profiles = companion(source, source.path.parent.parent / "traces", "pollux/traces")

    def arrival(_line: int, row: Row) -> Arrival:
        gpus = fields.gpu_count(row, "num_replicas")
        batch = fields.whole(row["batch_size"], "batch_size", 1, _LARGEST_BATCH)
        replicas, demand = fields.whole_gpus(gpus, source.gpus_per_node, row["application"])
        job = Job(
            id=fields.name(row["name"], "name"),
            demand=demand,
            replicas=replicas,
            submitted=fields.time(row, "time"),
        )
        return Arrival(job, _duration(profiles, row["application"], gpus, batch))

    yield from arrivals(source.path, arrival)


@lru_cache(maxsize=4096)
def _duration(profiles: Path, application: str, gpus: int, batch: int) -> Seconds:
    known = sorted(folder.name for folder in profiles.iterdir() if folder.is_dir())
    if application not in known:
        raise ValueError(f"application is {shown(application)}; expected one of {', '.join(known)}")
    validation = profiles / application / f"validation-{batch}.csv"
    if not validation.exists():
        raise ValueError(f"batch_size is {batch}; expected one with a validation run of {application}")
    steps = max(_column(validation, "iteration"), default=0.0)
    curves = _curves(profiles / application)
    if gpus not in curves:
        raise ValueError(f"num_replicas is {gpus}; expected a number of GPUs in the profile of {application}")
    return Seconds(steps * _step(curves[gpus], batch / gpus))


def _step(curve: Curve, local: float) -> float:
    passes = ceil(local / curve[-1][0])
    one_pass, sync = _interpolated(curve, local / passes)
    return passes * (one_pass - sync) + sync


def _interpolated(curve: Curve, local: float) -> tuple[float, float]:
    """Interpolates linearly; below the smallest measured batch size, a pass takes as long as with the smallest."""
    i = bisect_left(curve, local, key=lambda point: point[0])
    (x1, pass1, sync1), (x2, pass2, sync2) = curve[max(i - 1, 0)], curve[i]
    share = (local - x1) / (x2 - x1) if i else 0.0
    return pass1 + share * (pass2 - pass1), sync1 + share * (sync2 - sync1)


@lru_cache(maxsize=64)
def _curves(folder: Path) -> Mapping[int, Curve]:
    """For each number of GPUs, the curve measured on the fewest nodes, with GPUs spread as evenly as possible."""
    best: dict[int, tuple[int, tuple[int, ...]]] = {}
    points: dict[int, list[tuple[float, float, float]]] = {}
    measured = [*parsed(folder / "placements.csv", _placed), *parsed(folder / "scalability.csv", _scaled)]
    for row in measured:
        layout = (row.nodes, row.evenness)
        if layout < best.get(row.replicas, (row.nodes + 1, ())):
            best[row.replicas], points[row.replicas] = layout, []
        if layout == best[row.replicas]:
            points[row.replicas].append(row.point)
    if not points:
        raise InputError(f"{folder}: no step times; expected rows in placements.csv or scalability.csv")
    return {replicas: tuple(sorted(of_count)) for replicas, of_count in points.items()}


def _placed(_line: int, row: Row) -> Measured:
    """Parses a row of placements.csv; placement `244` means 2 GPUs on one node and 4 on each of two others."""
    each = tuple(sorted((fields.whole(digit, "placement", 1, 9) for digit in row["placement"]), reverse=True))
    return Measured(sum(each), len(each), each, _point(row))


def _scaled(_line: int, row: Row) -> Measured:
    return Measured(fields.gpu_count(row, "num_replicas"), fields.gpu_count(row, "num_nodes"), (), _point(row))


def _point(row: Row) -> tuple[float, float, float]:
    local = fields.number(row["local_bsz"], "local_bsz", 1, _LARGEST_BATCH)
    one_pass, sync = (fields.number(row[column], column, 0, fields.LONGEST) for column in ("step_time", "sync_time"))
    return local, one_pass, sync


def _column(path: Path, column: str) -> Iterator[float]:
    return parsed(path, lambda _, row: fields.number(row[column], column, 0, 1e12))


FORMAT = Format(name="pollux", columns=("name", "time", "application", "num_replicas", "batch_size"), read=read)
