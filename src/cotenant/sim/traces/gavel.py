# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gavel's jobs, derived from Philly's: each has a number of steps, and a table of measured rates gives their
duration."""

import ast
import json
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from cotenant.core.model import Job
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival
from cotenant.sim.traces import fields
from cotenant.sim.traces.rows import Row, arrivals, open_bytes, shown
from cotenant.sim.traces.source import Format, Source, companion

RATES_FILE = "simulation_throughputs.json.gz"
GPU = "v100"

Rates = Mapping[str, tuple[tuple[int, float], ...]]
"""job type -> (GPUs, steps per second of the whole job), in descending order of GPUs"""


def read(source: Source) -> Iterator[Arrival]:
    rates = measured_rates(companion(source, source.path.parent / RATES_FILE, f"gavel/{RATES_FILE}"))

    def arrival(line: int, row: Row) -> Arrival | None:
        if source.part is not None and row["vc"] != source.part:
            return None
        gpus = fields.gpu_count(row, "scale_factor")
        replicas, demand = fields.whole_gpus(gpus, source.gpus_per_node, row["job_type"])
        job = Job(
            id=f"{source.name}-{line}",
            demand=demand,
            replicas=replicas,
            submitted=fields.time(row, "arrival_s"),
        )
        rate = _rate(rates, row["job_type"], gpus)
        steps = fields.number(row["total_steps"], "total_steps", 0, fields.LONGEST * rate)
        return Arrival(job, Seconds(steps / rate))

    yield from arrivals(source.path, arrival)


def _rate(rates: Rates, job_type: str, gpus: int) -> float:
    """Steps per second on this number of GPUs, or on the largest smaller number that was measured."""
    for measured, rate in rates.get(job_type, ()):
        if measured <= gpus:
            return rate
    raise ValueError(
        f"job_type {shown(job_type)} has no measured rate alone; expected a job type of Gavel's table of rates"
    )


@lru_cache(maxsize=4)
def measured_rates(path: Path) -> Rates:
    """Reads the rates of jobs alone on V100s of one node; a key is a job type with its GPUs, such as `('A3C', 1)`."""
    rates: dict[str, list[tuple[int, float]]] = {}
    try:
        with open_bytes(path) as file:
            table = json.load(file)[GPU]
        for key, partners in table.items():
            job_type, gpus = ast.literal_eval(key)
            if (rate := float(partners["null"])) > 0:
                rates.setdefault(str(job_type), []).append((int(gpus), rate))
    except (OSError, EOFError, zlib.error, ValueError, SyntaxError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path}: not Gavel's table of rates; expected JSON with a {GPU!r} entry") from None
    return {job_type: tuple(sorted(of_type, reverse=True)) for job_type, of_type in rates.items()}


FORMAT = Format(
    name="gavel",
    columns=("job_type", "total_steps", "arrival_s", "scale_factor"),
    read=read,
    part_column="vc",
)
