# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The demo trace: one synthetic day on a small shared cluster, from a seeded generator, for simulations without public
data.

It has what public traces have in common: most jobs are small, many use a share of a GPU, durations have a long tail,
and most jobs are submitted during the day.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import cos, pi
from random import Random

from cotenant.core.model import Demand, Job
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Seconds
from cotenant.sim.arrivals import Arrival

JOBS = 4000
_DAY = 86_400
_SEED = 20230701
_MEDIAN_S, _SPREAD = 4_000, 1.4
"""of the log-normal durations"""
_LONGEST_S = 2 * _DAY

_KINDS = {"share": 480, "one": 420, "two": 40, "four": 20, "eight": 8, "gang": 2, "cpu": 30}
"""kind of job -> number among 1,000 jobs"""
_GPUS = {"one": 1, "two": 2, "four": 4, "eight": 8, "gang": 8}
_SHARES = {160: 6, 230: 12, 320: 18, 460: 20, 550: 12, 650: 14, 810: 18}
"""milli-GPU -> weight; the sizes do not add up to whole GPUs easily, as in real traces"""
_LARGE_GPUS = (("A100",), ("V100", "A100"))
_WORKLOADS = ("resnet50", "vgg16", "squeezenet", "bert", "gpt2", "lstm", "neumf", "yolov3", "deepspeech2")


def read() -> Iterator[Arrival]:
    """Yields the same jobs in every call."""
    random = Random(_SEED)
    submitted = sorted(_time_of_day(random) for _ in range(JOBS))
    for i, at in enumerate(submitted):
        kind = random.choices(list(_KINDS), list(_KINDS.values()))[0]
        demand = _demand(random, kind)
        if kind != "cpu":
            demand = replace(demand, workload=random.choice(_WORKLOADS))
        job = Job(id=f"demo-{i:04}", demand=demand, replicas=2 if kind == "gang" else 1, submitted=Seconds(at))
        lasts = _MEDIAN_S * random.lognormvariate(0, _SPREAD)
        yield Arrival(job, Seconds(round(min(max(lasts, 60), _LONGEST_S), 1)))


def _time_of_day(random: Random) -> float:
    """A random second of the day, three times as likely at noon as at midnight."""
    while True:
        at = random.random() * _DAY
        if random.random() * 3 < 2 - cos(2 * pi * at / _DAY):
            return round(at, 1)


def _demand(random: Random, kind: str) -> Demand:
    if kind == "cpu":
        return Demand(gpus=0, compute=MilliGpu(0), cpu=MilliCpu(8_000), host_memory=MiB(32 * 1024))
    if kind == "share":
        share = random.choices(list(_SHARES), list(_SHARES.values()))[0]
        memory = max(1024, share * 12 // 1024 * 1024)  # a little less than its share of a 16 GiB GPU
        return Demand(
            compute=MilliGpu(share),
            memory=MiB(memory),
            cpu=MilliCpu(random.choice((1_000, 4_000, 8_000, 12_000))),
            host_memory=MiB(8 * 1024),
        )
    gpus = _GPUS[kind]
    large = random.random() < 0.25
    return Demand(
        gpus=gpus,
        memory=MiB(1024 * (random.choice((20, 24, 30)) if large else random.choice((8, 12, 15)))),
        use_types=random.choice(_LARGE_GPUS) if large else (),
        cpu=MilliCpu(gpus * random.choice((4_000, 6_000, 8_000))),
        host_memory=MiB(gpus * 32 * 1024),
    )
