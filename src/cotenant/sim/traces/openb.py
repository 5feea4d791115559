# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Alibaba's GPU cluster of 2023: pods that request shares of a GPU, whole GPUs, several GPUs, or none."""

from collections.abc import Iterator
from functools import lru_cache

from cotenant.core.model import Demand, Job
from cotenant.core.units import WHOLE_GPU, MiB, MilliCpu, MilliGpu, Seconds
from cotenant.sim.arrivals import Arrival
from cotenant.sim.traces import fields
from cotenant.sim.traces.rows import Row, arrivals
from cotenant.sim.traces.source import Format, Source


def read(source: Source) -> Iterator[Arrival]:
    return arrivals(source.path, _arrival)


def _arrival(_line: int, row: Row) -> Arrival:
    spec = row.get("gpu_spec", "")
    demand = _demand(row["num_gpu"], row["gpu_milli"], spec, row["cpu_milli"], row["memory_mib"])
    submitted = fields.time(row, "creation_time") if "creation_time" in row else Seconds(0.0)
    job = Job(id=fields.name(row["name"], "name"), demand=demand, submitted=submitted)
    return Arrival(job, _duration(row, submitted))


def _duration(row: Row, submitted: Seconds) -> Seconds | None:
    if not row.get("deletion_time"):  # the lists for fill mode have no times
        return None
    lived = fields.time(row, "deletion_time") - submitted
    if not 0 <= lived <= fields.LONGEST:
        raise ValueError(f"deletion_time is {row['deletion_time']}; expected 0 s to 10 years after creation_time")
    return Seconds(lived)


@lru_cache(maxsize=4096)
def _demand(num_gpu: str, gpu_milli: str, gpu_spec: str, cpu_milli: str, memory_mib: str) -> Demand:
    gpus = fields.whole(num_gpu, "num_gpu", 0, fields.MOST_GPUS)
    compute = fields.whole(gpu_milli, "gpu_milli", 0, WHOLE_GPU)
    # The trace has no GPU memory (`memory_mib` is the host's), and its pods share GPUs by `gpu_milli` alone. So their
    # GPU memory is unknown, not "all of it": none is claimed, as in the published replays of this trace.
    return Demand(
        gpus=gpus,
        compute=MilliGpu(compute if gpus else 0),
        use_types=fields.words(gpu_spec) if gpus else (),
        cpu=MilliCpu(fields.whole(cpu_milli, "cpu_milli", 0, fields.MOST_CPU)),
        host_memory=MiB(fields.whole(memory_mib, "memory_mib", 0, fields.MOST_HOST_MEMORY)),
    )


FORMAT = Format(name="openb", columns=("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"), read=read)
