# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The cotenant CSV, a format for your own traces; `docs/reference/traces.md` describes every column.

Rows must be sorted by submission time, so that a trace of any length is simulated while it is read.
"""

from collections.abc import Iterator
from functools import lru_cache

from cotenant.core.model import Demand, Job
from cotenant.core.units import (
    WHOLE_GPU,
    WHOLE_MEMORY,
    MiB,
    MilliCpu,
    MilliGpu,
    Percent,
    Seconds,
    parse_compute,
    parse_percent,
)
from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival
from cotenant.sim.traces import fields
from cotenant.sim.traces.rows import Row, arrivals, header, shown
from cotenant.sim.traces.source import Format, Source

JOB_COLUMNS = ("id", "submitted_s", "duration_s", "estimate_s", "replicas", "group", "user")
DEMAND_COLUMNS = (
    "gpus",
    "memory",
    "compute",
    "types",
    "avoid_types",
    "exclusive",
    "one_numa",
    "affinity",
    "anti_affinity",
    "priority",
    "cpu",
    "host_memory",
    "workload",
)
COLUMNS = JOB_COLUMNS + DEMAND_COLUMNS
_HIGHEST_PRIORITY = 1_000_000_000


def read(source: Source) -> Iterator[Arrival]:
    check_columns(source)
    latest = Seconds(0.0)

    def arrival(_line: int, row: Row) -> Arrival:
        nonlocal latest
        demand = _demand("memory" in row, *[row.get(column, "") for column in DEMAND_COLUMNS])
        replicas = fields.whole(row.get("replicas") or "1", "replicas", 1, fields.MOST_GPUS // max(1, demand.gpus))
        submitted = _seconds(row, "submitted_s", fields.LATEST) or Seconds(0.0)
        if submitted < latest:
            raise ValueError(
                f"submitted_s is {submitted:g}, after a row with {latest:g}; expected rows sorted by submission time"
            )
        latest = submitted
        job = Job(
            id=fields.name(row["id"], "id"),
            demand=demand,
            replicas=replicas,
            submitted=submitted,
            estimate=_seconds(row, "estimate_s", fields.LONGEST),
            account=_account(row),
        )
        return Arrival(job, _seconds(row, "duration_s", fields.LONGEST))

    yield from arrivals(source.path, arrival)


def check_columns(source: Source) -> None:
    """Rejects unknown columns, which would otherwise be ignored silently."""
    for column in header(source.path):
        if column not in COLUMNS:
            raise InputError(f"{source.path}:1: unknown column {shown(column)}; expected some of {', '.join(COLUMNS)}")


def _seconds(row: Row, column: str, most: float) -> Seconds | None:
    text = row.get(column)
    return Seconds(fields.number(text, column, 0, most)) if text else None


@lru_cache(maxsize=16_384)
def _demand(
    has_memory: bool,
    gpus: str,
    memory: str,
    compute: str,
    types: str,
    avoid_types: str,
    exclusive: str,
    one_numa: str,
    affinity: str,
    anti_affinity: str,
    priority: str,
    cpu: str,
    host_memory: str,
    workload: str,
) -> Demand:
    """Builds a demand from cells; jobs with equal cells share one object, which saves time and memory."""
    count = fields.whole(gpus or "1", "gpus", 0, fields.MOST_GPUS)
    if not count and (memory or compute):
        raise ValueError("gpus is 0, but memory or compute is given; expected neither for a job without a GPU")
    # An empty cell is a job that names no memory, and owns that of its GPUs. A file without the column says nothing of
    # memory: it is unknown and none is claimed, so that jobs share GPUs by compute alone.
    amount, percent = _memory(memory) if count and has_memory else (MiB(0), None)
    return Demand(
        gpus=count,
        memory=amount,
        memory_percent=percent,
        compute=_compute(compute) if count else MilliGpu(0),
        use_types=fields.words(types),
        avoid_types=fields.words(avoid_types),
        exclusive=fields.truth(exclusive, "exclusive"),
        one_numa=fields.truth(one_numa, "one_numa"),
        affinity=_word(affinity, "affinity"),
        anti_affinity=_word(anti_affinity, "anti_affinity"),
        priority=fields.whole(priority or "0", "priority", -_HIGHEST_PRIORITY, _HIGHEST_PRIORITY),
        cpu=fields.cores(cpu, "cpu") if cpu else MilliCpu(0),
        host_memory=fields.memory(host_memory, "host_memory", fields.MOST_HOST_MEMORY) if host_memory else MiB(0),
        workload=_word(workload, "workload"),
    )


def _memory(text: str) -> tuple[MiB, Percent | None]:
    if text.strip().endswith("%"):
        try:
            return MiB(0), parse_percent(text)
        except ValueError:
            raise ValueError(f"memory is {shown(text)}; expected a percentage from 0% to 100%") from None
    if not text.strip():
        return MiB(0), WHOLE_MEMORY
    return fields.memory(text, "memory", fields.MOST_GPU_MEMORY), None


def _compute(text: str) -> MilliGpu:
    try:
        value = parse_compute(text) if text else WHOLE_GPU
    except ValueError:
        value = MilliGpu(WHOLE_GPU + 1)
    if value > WHOLE_GPU:
        raise ValueError(f"compute is {shown(text)}; expected up to one GPU, for example 30% or 300m")
    return value


def _account(row: Row) -> tuple[str, ...]:
    """Groups from the outermost to the innermost, then the user."""
    groups = [fields.name(part, "group") for part in row.get("group", "").split("/") if part.strip()]
    user = row.get("user", "").strip()
    return (*groups, fields.name(user, "user")) if user else tuple(groups)


def _word(text: str, column: str) -> str | None:
    return fields.name(text, column) if text.strip() else None


FORMAT = Format(name="cotenant", columns=("id",), read=read, in_order=True)
