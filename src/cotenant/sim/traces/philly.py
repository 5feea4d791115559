# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Microsoft's Philly clusters of 2017: whole-GPU jobs with wall-clock submission times, not sorted."""

from collections.abc import Iterator
from datetime import datetime

from cotenant.core.model import Job
from cotenant.core.units import Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.traces import fields
from cotenant.sim.traces.rows import Row, arrivals, parsed, shown
from cotenant.sim.traces.source import Format, Source

_EPOCH = datetime(1970, 1, 1)


def read(source: Source) -> Iterator[Arrival]:
    """Reads the file twice: times are relative to the first submission, which may be in any row."""

    def wanted(row: Row) -> bool:
        return source.part is None or row["cluster"] == source.part

    start = min(parsed(source.path, lambda _, row: _time(row) if wanted(row) else float("inf")), default=0.0)

    def arrival(line: int, row: Row) -> Arrival | None:
        if not wanted(row):
            return None
        replicas, demand = fields.whole_gpus(fields.gpu_count(row, "num_gpus"), source.gpus_per_node)
        submitted = Seconds(_time(row) - start)
        job = Job(
            id=f"{source.name}-{line}",
            demand=demand,
            replicas=replicas,
            submitted=submitted,
            account=(row.get("cluster", ""),),
        )
        return Arrival(job, fields.duration(row, "duration"))

    yield from arrivals(source.path, arrival)


def _time(row: Row) -> float:
    text = row["timestamp"]
    try:
        if len(text) != len("2017-10-09 07:01:55"):
            raise ValueError
        return (datetime.fromisoformat(text) - _EPOCH).total_seconds()
    except (ValueError, TypeError):
        raise ValueError(f"timestamp is {shown(text)}; expected YYYY-MM-DD HH:MM:SS") from None


FORMAT = Format(name="philly", columns=("timestamp", "duration", "num_gpus"), read=read, part_column="cluster")
