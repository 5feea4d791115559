# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Muri's traces: whole-GPU jobs derived from Philly's, with the name of a model; times are in milliseconds."""

from collections.abc import Iterator

from cotenant.core.model import Job
from cotenant.core.units import Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.traces import fields
from cotenant.sim.traces.rows import Row, arrivals
from cotenant.sim.traces.source import Format, Source


def read(source: Source) -> Iterator[Arrival]:
    def arrival(_line: int, row: Row) -> Arrival:
        model = fields.name(row["model_name"], "model_name")
        replicas, demand = fields.whole_gpus(fields.gpu_count(row, "num_gpu"), source.gpus_per_node, model)
        job = Job(
            id=f"{source.name}-{fields.name(row['job_id'], 'job_id')}",
            demand=demand,
            replicas=replicas,
            submitted=_seconds(row, "submit_time", fields.LATEST),
        )
        return Arrival(job, _seconds(row, "duration", fields.LONGEST))

    return arrivals(source.path, arrival)


def _seconds(row: Row, column: str, most: float) -> Seconds:
    return Seconds(fields.number(row[column], f"{column} (ms)", 0, most * 1000) / 1000)


FORMAT = Format(name="muri", columns=("job_id", "num_gpu", "submit_time", "duration", "model_name"), read=read)
