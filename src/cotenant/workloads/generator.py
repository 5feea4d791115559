# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which task is submitted when: the job generator of IADeep, as a pure function from arrival times to a plan.

IADeep (SC'23) submits tasks at the arrival times of Microsoft's trace, with gaps of 1/1000, and draws each task by
weight. `driving` executes the plan.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cotenant.core.units import MiB, MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.wire.text import counted
from cotenant.workloads.registry import TASKS, find

COMPRESSION = 1000.0
"""seconds of the trace that pass in one second at scale 1"""

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
"""mixes by name: the weight of each task; weights need not sum to 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job to submit at a time, with everything that a scheduler needs."""

    at: Seconds
    """seconds after the start of the plan"""
    name: str
    """its task and its number in the plan"""
    task: str
    argv: tuple[str, ...]
    """arguments of the Python interpreter"""
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
    """The first `jobs` arrivals (in seconds; None: synthetic) as jobs; `work` scales the length of each run."""
    if jobs < 1:
        raise InputError(f"a plan needs at least one job, not {jobs}")
    if not (scale >= 0 and math.isfinite(scale)):
        raise InputError(f"scale must be a number of at least 0, not {scale}")
    if not (work > 0 and math.isfinite(work)):
        raise InputError(f"work must be a number above 0, not {work}")
    times = arrivals_like_philly(jobs) if arrivals is None else arrivals
    if len(times) < jobs:
        raise InputError(f"the trace has {counted(len(times), 'arrival')}, fewer than the {jobs} requested")
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


def single(task: str, size: str = "tiny") -> PlannedJob:
    """One job of a task, under its name, with the task's own length."""
    return replace(_planned(Seconds(0.0), 0, task, size, 1.0, 0), name=task)


def draw(mix: Mapping[str, float], jobs: int, seed: int) -> list[str]:
    """Tasks drawn by weight: one random number each, looked up in the cumulative weights, as IADeep does."""
    total = sum(mix.values())
    if not all(weight >= 0 for weight in mix.values()) or not 0 < total < math.inf:
        raise InputError("a mix needs tasks with weights of at least 0, one of them above 0")
    for name in mix:
        find(name)
    rng = random.Random(seed)
    return [_at(mix, rng.random() * total) for _ in range(jobs)]


def _at(mix: Mapping[str, float], coin: float) -> str:
    reached = 0.0
    for name, weight in mix.items():
        reached += weight
        if coin < reached:
            return name
    return max(mix, key=lambda name: mix[name])  # a rounding error above the sum


def _planned(at: Seconds, index: int, name: str, size: str, work: float, seed: int) -> PlannedJob:
    task = find(name)
    shape = task.at(size)
    # Counted in samples rather than steps: a tuned job takes other steps but must do the same work.
    samples = max(shape.batch, round(shape.steps * shape.batch * work))
    # -P: no module is imported from the folder in which the job runs.
    program = ("-P", "-m", "cotenant.workloads")
    argv = (*program, name, "--size", size, "--samples", str(samples), "--seed", str(seed + index))
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
    """A mix by its name, or in the form `task=weight,task=weight`."""
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
    """Synthetic arrival times with the mean gap of IADeep's excerpt of Philly (300 jobs in 46 days).

    They are the same in every call. Gaps are log-normal, so jobs arrive in bursts with long pauses between them.
    """
    rng, spread = random.Random(20170807), 1.5
    centre = math.log(46 * 86_400 / 300) - spread**2 / 2  # gives the mean gap of the excerpt
    times, at = [], 0.0
    for _ in range(count):
        times.append(at)
        at += rng.lognormvariate(centre, spread)
    return times
