# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""When which task is submitted: the job generator of IADeep, as a pure function from arrival times to a plan.

IADeep (SC'23) submits tasks at the times of Microsoft's trace with a thousandth of its gaps, and draws each task by
weight. `driving` carries the plan out; where to is its caller's business.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cotenant.core.units import MiB, MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.workloads.registry import TASKS, find

COMPRESSION = 1000.0
"""trace seconds that pass in one second at scale 1"""

MIXES: dict[str, dict[str, float]] = {
    "iadeep": {"vgg16": 0.14, "resnet50": 0.14, "squeezenet": 0.14, "neumf": 0.12, "lstm": 0.12},
    "iadeep-eight": {
        "vgg16": 0.14,
        "resnet50": 0.14,
        "squeezenet": 0.14,
        "neumf": 0.12,
        "lstm": 0.12,
        "adgcl": 0.12,
        "yolo": 0.10,
        "bert": 0.10,
    },
    "ai-benchmark": {task.name: 1.0 for task in TASKS.values() if task.suite == "ai-benchmark"},
    "waiting": {"neumf": 1.0, "adgcl": 1.0, "lstm_ai": 1.0},
    "all": dict.fromkeys(TASKS, 1.0),
}
"""weights by name; they need not sum to one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job to submit at a time, with all that a scheduler may want to know of it."""

    at: Seconds
    """after the start of the plan"""
    name: str
    """its task and its number in the plan"""
    task: str
    argv: tuple[str, ...]
    """what follows the Python interpreter"""
    memory: MiB
    compute: MilliGpu
    batch: int
    batch_range: tuple[int, int]


def plan(
    *,
    jobs: int,
    scale: float = 1.0,
    arrivals: Sequence[float] | None = None,
    mix: Mapping[str, float] | None = None,
    seed: int = 0,
    size: str = "tiny",
    work: float = 1.0,
) -> list[PlannedJob]:
    """The first `jobs` arrivals of a trace (seconds, any origin; None: made up) as jobs; `work` lengthens each run."""
    if jobs < 1:
        raise InputError(f"a plan needs at least one job, not {jobs}")
    if not (scale >= 0 and math.isfinite(scale)):
        raise InputError(f"scale must be a number from 0 on, not {scale}")
    if not (work > 0 and math.isfinite(work)):
        raise InputError(f"work must be a number above 0, not {work}")
    times = arrivals_like_philly(jobs) if arrivals is None else arrivals
    if len(times) < jobs:
        raise InputError(f"the trace has {len(times)} arrivals, and {jobs} jobs were asked for")
    if not all(math.isfinite(time) for time in times[:jobs]):
        raise InputError("an arrival of the trace is not a finite number of seconds")
    ordered = sorted(times[:jobs])
    gaps = (0.0, *(later - earlier for earlier, later in pairwise(ordered)))
    names = draw(MIXES["iadeep"] if mix is None else mix, jobs, seed)
    planned, at = [], 0.0
    for index, (gap, name) in enumerate(zip(gaps, names, strict=True)):
        at += gap / COMPRESSION * scale
        planned.append(_planned(Seconds(at), index, name, size, work, seed))
    return planned


def draw(mix: Mapping[str, float], jobs: int, seed: int) -> list[str]:
    """Tasks by weight: one random number each, looked up in the running sum of the mix, as IADeep does."""
    total = sum(mix.values())
    if not all(weight >= 0 for weight in mix.values()) or not 0 < total < math.inf:
        raise InputError("a mix needs tasks with weights from 0 on, at least one above 0")
    for name in mix:
        find(name)
    chance = random.Random(seed)
    return [_at(mix, chance.random() * total) for _ in range(jobs)]


def _at(mix: Mapping[str, float], coin: float) -> str:
    reached = 0.0
    for name, weight in mix.items():
        reached += weight
        if coin < reached:
            return name
    return max(mix, key=lambda name: mix[name])  # a rounding above the sum


def _planned(at: Seconds, index: int, name: str, size: str, work: float, seed: int) -> PlannedJob:
    task = find(name)
    shape = task.at(size)
    # samples, not steps: a tuned job takes other steps and must do the same work
    samples = max(shape.batch, round(shape.steps * shape.batch * work))
    argv = ("-m", "cotenant.workloads", name, "--size", size, "--samples", str(samples), "--seed", str(seed + index))
    return PlannedJob(
        at=at,
        name=f"{name}-{index + 1}",
        task=name,
        argv=argv,
        memory=shape.memory_at(shape.batch),
        compute=task.busy,
        batch=shape.batch,
        batch_range=(shape.smallest, shape.largest),
    )


def mix_named(text: str) -> dict[str, float]:
    """A mix by name, or as `task=weight,task=weight`."""
    if text in MIXES:
        return MIXES[text]
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = part.partition("=")
        try:
            mix[find(name.strip()).name] = float(weight) if weight else 1.0
        except (ValueError, InputError):
            raise InputError(
                f"mix {text!r}: {part!r} is not task=weight; write one of {', '.join(MIXES)}, "
                f"or for example vgg16=2,lstm=1 with tasks among {', '.join(TASKS)}"
            ) from None
    return mix


def arrivals_like_philly(count: int) -> list[float]:
    """Made-up arrival times with the mean gap of IADeep's excerpt of Philly (300 jobs in 46 days), in bursts.

    The same every time. Gaps are log-normal: many jobs arrive within minutes of each other, and some nights are quiet.
    """
    chance, spread = random.Random(20170807), 1.5
    centre = math.log(46 * 86_400 / 300) - spread**2 / 2  # so that the mean is that of the excerpt
    times, at = [], 0.0
    for _ in range(count):
        times.append(at)
        at += chance.lognormvariate(centre, spread)
    return times
