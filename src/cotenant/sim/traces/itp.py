# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Microsoft's ITP clusters of 2021: whole-GPU jobs, one file for each cluster."""

from collections.abc import Iterator

from cotenant.core.model import Job
from cotenant.core.units import Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.traces import fields
from cotenant.sim.traces.rows import Row, arrivals, parsed
from cotenant.sim.traces.source import Format, Source


def read(source: Source) -> Iterator[Arrival]:
    """Reads the file twice: times are relative to the first submission, which is not 0 in the files."""
    start = min(parsed(source.path, lambda _, row: fields.time(row, "submission_time")), default=0.0)

    def arrival(_line: int, row: Row) -> Arrival:
        replicas, demand = fields.whole_gpus(fields.gpu_count(row, "num_gpu"), source.gpus_per_node)
        submitted = Seconds(fields.time(row, "submission_time") - start)
        job = Job(id=fields.name(row["job_id"], "job_id"), demand=demand, replicas=replicas, submitted=submitted)
        return Arrival(job, fields.duration(row, "duration"))

    yield from arrivals(source.path, arrival)


FORMAT = Format(name="itp", columns=("job_id", "submission_time", "duration", "num_gpu"), read=read)
